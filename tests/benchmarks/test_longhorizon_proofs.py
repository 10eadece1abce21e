"""Proof obligations: a case that breaks one is refused by the name of that one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.longhorizon.case import Case, FieldTruth, ObligationError, Step, Truth, WrongValue
from benchmarks.longhorizon.generator import generate_case
from benchmarks.longhorizon.proofs import OBLIGATIONS, prove
from projection.events import Event, LoggedEvent

CASE = generate_case("mortgage", "small", 1)
PAPER = generate_case("claim", "paper", 0)


def with_truth(case: Case, **changes: object) -> Case:
    return replace(case, truth=replace(case.truth, **changes))  # type: ignore[arg-type]


def with_event(case: Case, position: int, change: Callable[[Event], Event]) -> Case:
    events = tuple(LoggedEvent(e.position, change(e.event)) if e.position == position else e for e in case.events)
    return replace(case, events=events)


def say_more(words: str) -> Callable[[Event], Event]:
    return lambda event: replace(event, text=f"{event.text} {words}")


def with_field(case: Case, name: str, change: Callable[[FieldTruth], FieldTruth]) -> Case:
    return with_truth(case, fields=tuple(change(f) if f.name == name else f for f in case.truth.fields))


def filler_position(case: Case) -> int:
    """An event that carries no value."""
    taken = {f.event_id for f in case.truth.fields}
    taken |= {w.event_id for w in (*case.truth.superseded, *case.truth.distractors)}
    return next(e.position for e in case.events if e.event.event_id not in taken)


def critical(case: Case) -> FieldTruth:
    return next(field for field in case.truth.fields if field.critical)


def broken_task(case: Case) -> Case:
    return replace(case, task_text=case.task_text.replace("680", "620").replace("60 days", "90 days"))


def broken_typed_values(case: Case) -> Case:
    return with_field(case, case.truth.fields[0].name, lambda f: replace(f, value=f"{f.value}0"))


def broken_target(case: Case) -> Case:
    return with_truth(case, margin="clear" if case.truth.margin != "clear" else "at")


def broken_criticality(case: Case) -> Case:
    return with_field(case, critical(case).name, lambda f: replace(f, critical=False))


def broken_no_outcome(case: Case) -> Case:
    return with_event(case, filler_position(case), say_more("The request is denied."))


def broken_unique_anchors(case: Case) -> Case:
    return with_event(case, filler_position(case), say_more(f"Noted: {case.truth.fields[0].value}."))


def broken_distractors(case: Case) -> Case:
    def flip(wrong: WrongValue) -> WrongValue:
        return replace(wrong, changes_verdict=not wrong.changes_verdict)

    first, *rest = case.truth.distractors
    return with_truth(case, distractors=(flip(first), *rest))


def broken_supersession(case: Case) -> Case:
    stale = next(wrong for wrong in case.truth.superseded if wrong.why == "superseded")
    carrier = case.truth.field(stale.field)
    return with_event(case, carrier.position, lambda event: replace(event, links=()))


def broken_arrival(case: Case) -> Case:
    return with_event(case, 1, lambda event: replace(event, occurred_at="2027-01-01T08:00:00Z"))


def broken_phenomena(case: Case) -> Case:
    kept = tuple(wrong for wrong in case.truth.distractors if wrong.why != "injected")
    return with_truth(case, distractors=kept)


def broken_size(case: Case) -> Case:
    return with_event(case, filler_position(case), say_more("Nothing follows here. " * 200))


BROKEN: dict[str, Callable[[Case], Case]] = {
    "task": broken_task,
    "typed_values": broken_typed_values,
    "target": broken_target,
    "criticality": broken_criticality,
    "no_outcome": broken_no_outcome,
    "unique_anchors": broken_unique_anchors,
    "distractors": broken_distractors,
    "supersession": broken_supersession,
    "arrival": broken_arrival,
    "phenomena": broken_phenomena,
    "size": broken_size,
}


@pytest.mark.parametrize("case", [CASE, PAPER], ids=["mortgage-small", "claim-paper"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_obligation_is_named_and_no_other_breaks_before_it(case: Case, name: str) -> None:
    prove(case)
    with pytest.raises(ObligationError, match=f"obligation '{name}'") as caught:
        prove(BROKEN[name](case))
    assert caught.value.fields["obligation"] == name
    assert caught.value.fields["case_id"] == case.case_id


def test_every_obligation_has_a_case_that_breaks_it() -> None:
    assert set(OBLIGATIONS) - set(BROKEN) == {"tight_view"}


def test_a_small_case_whose_fields_do_not_fit_a_twentieth_is_refused() -> None:
    """A candidate far too long for the tight budget, put beside every value of a field of identifiers' size."""
    case = generate_case("claim", "small", 0)
    carrier = case.truth.field("estimate")
    longer = with_event(case, filler_position(case), say_more("Estimate $1,234,567,890."))
    assert carrier.value != "$1,234,567,890"
    with pytest.raises(ObligationError, match="'tight_view'"):
        prove(longer)


@pytest.mark.parametrize("name", ["application_number", "lock_expiration"])
def test_a_fact_that_decides_nothing_may_not_be_called_critical(name: str) -> None:
    case = generate_case("mortgage", "paper", 0)
    with pytest.raises(ObligationError, match="'criticality'"):
        prove(with_field(case, name, lambda f: replace(f, critical=True)))


@pytest.mark.parametrize(
    "words",
    [
        "Approved by the desk.",
        "We decline the loan.",
        "It exceeds what is allowed.",
        "The file is eligible.",
        "Pay in part.",
        "The decision is made.",
        "Loss outside the policy term.",
        "We will not pay this.",
    ],
)
def test_words_that_state_or_imply_an_outcome_are_found(words: str) -> None:
    with pytest.raises(ObligationError, match="'no_outcome'"):
        prove(with_event(PAPER, filler_position(PAPER), say_more(words)))


def test_a_true_value_in_another_spelling_is_found_elsewhere_too() -> None:
    field = next(f for f in PAPER.truth.fields if f.name == "deductible")
    with pytest.raises(ObligationError, match="'unique_anchors'"):
        prove(with_event(PAPER, filler_position(PAPER), say_more(f"See {field.value}.00 there.")))


def test_steps_that_are_not_those_of_the_rules_are_found() -> None:
    first, *rest = CASE.truth.steps
    wrong = Step(first.facts, first.rule, not first.holds, first.slack, first.reason)
    with pytest.raises(ObligationError, match="'target'"):
        prove(with_truth(CASE, steps=(wrong, *rest)))


def test_a_case_without_a_stale_value_that_matters_is_refused() -> None:
    stale = tuple(replace(w, amount=w.amount) for w in CASE.truth.superseded if not w.changes_verdict)
    with pytest.raises(ObligationError, match="'supersession'"):
        prove(with_truth(CASE, superseded=stale))


def test_a_wrong_value_that_is_some_fields_true_value_is_refused() -> None:
    truth: Truth = CASE.truth
    first, *rest = truth.distractors
    other = next(f for f in truth.fields if f.name != first.field and f.type == CASE.task.fields[0].type)
    moved = replace(first, field="dti", value=other.value, amount=other.amount)
    with pytest.raises(ObligationError, match="'distractors'"):
        prove(with_truth(CASE, distractors=(moved, *rest)))
