"""The plan of a case: which documents carry which value of each field, in which order, and linked how.

Every case has a correction, a contradiction that a later authoritative source settles, a party that insists, a late
copy of a replaced document, near misses and an injected instruction; which field meets which is drawn. Texts are
written later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.longhorizon.amounts import Amount
from benchmarks.longhorizon.case import WrongReason
from benchmarks.longhorizon.draw import Draw
from benchmarks.longhorizon.rules import Domain, is_critical
from benchmarks.longhorizon.texts import MAX_TRIES, FieldPassages, NoCleanTextError, Passage, Texts
from projection.events import LinkKind
from projection.task import Task

_FLIP_TRIES = 12


@dataclass(frozen=True, slots=True)
class Planned:
    """A document to be written. `when` orders documents, 0 to 9,999; links name other documents by their key.

    why: why its value is wrong; None for the true value, and for a document that carries none (`field` is None).
    passages: the sentence that carries the value, one of them; none in a document that carries no value, of `kind`.
    """

    key: str
    why: WrongReason | None
    when: int
    passages: tuple[Passage, ...]
    field: str | None = None
    amount: Amount | None = None
    links: tuple[tuple[LinkKind, str], ...] = ()
    copy_of: str | None = None
    kind: str | None = None


class Planner:
    """Draws the documents that carry values for one case."""

    def __init__(
        self,
        draw: Draw,
        domain: Domain,
        texts: Texts,
        facts: Mapping[str, Amount],
        task: Task,
        small: bool,
    ) -> None:
        self._draw, self._domain, self._texts, self._facts, self._small = draw, domain, texts, facts, small
        self._fields = {field.name: field for field in task.fields}
        self._true = {(field.type, facts[name]) for name, field in self._fields.items()}
        self._vector = domain.judge(facts).vector

    def plan(self) -> list[Planned]:
        """All documents that carry a value, in no order."""
        names = self._draw.shuffled(list(self._facts))
        critical = [name for name in names if is_critical(self._domain, self._facts, name)]
        corrected = critical[0]
        rest = [name for name in names if name != corrected]
        planned: list[Planned] = []
        for index, name in enumerate([corrected, *rest]):
            planned += self._field(name, self._history(index), copied=index == 0, insisted=index == 2)
        return planned + self._injections(rest)

    def _history(self, index: int) -> tuple[WrongReason, ...]:
        """What came before a field's true value. The first field is corrected and the second contradicted."""
        fixed: list[tuple[WrongReason, ...]] = [("superseded",), ("contradicted",)]
        if index < len(fixed):
            return fixed[index]
        options: list[tuple[WrongReason, ...]] = [(), ("superseded",), ("superseded",), ("contradicted",)]
        if not self._small:
            options += [("superseded", "superseded"), ("superseded", "contradicted")]
        return self._draw.choice(options)

    def _field(self, name: str, history: tuple[WrongReason, ...], copied: bool, insisted: bool) -> list[Planned]:
        passages, draw = self._texts.fields[name], self._draw
        planned: list[Planned] = []
        links: list[tuple[LinkKind, str]] = []
        when = draw.between(0, 2_500)
        for number, why in enumerate(history):
            key = f"{name}/{why}/{number}"
            by_whom = passages.said if why == "contradicted" else passages.settled if number else passages.stated
            before = [link for link in links if link[0] == "supersedes"] if why == "superseded" else []
            planned.append(self._wrong(key, why, when, by_whom, name, tuple(before)))
            links = [link for link in links if link not in before]
            links.append(("contradicts" if why == "contradicted" else "supersedes", key))
            when += draw.between(500, 2_000)
        when = max(when, draw.between(1_000, 8_000))
        chosen = (self._settled(passages, is_second=len(history) > 1),)
        truth = Planned(f"{name}/true", None, when, chosen, name, self._facts[name], tuple(links))
        planned.append(truth)
        for number in range(1 if self._small else draw.between(1, 2)):
            planned.append(self._wrong(f"{name}/near/{number}", "near_miss", draw.below(10_000), passages.near, name))
        later = when + draw.between(200, 1_500)
        if insisted or (not self._small and draw.chance(20)):
            against: tuple[tuple[LinkKind, str], ...] = (("contradicts", truth.key),)
            planned.append(self._wrong(f"{name}/insisted", "insisted", later, passages.said, name, against))
        stale = next((p for p in planned if p.why == "superseded"), None)
        if stale is not None and (copied or (not self._small and draw.chance(25))):
            planned.append(self._copy(stale, later + draw.between(100, 600)))
        return planned

    def _wrong(
        self,
        key: str,
        why: WrongReason,
        when: int,
        passages: tuple[Passage, ...],
        name: str,
        links: tuple[tuple[LinkKind, str], ...] = (),
    ) -> Planned:
        """A document with a wrong value; where the fact is critical, preferably one that would change the verdict."""
        shape, amount = self._domain.shapes[name], self._draw_wrong(name)
        for _ in range(_FLIP_TRIES if why != "near_miss" and any(shape.ends()) else 0):
            if self._domain.judge({**self._facts, name: amount}).vector != self._vector:
                break
            amount = self._draw_wrong(name)
        chosen = (self._draw.choice(passages),)
        return Planned(key, why, when, chosen, name, amount, links)

    def _settled(self, passages: FieldPassages, is_second: bool) -> Passage:
        """What an authoritative document says; a second one says that it replaces the first."""
        passage = self._draw.choice(passages.settled)
        if not is_second:
            return passage
        return replace(passage, text=f"{self._draw.choice(self._texts.replacements)} {passage.text}")

    def _draw_wrong(self, name: str) -> Amount:
        """A wrong value that is no field's true one."""
        for _ in range(MAX_TRIES):
            amount = self._domain.shapes[name].draw_wrong(self._draw, self._facts[name])
            if (self._fields[name].type, amount) not in self._true:
                return amount
        raise NoCleanTextError(f"every wrong value of {name} is a true one")

    def _copy(self, original: Planned, when: int) -> Planned:
        return Planned(
            f"{original.key}/copy",
            "copied",
            when,
            original.passages,
            original.field,
            original.amount,
            (("derived_from", original.key),),
            original.key,
        )

    def _injections(self, names: list[str]) -> list[Planned]:
        chosen = names[:1] if self._small else names[:2]
        planned = []
        for name in chosen:
            label = self._fields[name].description
            named = tuple(replace(p, text=p.text.replace("{label}", label)) for p in self._texts.injections)
            when = self._draw.between(3_000, 9_900)
            planned.append(self._wrong(f"{name}/injected", "injected", when, named, name))
        return planned
