"""Proof obligations: what must hold of every case, checked on its values alone.

`prove` knows nothing of how a case was drawn or written: it holds events, task and truth against the domain's rules, so
`verify_case` can prove a case again from its files. Each obligation has a name, and an error names the one that broke.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from benchmarks.longhorizon.amounts import parse_amount
from benchmarks.longhorizon.case import Case, FieldTruth, ObligationError, Step, WrongValue
from benchmarks.longhorizon.domains import domain_for
from benchmarks.longhorizon.rules import Domain, Verdict, is_critical
from benchmarks.longhorizon.sizes import LAYOUTS
from benchmarks.longhorizon.texts import AnchorKey, anchor_key, load_task_text
from projection.anchors import find_anchors
from projection.candidates import UNKNOWN, Candidate, field_anchors, rank_candidates
from projection.task import TaskField
from projection.view import SECTIONS
from projection.view_grammar import Profile

MIN_KINDS = 12
SMALL_TIGHT_CHARS = 120
STATES_OUTCOME = (
    r"\bapprov\w*",
    r"\bden(?:y|ied|ies|ial)\b",
    r"\bdeclin(?:e|ed|es|ing)\b",
    r"\b(?:reject|refus)\w*",
    r"\bgrant(?:s|ed)?\b",
    r"\b(?:in)?eligib\w*",
    r"\bexceed\w*",
    r"\bdecision (?:is|was)\b",
    r"\b(?:meets?|met|fails?|failed|satisf\w+) (?:the|all|every|our)\b",
    r"\bwithin (?:the )?(?:limit|guideline|polic)\w*",
    r"\b(?:above|below|over|under) the (?:limit|minimum|maximum|threshold)",
    r"\bwill (?:not )?(?:pay|be paid|cover|be covered)\b",
    r"\bnot covered\b",
)
"""Words that say or imply how a case of any domain was decided; each domain adds its own."""


def prove(case: Case) -> dict[str, int]:
    """Check every obligation; returns for each how many things it was checked on.

    Raises:
        ObligationError: the first that does not hold.
    """
    proofs = {}
    for name, check in OBLIGATIONS.items():
        try:
            proofs[name] = sum(1 for _ in check(case, domain_for(case.truth.domain, case.truth.size)))
        except _BrokenError as exc:
            raise ObligationError(
                f"{case.case_id} breaks the obligation {name!r}: {exc}", obligation=name, case_id=case.case_id
            ) from exc
    return proofs


class _BrokenError(Exception):
    """What does not hold."""


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _BrokenError(otherwise)


def _typed_values(case: Case, _domain: Domain) -> Iterator[str]:
    """Every value's text says its typed amount, and the fields are the task's, in order."""
    truth = case.truth
    types = {field.name: field.type for field in case.task.fields}
    _require([(f.name, f.type) for f in truth.fields] == list(types.items()), "the fields are not those of the task")
    values = [(field.name, field.value, field.amount) for field in truth.fields]
    values += [(wrong.field, wrong.value, wrong.amount) for wrong in (*truth.superseded, *truth.distractors)]
    for name, value, amount in values:
        _require(name in types, f"{name!r} is no field of the task")
        _require(parse_amount(value, types[name]) == amount, f"{value!r} is not {amount!r}")
        yield value


def _task(case: Case, domain: Domain) -> Iterator[str]:
    """The task is the one that the rules belong to, byte for byte."""
    _require(case.task_text == load_task_text(domain.task_name), f"the task is not {domain.task_name}.yaml")
    yield domain.task_name


def _target(case: Case, domain: Domain) -> Iterator[str]:
    """The rules on the true facts give outcome, reasons, amounts, margin and steps; the task knows their names."""
    truth, verdict = case.truth, domain.judge(case.truth.facts)
    stated = (truth.outcome, truth.reasons, tuple(sorted(truth.figures.items())))
    _require(verdict.vector == stated, f"the rules give {verdict.vector}, the truth says {stated}")
    _require(verdict.margin == truth.margin, f"the margin is {verdict.margin}, the truth says {truth.margin}")
    _require(steps(verdict) == truth.steps, "the steps are not those of the rules")
    outcome = case.task.outcome(truth.outcome)
    _require(outcome is not None, f"the task has no outcome {truth.outcome}")
    _require(outcome is None or (outcome.reasons == "none") == (not truth.reasons), "reasons and outcome do not fit")
    _require({r.code for r in case.task.reasons} >= set(truth.reasons), "a reason is not one of the task's")
    _require({p.id for p in case.task.provisions} >= {s.rule for s in truth.steps}, "a rule is not one of the task's")
    yield from (limit.name for limit in verdict.limits)


def steps(verdict: Verdict) -> tuple[Step, ...]:
    """Required facts -> rule -> conclusion, for every limit that the verdict rests on."""
    return tuple(
        Step(limit.facts, limit.rule, limit.holds, limit.slack, None if limit.holds else limit.reason)
        for limit in verdict.limits
    )


def _criticality(case: Case, domain: Domain) -> Iterator[str]:
    """Without a critical fact the verdict is open; without any other it stands. Some fact is critical."""
    for field in case.truth.fields:
        found = is_critical(domain, case.truth.facts, field.name)
        _require(found == field.critical, f"{field.name}: critical is {found}, the truth says otherwise")
        if found:
            yield field.name
    _require(any(field.critical for field in case.truth.fields), "no fact is critical")


def _no_outcome(case: Case, domain: Domain) -> Iterator[str]:
    """No event states or implies the outcome, or has the text of a reason."""
    named = [rf"\b{re.escape(o.name.replace('_', ' '))}\b" for o in case.task.outcomes]
    reasons = [re.escape(r.text) for r in case.task.reasons]
    pattern = re.compile("|".join([*STATES_OUTCOME, *domain.forbidden, *named, *reasons]), re.IGNORECASE)
    for event in case.events:
        match = pattern.search(event.text.replace("_", " "))
        _require(match is None, f"event [{event.position}] says {match and match[0]!r}")
        yield event.event.event_id


def _unique_anchors(case: Case, _domain: Domain) -> Iterator[str]:
    """Each true value is an anchor of its field in its event, once, and of nothing else in the whole log."""
    counts: dict[AnchorKey, list[int]] = {}
    for event in case.events:
        for anchor in find_anchors(event.text, event.position):
            counts.setdefault(anchor_key(anchor), []).append(event.position)
    fields = {field.name: field for field in case.task.fields}
    for truth in case.truth.fields:
        _require(_carries(case, fields[truth.name], truth.position, truth.event_id, truth.value), _absent(truth))
        for key in {anchor_key(anchor) for anchor in find_anchors(truth.value)}:
            places = counts.get(key, [])
            _require(places == [truth.position], f"{truth.value} of {truth.name} stands in {places}")
        yield truth.value


def _carries(case: Case, field: TaskField, position: int, event_id: str, value: str) -> bool:
    """Whether that event has the value as one anchor of the field."""
    if not 1 <= position <= len(case.events) or case.events[position - 1].event.event_id != event_id:
        return False
    return [a.value for a in field_anchors(field, case.events[position - 1])].count(value) == 1


def _absent(value: FieldTruth | WrongValue) -> str:
    name = value.name if isinstance(value, FieldTruth) else value.field
    return f"{value.value} of {name} is not once in event {value.event_id} at [{value.position}]"


def _distractors(case: Case, domain: Domain) -> Iterator[str]:
    """Each wrong value stands where the truth says, equals no true value, and changes the verdict as it says."""
    truth, vector = case.truth, domain.judge(case.truth.facts).vector
    fields = {field.name: field for field in case.task.fields}
    true_values = {(field.type, field.amount) for field in truth.fields}
    for wrong in (*truth.superseded, *truth.distractors):
        _require(_carries(case, fields[wrong.field], wrong.position, wrong.event_id, wrong.value), _absent(wrong))
        _require(
            (fields[wrong.field].type, wrong.amount) not in true_values, f"the wrong value {wrong.value} is a true one"
        )
        changes = domain.judge({**truth.facts, wrong.field: wrong.amount}).vector != vector
        _require(changes == wrong.changes_verdict, f"{wrong.value} of {wrong.field}: changes_verdict is {changes}")
        yield wrong.value


def _supersession(case: Case, _domain: Domain) -> Iterator[str]:
    """Links lead from the true value to what it replaces; some stale value alone would change the verdict."""
    if case.truth.variant == "oracle":
        return
    for wrong in case.truth.superseded:
        kind = "contradicts" if wrong.why == "contradicted" else "supersedes"
        carrier = case.truth.field(wrong.field)
        replaced = _reach(case, carrier.event_id, kind)
        origin = _copied_from(case, wrong) if wrong.why == "copied" else wrong.event_id
        _require(origin in replaced, f"no link leads from [{carrier.position}] to {wrong.value} of {wrong.field}")
        yield wrong.event_id
    _require(any(wrong.changes_verdict for wrong in case.truth.superseded), "no stale value changes the verdict")


def _reach(case: Case, event_id: str, first: str) -> set[str]:
    """Ids of the events that an event replaces: by a link of that kind, and on from there by links that supersede."""
    links = {event.event.event_id: event.event.links for event in case.events}
    reached: set[str] = set()
    edge = [link.event_id for link in links[event_id] if link.kind == first]
    while edge:
        current = edge.pop()
        if current not in reached:
            reached.add(current)
            edge += [link.event_id for link in links[current] if link.kind == "supersedes"]
    return reached


def _copied_from(case: Case, copy: WrongValue) -> str:
    links = case.events[copy.position - 1].event.links
    return next((link.event_id for link in links if link.kind == "derived_from"), "")


def _arrival(case: Case, _domain: Domain) -> Iterator[str]:
    """Events arrive in the order of their times, or, reordered, at least after every event that they link to."""
    times = [event.event.occurred_at or "" for event in case.events]
    _require(case.truth.variant == "reordered" or times == sorted(times), "the events are not in order of time")
    arrived: set[str] = set()
    for event in case.events:
        _require(all(link.event_id in arrived for link in event.event.links), f"[{event.position}] links ahead")
        arrived.add(event.event.event_id)
        yield event.event.event_id


def _phenomena(case: Case, _domain: Domain) -> Iterator[str]:
    """Events of twelve kinds and more; corrections, contradictions, insistence, copies, near misses and injections."""
    if case.truth.variant == "oracle":
        return
    kinds = {event.event.type for event in case.events}
    _require(len(kinds) >= MIN_KINDS, f"there are events of {len(kinds)} kinds only")
    found = {wrong.why for wrong in (*case.truth.superseded, *case.truth.distractors)}
    for why in ("superseded", "contradicted", "insisted", "copied", "near_miss", "injected"):
        _require(why in found, f"no value is {why}")
        yield why


def _tight_view(case: Case, _domain: Domain) -> Iterator[str]:
    """The view of a small case fits a twentieth of it: headings, and every field with its longest candidate."""
    if case.truth.size == "small":
        needed = mandatory_chars(case)
        _require(needed <= SMALL_TIGHT_CHARS, f"headings and fields need {needed} of {SMALL_TIGHT_CHARS} characters")
        yield from (field.name for field in case.task.fields)


def mandatory_chars(case: Case) -> int:
    """Characters of a view's headings and field lines at their longest, under the default profile."""
    ranked = rank_candidates(case.events, case.task, Profile().slot_candidates)
    headings = sum(len(f"{heading}\n") for heading in SECTIONS)
    return headings + sum(
        max(len(f"- {field.description}: {value}\n") for value in [UNKNOWN, *map(_cited, ranked[field.name])])
        for field in case.task.fields
    )


def _cited(candidate: Candidate) -> str:
    return f"{candidate.value} [{candidate.position}]"


def _size(case: Case, _domain: Domain) -> Iterator[str]:
    """The number of events and characters that the size asks for."""
    truth, layout = case.truth, LAYOUTS[case.truth.size]
    if truth.variant == "oracle":
        return
    if truth.size == "long":
        layout = layout.with_chars(truth.target_chars)
    num_events, num_chars = len(case.events), case.num_chars
    _require(layout.min_events <= num_events <= layout.max_events, f"there are {num_events} events")
    _require(layout.min_chars <= num_chars <= layout.max_chars, f"there are {num_chars} characters")
    yield from (event.event.event_id for event in case.events)


OBLIGATIONS: dict[str, Callable[[Case, Domain], Iterator[str]]] = {
    "task": _task,
    "typed_values": _typed_values,
    "target": _target,
    "criticality": _criticality,
    "no_outcome": _no_outcome,
    "unique_anchors": _unique_anchors,
    "distractors": _distractors,
    "supersession": _supersession,
    "arrival": _arrival,
    "phenomena": _phenomena,
    "size": _size,
    "tight_view": _tight_view,
}
"""Every obligation by name, in the order in which they are checked."""
