"""The four axes: what scores, and above all what must score 0."""

from __future__ import annotations

from fractions import Fraction

import pytest

from baseline.memory import TextMemory
from benchmarks.scorers.axes import ABSTAIN, PARSE_ERROR, AxisScores, score_axes, score_eda
from projection.view import parse_view, verify_view
from tests.benchmarks.scored_case import DECISION_TEXT, VIEW_TEXT, decided, scored_case

CASE = scored_case()
ONE, THIRD = Fraction(1), Fraction(1, 3)


def of_view(view_text: str = VIEW_TEXT, decision_text: str | None = DECISION_TEXT) -> AxisScores:
    view = verify_view(view_text, CASE.events, CASE.task, 10_000)
    return score_axes(CASE, view, decided(CASE, view, decision_text) if decision_text else None)


def of_text(text: str, decision_text: str | None = None) -> AxisScores:
    memory = TextMemory(text)
    return score_axes(CASE, memory, decided(CASE, memory, decision_text) if decision_text else None)


def test_a_right_view_and_decision_score_one_on_every_axis() -> None:
    found = of_view()
    assert {found.frp, found.frp_text, found.frp_present, found.rcs, found.eda, found.crr} == {ONE}


def test_the_same_text_scores_the_same_as_a_memory_without_a_form() -> None:
    assert of_text(VIEW_TEXT, DECISION_TEXT) == of_view()


# FRP


@pytest.mark.parametrize(
    ("decision_text", "recovered", "why"),
    [
        (None, 0, "no decision, no memo"),
        ("Outcome: PAY\nRationale: The loss is fine\n", 0, "nothing is cited and nothing said"),
        ("Outcome: DENY\nReason: R10 [L1]\nRationale: The loss is over the limit\n", 1, "the line that is cited"),
        ("Outcome: DENY\nReason: R10 [L1] [L2]\nRationale: The loss is over the limit\n", 2, "both lines"),
        ("Outcome: PAY\nRationale: The loss is $11,500\n", 1, "the rationale says it"),
        ("Outcome: DENY\nReason: R10 [L1]\nRationale: The loss is $12,000\n", 1, "the labelled line decides"),
    ],
)
def test_the_memo_holds_what_the_decision_shows(decision_text: str | None, recovered: int, why: str) -> None:
    memory = TextMemory(VIEW_TEXT + "Claimed was $12,000\n")
    decision = decided(CASE, memory, decision_text) if decision_text else None
    assert score_axes(CASE, memory, decision).frp_memo == recovered * THIRD, why


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("The loss is $12,000", "superseded"),
        ("The loss is $11,500 where $12,000 was paid. It is $12,000", "the old value is the last"),
        ("The loss is $111,500", "part of a longer number"),
        ("[4] The loss is $11,500", "another event is cited"),
    ],
)
def test_memos_that_must_not_count_as_the_loss_recovered(line: str, why: str) -> None:
    memory = TextMemory(line)
    decision = decided(CASE, memory, "Outcome: DENY\nReason: R10 [L1]\nRationale: The loss is over the limit\n")
    assert score_axes(CASE, memory, decision).frp_memo == 0, why


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("- verified loss: unknown", "unknown is no value"),
        ("- verified loss: $12,000 [1]", "the superseded value"),
        ("- verified loss: $12,000 [3]", "the superseded value, cited from the event that replaces it"),
        ("- verified loss: $11,000 [2]", "the neighbour's value"),
    ],
)
def test_a_slot_with_another_value_is_not_recovered(line: str, why: str) -> None:
    found = of_view(VIEW_TEXT.replace("- verified loss: $11,500 [3]", line))
    assert "loss" not in found.recovered, why
    assert found.frp == 2 * THIRD


def test_the_right_value_with_the_wrong_citation_is_not_recovered_in_a_view() -> None:
    view = parse_view(VIEW_TEXT.replace("$11,500 [3]\n", "$11,500 [4]\n"), CASE.task)
    assert "loss" not in score_axes(CASE, view, None).recovered


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "an empty memory"),
        ("The loss is known.", "words without the value"),
        ("The verified loss is $12,000.", "the superseded value"),
        ("The verified loss is $11,500. The loss is $12,000.", "the superseded value has the last word"),
        ("verified loss: $11,500\nverified loss: $12,000", "so it has in labelled lines"),
        ("The verified loss is $11,500 [2].", "the right number with the wrong citation"),
        ("The verified loss is $11,5000 or $111,500.", "parts of other numbers"),
        ("The verified loss is 11,500.", "a number that is no amount"),
        ("The verified loss is €11,500.", "another currency"),
        ("verified loss: $11,000. The claim says $11,500.", "a labelled line decides"),
    ],
)
def test_texts_that_must_not_count_as_the_loss_recovered(text: str, why: str) -> None:
    assert "loss" not in of_text(text).recovered, why


@pytest.mark.parametrize(
    "text",
    [
        "The verified loss is $11,500.",
        "The verified loss is $11,500.00 [3].",
        "Claimed $12,000 at first. The loss is $11,500 [1] [3].",
        "verified loss: $12,000, corrected to $11,500\nThe claimed loss was $12,000.",
        "The loss of $12,000 was replaced by $11,500.",
        "[3] note 2026-01-02: Adjuster.\n| The verified loss is $11,500.",
    ],
)
def test_texts_that_count_as_the_loss_recovered(text: str) -> None:
    assert "loss" in of_text(text).recovered


def test_a_true_value_beside_a_later_old_one_is_present_and_not_recovered() -> None:
    found = of_text("The verified loss is $11,500. The loss is $12,000.")
    assert (found.frp_present, found.frp) == (THIRD, Fraction(0))


def test_an_integer_is_not_read_from_a_citation_or_a_longer_number() -> None:
    assert of_text("See [700], $700, 1,700, 700% and 700-A.").frp == 0


# EDA


@pytest.mark.parametrize(
    ("said", "true"),
    [
        ("", "PAY"),
        ("PAY", "PARTIAL_PAY"),
        ("PARTIAL_PAY", "PAY"),
        ("pay", "PAY"),
        ("PAY ", "PAY"),
        (PARSE_ERROR, "PAY"),
        (ABSTAIN, "PAY"),
        (PARSE_ERROR, PARSE_ERROR),
        (ABSTAIN, ABSTAIN),
        ("APPROVE DENY", "DENY"),
    ],
)
def test_nothing_but_the_whole_true_outcome_is_right(said: str, true: str) -> None:
    assert score_eda(said, true) == 0


def test_the_true_outcome_is_right() -> None:
    assert score_eda("PARTIAL_PAY", "PARTIAL_PAY") == 1


# CRR


@pytest.mark.parametrize(
    ("decision_text", "why"),
    [
        (None, "no decision"),
        ("Outcome: PARTIAL_PAY\nReason: R10 [L1]\nRationale: The loss is high\n", "right for another outcome"),
        ("Outcome: DENY\nReason: R11 [L1]\nRationale: The loss is high\n", "another reason"),
        ("Outcome: DENY\nReason: R01 [L2]\nRationale: The loss is high\n", "R01 is not R10"),
        ("Outcome: DENY\nReason: R10 [L2]\nRationale: The loss is high\n", "the right reason, resting on the score"),
        ("Outcome: DENY\nReason: R10 [L3]\nRationale: The loss is high\n", "the right reason, resting on the policy"),
    ],
)
def test_decisions_that_reconstruct_nothing(decision_text: str | None, why: str) -> None:
    assert of_view(VIEW_TEXT, decision_text).crr == 0, why


def test_a_reason_too_many_costs_half() -> None:
    text = "Outcome: DENY\nReason: R01 [L2]\nReason: R10 [L1]\nRationale: The loss is high\n"
    assert of_view(VIEW_TEXT, text).crr == Fraction(1, 2)


def test_a_right_reason_that_rests_on_a_superseded_value_is_not_backed() -> None:
    stale = VIEW_TEXT.replace("- verified loss: $11,500 [3]", "- verified loss: $12,000 [1]")
    assert of_view(stale).crr == 0


def test_where_no_reason_is_required_only_the_right_outcome_without_one_scores() -> None:
    case = scored_case("PAY", ())
    view = verify_view(VIEW_TEXT, case.events, case.task, 10_000)
    paid = decided(case, view, "Outcome: PAY\nRationale: The loss is low\n")
    assert score_axes(case, view, paid).crr == 1
    assert score_axes(case, view, decided(case, view)).crr == 0
    assert score_axes(case, view, None).crr == 0


# RCS


def test_without_a_decision_there_is_no_chain() -> None:
    assert of_view(VIEW_TEXT, None).rcs == 0


def test_facts_alone_are_no_chain() -> None:
    facts = "verified loss: $11,500 [3]\ncredit score: 700 [4]"
    assert of_text(facts, "Outcome: PARTIAL_PAY\nReason: R11 [L1]\nRationale: The loss is high\n").rcs == 0


def test_a_rule_that_is_named_for_another_event_is_not_applied() -> None:
    swapped = VIEW_TEXT.replace("[3] Policy 4.2: The loss is too high.", "[4] Policy 4.2: The loss is too high.")
    swapped = swapped.replace("[4] Policy 3.1: The score is enough of 700", "[3] Policy 3.1: The score is enough.")
    assert of_view(swapped, "Outcome: DENY\nReason: R11 [L3]\nRationale: The loss is high\n").rcs == 0


def test_a_rule_without_its_fact_is_not_applied() -> None:
    stale = VIEW_TEXT.replace("- verified loss: $11,500 [3]", "- verified loss: $12,000 [1]")
    assert of_view(stale).rcs == Fraction(2, 4)  # the score's step stands, the loss's does not


def test_the_wrong_outcome_breaks_every_conclusion_and_leaves_the_facts_links() -> None:
    text = "Outcome: PARTIAL_PAY\nReason: R10 [L1]\nRationale: The loss is high\n"
    assert of_view(VIEW_TEXT, text).rcs == Fraction(2, 4)


def test_a_reason_code_on_the_right_line_applies_its_rule_without_a_compliance_line() -> None:
    facts = "verified loss: $11,500 [3]\ncredit score: 700 [4]"
    assert of_text(facts, DECISION_TEXT).rcs == Fraction(2, 4)


def test_a_missed_limit_whose_reason_is_not_given_is_not_concluded() -> None:
    text = "Outcome: DENY\nReason: R11 [L1]\nRationale: The loss is high\n"
    assert of_view(VIEW_TEXT, text).rcs == Fraction(3, 4)
