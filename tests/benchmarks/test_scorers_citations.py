"""Citations, invented values, omissions and budget: what an auditor counts."""

from __future__ import annotations

from fractions import Fraction

from baseline.memory import TextMemory
from benchmarks.scorers.citations import CitationScores, score_citations
from projection.view import verify_view
from tests.benchmarks.scored_case import VIEW_TEXT, scored_case

CASE = scored_case()
ZERO, ONE = Fraction(0), Fraction(1)


def of_text(text: str, budget_chars: int = 1_000) -> CitationScores:
    return score_citations(CASE, TextMemory(text), text, budget_chars)


def test_a_verified_view_cites_rightly_and_invents_nothing() -> None:
    view = verify_view(VIEW_TEXT, CASE.events, CASE.task, len(VIEW_TEXT))
    found = score_citations(CASE, view, VIEW_TEXT, len(VIEW_TEXT))
    assert (found.citation_precision, found.citation_recall, found.hallucinated_rate) == (ONE, ONE, ZERO)
    assert found.budget_use == 1


def test_a_citation_of_an_event_that_does_not_exist_supports_nothing() -> None:
    assert of_text("The loss is $11,500 [9].").citation_precision == 0


def test_a_citation_of_the_wrong_event_supports_nothing_and_recalls_nothing() -> None:
    found = of_text("The loss is $11,500 [4].")
    assert (found.citation_precision, found.citation_recall) == (ZERO, ZERO)


def test_one_value_of_two_that_the_event_lacks_makes_the_pair_unsupported() -> None:
    assert of_text("The loss is $11,500 and the score 700 [3].").citation_precision == 0


def test_each_citation_of_a_statement_is_judged_by_itself() -> None:
    assert of_text("The loss is $11,500 [3] [4].").citation_precision == Fraction(1, 2)


def test_an_uncited_memory_recalls_nothing_and_has_no_precision_to_report() -> None:
    found = of_text("The loss is $11,500. The score is 700.")
    assert (found.citation_precision, found.citation_recall) == (None, ZERO)


def test_invented_values_are_counted_among_all_values() -> None:
    found = of_text("Loss $11,500, score 700, policy PN-1234 and a fee of $77.")
    assert found.hallucinated_rate == Fraction(1, 4)


def test_part_of_a_value_of_the_log_is_an_invented_value() -> None:
    assert of_text("Loss $1,500 under PN-123.").hallucinated_rate == 1


def test_another_spelling_of_a_value_and_a_value_of_the_task_are_not_invented() -> None:
    assert of_text("Loss $11500.00, over the limit of $9,000 of 2026-01-02.").hallucinated_rate == 0


def test_numbers_of_a_list_and_citations_are_no_values() -> None:
    assert of_text("1. Loss $11,500 [3]\n2) Score 700 [4]").hallucinated_rate == 0


def test_a_memory_without_values_has_nothing_to_invent_and_leaves_everything_out() -> None:
    found = of_text("Nothing is known.")
    assert (found.hallucinated_rate, found.omission_rate) == (None, ONE)


def test_omissions_are_the_logs_distinct_values_that_are_missing() -> None:
    log_values = {"PN-1234", "$12,000", "$11,000", "655", "$11,500", "700"}
    assert of_text("$11,500 and 700").omission_rate == Fraction(4, len(log_values))
    assert of_text("\n".join(event.text for event in CASE.events)).omission_rate == 0


def test_a_memory_over_its_budget_shows_as_more_than_one() -> None:
    assert of_text("x" * 30, budget_chars=20).budget_use == Fraction(3, 2)
