"""Candidates: which values a slot offers, in which order, and that the true one is among them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projection.candidates import Candidate, rank_candidates, words
from projection.events import Event, Link, LoggedEvent
from projection.grammar import Alt, Lit, Node, Seq
from projection.task import Task, parse_task
from tests.projection.cases import grammar_of, log_of, odd_logs, task
from tests.projection.examples import example, shipped_slot_candidates

ONE_FIELD = """
question: Decide.
fields:
  - {{name: value, type: {type}, description: {description}{pattern}}}
outcomes: [PAY]
"""


def one_field(type_: str, description: str, pattern: str | None = None) -> Task:
    stated = "" if pattern is None else f", pattern: '{pattern}'"
    return parse_task(ONE_FIELD.format(type=type_, description=description, pattern=stated))


def ranked(
    events: list[LoggedEvent], type_: str, description: str, limit: int | None = None, pattern: str | None = None
) -> list[tuple[str, int]]:
    found = rank_candidates(events, one_field(type_, description, pattern), limit)["value"]
    return [(candidate.value, candidate.position) for candidate in found]


def test_the_value_beside_the_words_of_the_description_comes_first() -> None:
    events = log_of("Overtime $1,120.00 and base pay of $6,450.00.", "Overtime was $900.00.")
    assert ranked(events, "money", "base pay") == [("$6,450.00", 1), ("$1,120.00", 1), ("$900.00", 2)]


def test_rare_words_count_more_than_common_ones() -> None:
    events = log_of("The loan amount is $1.00.", "The loan fee is $2.00.", "The loan cost is $3.00.")
    assert ranked(events, "money", "loan fee")[0] == ("$2.00", 2)


def test_plural_and_singular_are_one_word() -> None:
    assert words("Reserves_after ratios; the pass at 5 a") == ["reserve", "after", "ratio", "the", "pass", "at"]
    events = log_of("Obligations are $7.00.", "Rent is $8.00.")
    assert ranked(events, "money", "monthly obligation", limit=1) == [("$7.00", 1)]


def test_a_later_event_wins_between_equals() -> None:
    events = log_of("Income is $1.00.", "Income is $2.00.")
    assert ranked(events, "money", "income") == [("$2.00", 2), ("$1.00", 1)]


def test_a_superseded_event_counts_half() -> None:
    texts = ("Income $1.00.", "Income, as it was put down there, $2.00.")
    assert ranked(log_of(*texts), "money", "income")[0] == ("$1.00", 1)
    assert ranked(log_of(*texts, links=[(2, "supersedes", 1)]), "money", "income")[0] == ("$2.00", 2)


@pytest.mark.parametrize(("link", "first"), [("supersedes", 2), ("contradicts", 2), ("supports", 3), (None, 3)])
def test_what_corrects_another_document_comes_before_what_only_speaks_of_the_same(link: str | None, first: int) -> None:
    """The third says what the second says, of another person, and nobody corrected anything with it."""
    texts = ("Opened.", "Income $2.00.", "Income $3.00, of the neighbour.")
    links = [] if link is None else [(2, link, 1)]
    assert ranked(log_of(*texts, links=links), "money", "income")[0][1] == first


def spoken(*types: str, links: Mapping[int, tuple[Link, ...]]) -> list[LoggedEvent]:
    """Events of these types, each with an income of as many dollars as its position."""
    return [
        LoggedEvent(n, Event(f"e{n}", type_, "test", None, f"Income ${n}.00.", links.get(n, ())))
        for n, type_ in enumerate(types, start=1)
    ]


def first_income(events: list[LoggedEvent], party_statements: list[str]) -> str:
    asked = one_field("money", "income").model_copy(update={"party_statements": party_statements})
    return rank_candidates(events, asked, None)["value"][0].value


def test_what_a_party_states_comes_after_a_document_however_it_is_linked() -> None:
    insists = {2: (Link("contradicts", "e1"),)}
    events = spoken("tax.transcript", "email", links=insists)
    assert first_income(events, []) == "$2.00"
    assert first_income(events, ["email"]) == "$1.00"


def test_a_party_supersedes_no_document() -> None:
    events = spoken("tax.transcript", "email", links={2: (Link("supersedes", "e1"),)})
    assert first_income(events, []) == "$2.00"
    assert first_income(events, ["email"]) == "$1.00"


def test_a_correction_that_was_corrected_itself_counts_half() -> None:
    events = spoken("a", "b", "c", links={2: (Link("supersedes", "e1"),), 3: (Link("supersedes", "e2"),)})
    assert first_income(events, []) == "$3.00"


def test_a_superseded_event_that_says_more_still_wins() -> None:
    """Half the score, not none: most of a corrected document still holds."""
    events = log_of("The appraised market value is $5.00.", "See $9.00 in the note.", links=[(2, "supersedes", 1)])
    assert ranked(events, "money", "appraised market value", limit=1) == [("$5.00", 1)]


@pytest.mark.parametrize(
    ("type_", "values", "kept"),
    [
        ("money", ["$5,000", "$5000", "$5,000.00"], 1),
        ("money", ["$1.50", "$1.5"], 1),
        ("money", ["$ 5.00", "$5"], 1),
        ("money", ["USD 5,000", "USD 5,000.00"], 1),
        ("money", ["$5,000", "€5,000", "USD 5,000"], 3),
        ("money", ["$5", "$50", "$500"], 3),
        ("money", ["$5", "-$5"], 2),
        ("percent", ["46.20%", "46.2%", "46.2 %"], 1),
        ("percent", ["46.2%", "46.2 percent"], 2),
        ("percent", ["10%", "100%"], 2),
        ("integer", ["1,338", "1338"], 1),
        ("date", ["2026-03-05", "March 5, 2026"], 2),
        ("identifier", ["A-10", "A-1"], 2),
    ],
)
def test_equal_amounts_are_one_value(type_: str, values: list[str], kept: int) -> None:
    assert len(ranked(log_of(*(f"Sum {value} paid" for value in values)), type_, "sum")) == kept


def test_section_numbers_are_not_amounts() -> None:
    assert len(ranked(log_of("Section 4.1 here", "Section 4.10 here"), "text", "section", pattern=r"\d\.\d+")) == 2


def test_an_equal_amount_is_cited_from_its_best_place() -> None:
    events = log_of("Verified income is $5,000.00.", "Rent is $5,000.")
    assert ranked(events, "money", "verified income") == [("$5,000.00", 1)]


def test_a_value_without_a_shared_word_is_not_offered_under_a_limit() -> None:
    events = log_of("Rent is $700.00.", "Income is $900.00.")
    assert ranked(events, "money", "income", limit=5) == [("$900.00", 2)]
    assert ranked(events, "money", "appraised worth", limit=5) == []


def test_without_a_limit_every_value_of_the_type_is_offered() -> None:
    events = log_of("Rent is $700.00, 5% of it on 2026-01-01.", "Income is $900.00.")
    assert ranked(events, "money", "appraised worth") == [("$900.00", 2), ("$700.00", 1)]


def test_the_type_of_the_event_counts_too() -> None:
    events = [
        LoggedEvent(position, Event(f"e{position}", type_, "test", None, f"It is ${position}.00."))
        for position, type_ in enumerate(["income.paystub", "rent_roll"], start=1)
    ]
    assert ranked(events, "money", "rent", limit=5) == [("$2.00", 2)]
    assert ranked(events, "money", "income", limit=5) == [("$1.00", 1)]


def test_a_pattern_replaces_the_type() -> None:
    events = log_of("Under Exclusion 7 and Exclusion 12b, reserves 3.4 months, Exclusion 4.")
    assert sorted(ranked(events, "text", "exclusion", pattern=r"Exclusion \d+")) == [
        ("Exclusion 4", 1), ("Exclusion 7", 1)
    ]  # fmt: skip


def test_a_long_value_is_not_offered() -> None:
    assert ranked(log_of("Account A" + "1" * 80, "Account B1"), "identifier", "account") == [("B1", 2)]


@given(odd_logs, st.sampled_from([1, 2, 3]))
@settings(max_examples=40)
def test_a_limit_only_cuts_the_list(events: list[LoggedEvent], limit: int) -> None:
    everything = rank_candidates(events, task(), None)
    for name, few in rank_candidates(events, task(), limit).items():
        assert few == tuple(c for c in everything[name] if c.score > 0)[:limit]


@given(odd_logs)
@settings(max_examples=40)
def test_scores_are_whole_numbers_and_the_order_is_settled_by_them(events: list[LoggedEvent]) -> None:
    """Floats would make a ranking differ between machines."""
    ranking = rank_candidates(events, task(), None)
    assert rank_candidates(list(events), task(), None) == ranking
    for found in ranking.values():
        assert all(type(candidate.score) is int for candidate in found)
        assert list(found) == sorted(found, key=lambda c: (-c.score, -c.position, -len(c.value), c.value))


each_example = pytest.mark.parametrize("name", ["mortgage", "claim"])


def is_same_value(one: str, other: str) -> bool:
    """Equal as written, or as amounts of one unit."""
    return one == other or (_unit(one) == _unit(other) and _number(one) == _number(other) is not None)


def _unit(value: str) -> str:
    return re.sub(r"[\d.,]", "", value)


def _number(value: str) -> Decimal | None:
    digits = re.sub(r"[^\d.]", "", value)
    return Decimal(digits) if re.fullmatch(r"[$€£]?[\d,]+(\.\d+)?%?", value) else None


@each_example
def test_the_true_value_of_every_field_is_offered(name: str) -> None:
    case = example(name)
    offered = rank_candidates(case.events, case.task, shipped_slot_candidates())
    missed = {
        field: [candidate.value for candidate in offered[field]]
        for field, value in case.true_values.items()
        if value is not None and not any(is_same_value(value, candidate.value) for candidate in offered[field])
    }
    assert missed == {}


@each_example
def test_the_first_candidate_is_mostly_the_true_value(name: str) -> None:
    """Measured, not promised: without any model, 8 slots of 10 or more."""
    case = example(name)
    first = rank_candidates(case.events, case.task, 1)
    true = {field: value for field, value in case.true_values.items() if value is not None}
    hits = [field for field, value in true.items() if any(is_same_value(value, c.value) for c in first[field])]
    assert len(hits) >= 0.8 * len(true), sorted(set(true) - set(hits))


@each_example
@pytest.mark.parametrize("limit", [1, 2, None])
def test_unknown_is_always_offered(name: str, limit: int | None) -> None:
    case = example(name)
    grammar = grammar_of(case.events, case.task, 5000, limit)
    for index, field in enumerate(case.task.fields):
        slot = grammar.rules[f"slot{index}"]
        offered = rank_candidates(case.events, case.task, limit)[field.name]
        assert _options(slot) == [*(as_line(candidate) for candidate in offered), "unknown"]


def as_line(candidate: Candidate) -> str:
    return f"{candidate.value} [{candidate.position}]"


def _options(slot: Node) -> list[str]:
    assert isinstance(slot, Seq)
    choice = slot.parts[1]
    assert isinstance(choice, Alt)
    return [option.text for option in choice.options if isinstance(option, Lit)]
