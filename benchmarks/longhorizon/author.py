"""The author: writes one attempt of a case, from facts that fit the target to the events and their truth.

It promises nothing: what it wrote is a case only when `proofs.prove` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from benchmarks.longhorizon.amounts import Amount, day_number, format_amount, iso_date
from benchmarks.longhorizon.case import STALE, TRUTH_SCHEMA, Case, DomainName, FieldTruth, Size, Truth, WrongValue
from benchmarks.longhorizon.draw import Draw
from benchmarks.longhorizon.plan import Planned, Planner
from benchmarks.longhorizon.proofs import steps
from benchmarks.longhorizon.rules import Domain, Target, Verdict, is_critical
from benchmarks.longhorizon.sizes import Layout
from benchmarks.longhorizon.texts import NoCleanTextError, Texts, Writer, load_domain_task, load_task_text, load_texts
from projection.events import Event, Link, numbered

MAX_SOLUTIONS = 200
FIRST_DAY = day_number("2026-03-02")
"""No document of a case is older; what documents speak of may be."""
_WORKDAY_MINUTES = 600
_DETAILS = {
    "superseded": "an earlier figure that a later document replaces",
    "contradicted": "a party's figure that an authoritative document contradicts later",
    "insisted": "a party's figure against the authoritative document",
    "copied": "a late copy of a replaced document",
    "injected": "an instruction inside a document",
}


@dataclass(frozen=True, slots=True)
class _Written:
    planned: Planned
    event: Event


class Author:
    """Writes one attempt of a case."""

    def __init__(self, draw: Draw, domain: Domain, size: Size, layout: Layout, target: Target) -> None:
        self._draw, self._domain, self._size, self._layout, self._target = draw, domain, size, layout, target
        self._texts: Texts = load_texts(domain.name)
        self._task_text = load_task_text(domain.task_name)
        self._task = load_domain_task(domain.task_name)
        self._types = {field.name: field.type for field in self._task.fields}

    def write(self, seed: int, index: int, domain: DomainName) -> Case:
        facts = self._solve()
        verdict = self._domain.judge(facts)
        planner = Planner(self._draw, self._domain, self._texts, facts, self._task, self._size == "small")
        written = self._write_all(self._fill_up(planner.plan()), facts)
        case_id = f"{domain}-{self._size}-{index:04d}"
        events = numbered(one.event for one in written)
        truth = Truth(
            schema=TRUTH_SCHEMA,
            case_id=case_id,
            domain=domain,
            size=self._size,
            variant="full",
            seed=seed,
            index=index,
            target_chars=self._layout.max_chars,
            outcome=verdict.outcome,
            reasons=verdict.reasons,
            figures=dict(verdict.figures),
            margin=verdict.margin,
            fields=tuple(self._field_truth(name, facts, written) for name in self._types),
            superseded=tuple(self._wrong_values(written, facts, verdict, stale=True)),
            distractors=tuple(self._wrong_values(written, facts, verdict, stale=False)),
            steps=steps(verdict),
            proofs={},
        )
        return Case(case_id, events, self._task, self._task_text, truth)

    def _solve(self) -> dict[str, Amount]:
        """Facts that the rules judge as the target says."""
        for _ in range(MAX_SOLUTIONS):
            facts = self._domain.solve(self._draw, self._target)
            verdict = self._domain.judge(facts)
            distinct = len({self._text(name, amount) for name, amount in facts.items()}) == len(facts)
            if distinct and (verdict.outcome, verdict.margin) == (self._target.outcome, self._target.margin):
                return facts
        raise NoCleanTextError(f"no facts for {self._target}")

    def _text(self, name: str, amount: Amount) -> str:
        return format_amount(amount, self._types[name], self._domain.shapes[name].step)

    def _fill_up(self, planned: list[Planned]) -> list[Planned]:
        """The planned documents with other ones between them, in the order of arrival."""
        num_events = self._draw.between(self._layout.min_events, self._layout.max_events)
        kinds = self._draw.shuffled(list(self._texts.kinds))
        used = {planned_one.passages[0].kind for planned_one in planned}
        kinds.sort(key=lambda kind: kind in used)  # kinds that no planned document has come first
        fillers = [
            Planned(f"filler/{n}", None, self._draw.below(10_000), (), kind=kinds[n % len(kinds)])
            for n in range(num_events - len(planned))
        ]
        return sorted([*planned, *fillers], key=lambda p: (p.when, p.key))

    def _write_all(self, planned: Sequence[Planned], facts: Mapping[str, Amount]) -> list[_Written]:
        true_values = [self._text(name, amount) for name, amount in facts.items()]
        writer = Writer(self._draw, self._texts, true_values)
        ids = {p.key: f"doc-{number:04d}" for number, p in enumerate(planned, start=1)}
        left_chars = self._draw.between(self._layout.aim_min, self._layout.aim_max)
        written: dict[str, _Written] = {}
        for number, p in enumerate(planned):
            today, clock = self._time(number, len(planned))
            goal = left_chars // (len(planned) - number)
            if number < len(planned) - 1:
                goal = goal * self._draw.between(*self._layout.jitter_percent) // 100
            text = self._write_text(writer, p, today, goal, written)
            left_chars -= len(text)
            kind = p.kind or p.passages[0].kind
            links = tuple(Link(link, ids[key]) for link, key in p.links)
            source = self._texts.kinds[kind].source
            written[p.key] = _Written(p, Event(ids[p.key], kind, source, f"{iso_date(today)}T{clock}", text, links))
        return list(written.values())

    def _time(self, number: int, num_events: int) -> tuple[int, str]:
        """Day and clock of the event at that place: spread evenly over days of ten hours, never back."""
        all_minutes = self._layout.num_days * _WORKDAY_MINUTES
        minute = number * all_minutes // num_events + self._draw.below(all_minutes // num_events)
        days, left = divmod(minute, _WORKDAY_MINUTES)
        return FIRST_DAY + days, f"{8 + left // 60:02d}:{left % 60:02d}:00Z"

    def _write_text(self, writer: Writer, p: Planned, today: int, goal: int, written: Mapping[str, _Written]) -> str:
        if p.copy_of is not None:
            return writer.write(self._texts.copies, today) + written[p.copy_of].event.text
        kind = self._texts.kinds[p.kind or p.passages[0].kind]
        carried = [passage.text for passage in p.passages]
        value = self._text(p.field, p.amount) if p.field is not None and p.amount is not None else None
        core = [writer.write(carried, today, value)] if carried else []
        opened = [writer.write(kind.open, today, without=value)] if self._layout.opens or not core else []
        more: list[str] = []
        length = sum(map(len, [*core, *opened]))
        pool = [*self._draw.shuffled(kind.more), *self._draw.shuffled(self._texts.common)]
        for template in pool:
            if length >= goal - 40:
                break
            with suppress(NoCleanTextError):  # this sentence cannot be had without a true value: the next one can
                more.append(writer.write([template], today, without=value))
                length += len(more[-1]) + 1
        place = self._draw.below(len(more) + 1)
        return " ".join([*opened, *more[:place], *core, *more[place:]])

    def _field_truth(self, name: str, facts: Mapping[str, Amount], written: Sequence[_Written]) -> FieldTruth:
        position, event = next(
            (n, w.event) for n, w in enumerate(written, 1) if w.planned.field == name and w.planned.why is None
        )
        critical = is_critical(self._domain, facts, name)
        value = self._text(name, facts[name])
        return FieldTruth(name, self._types[name], value, facts[name], event.event_id, position, critical)

    def _wrong_values(
        self, written: Sequence[_Written], facts: Mapping[str, Amount], verdict: Verdict, stale: bool
    ) -> Iterator[WrongValue]:
        for position, w in enumerate(written, start=1):
            p = w.planned
            if p.why is None or p.field is None or p.amount is None or (p.why in STALE) != stale:
                continue
            yield WrongValue(
                field=p.field,
                value=self._text(p.field, p.amount),
                amount=p.amount,
                event_id=w.event.event_id,
                position=position,
                why=p.why,
                detail=p.passages[0].detail or _DETAILS[p.why],
                changes_verdict=self._domain.judge({**facts, p.field: p.amount}).vector != verdict.vector,
            )
