"""What counts as the same value, and where a text states one."""

from __future__ import annotations

import pytest

from benchmarks.scorers.text import find_values, is_same_value, read_statements, states_value
from projection.task import FieldType, TaskField


def field(type: FieldType, pattern: str | None = None) -> TaskField:
    return TaskField(name="f", type=type, description="the field", pattern=pattern)


@pytest.mark.parametrize(
    ("type_", "one", "other"),
    [
        ("money", "$5,000", "$5000.00"),
        ("money", "$1.5 million", "$1,500,000"),
        ("money", "$15k", "$15,000"),
        ("money", "USD 20", "$20.00"),
        ("percent", "45%", "45.0 percent"),
        ("integer", "1,200", "1200"),
        ("date", "2026-03-05", "March 5, 2026"),
        ("date", "3/5/2026", "5 Mar 2026"),
        ("date", "2026-03-05T16:20:00Z", "Mar. 5, 2026"),
    ],
)
def test_spellings_of_one_value_are_equal(type_: FieldType, one: str, other: str) -> None:
    assert is_same_value(field(type_), one, other)
    assert states_value(field(type_), f"It is {one}, they say.", other)


@pytest.mark.parametrize(
    ("type_", "one", "other"),
    [
        ("money", "$5,000", "€5,000"),
        ("money", "$5,000", "$-5,000"),
        ("money", "$5,000", "$5,000.01"),
        ("percent", "4.5%", "45%"),
        ("date", "2026-03-05", "2026-05-03"),
        ("identifier", "LN-2026-0417", "LN-2026-0471"),
        ("identifier", "LN-1", "ln-1"),
    ],
)
def test_values_that_differ_are_not_equal(type_: FieldType, one: str, other: str) -> None:
    assert not is_same_value(field(type_), one, other)
    assert not states_value(field(type_), f"It is {one}, they say.", other)


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("money", "a limit of $11,000", "$1,000"),
        ("money", "a limit of $1,000,000", "$1,000"),
        ("money", "a score of 1,000", "$1,000"),
        ("integer", "an amount of $695", "695"),
        ("integer", "file 695-2", "695"),
        ("integer", "a share of 695%", "695"),
        ("percent", "a share of 145%", "45%"),
        ("identifier", "claim CL-12345", "CL-1234"),
        ("date", "filed 2026-03-051", "2026-03-05"),
        ("text", "a PARTIAL PAYMENT", "PAY"),
        ("text", "PAYABLE", "PAY"),
    ],
)
def test_part_of_another_value_is_no_value(type_: FieldType, text: str, value: str) -> None:
    assert not states_value(field(type_), text, value)


def test_a_house_pattern_decides_what_is_a_value() -> None:
    months = field("text", r"\d{1,2}\.\d months")
    assert find_values(months, "Reserves 3.4 months, once 6.2 months.") == ["3.4 months", "6.2 months"]
    assert states_value(months, "Reserves 3.4 months.", "3.4 months")
    assert not states_value(months, "Reserves 13.4 months.", "3.4 months")


def test_statements_carry_the_citations_that_stand_in_them() -> None:
    found = read_statements(["- Income is $5.20 [3]. Debt is $3 [4] [7].", "Nothing here; really"], [])
    assert [(statement.line, statement.words.split(), set(statement.cited)) for statement in found] == [
        (1, ["-", "Income", "is", "$5.20", "."], {3}),
        (1, ["Debt", "is", "$3", "."], {4, 7}),
        (2, ["Nothing", "here"], set()),
        (2, ["really"], set()),
    ]


def test_what_a_line_begins_with_is_cited_by_all_of_its_sentences_and_by_the_rest_of_its_event() -> None:
    lines = ["- [3] Income is $5. Debt [9] is $3.", "[12] note 2026-01-02: One.", "| Two. Three [99]", "Four"]
    found = read_statements(lines, [])
    assert [set(statement.cited) for statement in found] == [{3}, {3}, {12}, {12}, {12}, set()]


def test_neither_a_citation_nor_a_rule_is_read_as_a_value() -> None:
    (statement,) = read_statements(["- [695] 12 CFR 1002.9(b)(2): score is 700"], ["12 CFR 1002.9(b)(2)"])
    assert find_values(field("integer"), statement.words) == ["700"]
    assert statement.rules == {"12 CFR 1002.9(b)(2)"}


@pytest.mark.parametrize("text", ["Policy 4.21 holds", "Policy 4.2.1 holds", "HousePolicy 4.2", "Policy 4"])
def test_another_rule_is_not_this_rule(text: str) -> None:
    assert read_statements([text], ["Policy 4.2"])[0].rules == frozenset()


@pytest.mark.parametrize("text", ["see Policy 4.2.", "Policy 4.2: holds", "(Policy 4.2)"])
def test_a_rule_is_found_where_it_stands_by_itself(text: str) -> None:
    assert read_statements([text], ["Policy 4.2"])[0].rules == {"Policy 4.2"}
