"""Anchors: what counts as a value, and that no digit escapes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projection.anchors import find_anchors, find_pattern, find_segments
from projection.errors import TaskError
from tests.projection.cases import odd_texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pay $7,250.00/mo", [("money", "$7,250.00")]),
        ("a fee of $1.2 million", [("money", "$1.2 million")]),
        ("USD 5,000 down", [("money", "USD 5,000")]),
        ("ratio 43.2%, or 43 percent", [("percent", "43.2%"), ("percent", "43 percent")]),
        ("10%-20%", [("percent", "10%"), ("percent", "20%")]),
        ("a change of -3%", [("percent", "-3%")]),
        ("on 2026-03-05.", [("date", "2026-03-05")]),
        ("March 5, 2026 and 5 March 2026", [("date", "March 5, 2026"), ("date", "5 March 2026")]),
        ("03/05/2026", [("date", "03/05/2026")]),
        ("at 2026-03-05T10:00:00Z", [("date", "2026-03-05T10:00:00Z")]),
        ("score 742, then 1,338.", [("integer", "742"), ("integer", "1,338")]),
        ("a 24-month history", [("integer", "24")]),
        ("loan LN-2026-0417 (SSN XXX-XX-1234)", [("identifier", "LN-2026-0417"), ("identifier", "XXX-XX-1234")]),
        ("the band 620-639", [("identifier", "620-639")]),
        ("acct ****8812, ref #4411", [("identifier", "****8812"), ("identifier", "#4411")]),
        ("cover 1.25x or 0.43", [("identifier", "1.25x"), ("decimal", "0.43")]),
        ("12 CFR 1002.9(a)", [("integer", "12"), ("decimal", "1002.9")]),
        ("a margin of .75 points at .5% and -.5%", [("decimal", ".75"), ("percent", ".5%"), ("percent", "-.5%")]),
        ("−$500 and $-500, \u20135%", [("money", "−$500"), ("money", "$-500"), ("percent", "\u20135%")]),
        ("₹12,34,567 or €1.000,50", [("identifier", "12,34,567"), ("identifier", "1.000,50")]),
        ("$400,000,00 or 1'000", [("identifier", "400,000,00"), ("identifier", "1'000")]),
        ("no numeral at all", []),
    ],
)
def test_a_value_is_read_with_its_type(text: str, expected: list[tuple[str, str]]) -> None:
    assert [(a.kind, a.value) for a in find_anchors(text)] == expected


@given(odd_texts | st.text(alphabet="0123456789 .,-/:$%#*abcX()[]\n", max_size=60))
def test_every_ascii_digit_lies_in_exactly_one_anchor(text: str) -> None:
    anchors = find_anchors(text)
    covered = [index for a in anchors for index in range(a.start, a.end)]
    assert len(covered) == len(set(covered))
    assert {i for i, char in enumerate(text) if char in "0123456789"} <= set(covered)
    assert all(text[a.start : a.end] == a.value for a in anchors)


def test_a_pattern_finds_only_matches_that_stand_alone() -> None:
    assert [a.value for a in find_pattern("Exclusion 7, Exclusion 12b, Exclusion 3", r"Exclusion \d+")] == [
        "Exclusion 7",
        "Exclusion 3",
    ]


def test_a_pattern_that_backtracks_for_ever_is_refused() -> None:
    with pytest.raises(TaskError, match="does not backtrack"):
        find_pattern("a" * 5000 + "!", r"(?:a|aa)+$", 7)


def test_a_text_value_is_never_cut_inside_a_number() -> None:
    text = "The deductible is 2.0% of $27,350.00, from 10:30 on. Occupancy: primary residence"
    values = [a.value for a in find_segments(text)]
    assert values == ["The deductible is 2.0% of $27,350.00", "from 10:30 on", "Occupancy", "primary residence"]


@pytest.mark.parametrize(
    "pattern", ["(?:(?:(?:a{1000}){1000}){1000}){1000}", "(?1)(?<a>(?&a))", "(?R)", r"12\K34", "(?P>a)(?<a>b)"]
)
def test_a_pattern_that_could_eat_time_or_memory_is_refused_unread(pattern: str) -> None:
    with pytest.raises(TaskError):
        find_pattern("was 1234", pattern)
