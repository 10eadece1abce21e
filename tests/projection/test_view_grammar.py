"""The closed world: whatever sentence a model picks, the view verifies and keeps its budget."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from projection.anchors import find_anchors
from projection.errors import BudgetTooSmallError, RequestError, VerificationError
from projection.events import LoggedEvent
from projection.view import find_omissions, parse_view, verify_view
from projection.view_grammar import short_values
from tests.projection.cases import EVENTS, grammar_of, log_of, odd_logs, task
from tests.projection.sentences import sentences

relaxed = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)


def least_budget(events: list[LoggedEvent], slot_candidates: int | None = 3) -> int:
    with pytest.raises(BudgetTooSmallError) as caught:
        grammar_of(events, task(), 1, slot_candidates)
    value = caught.value.fields["min_budget_chars"]
    assert isinstance(value, int)
    return value


@given(st.data(), odd_logs | st.just(EVENTS), st.integers(0, 3000), st.sampled_from([1, 3, None]))
@relaxed
def test_every_sentence_verifies_and_keeps_the_budget(
    data: st.DataObject, events: list[LoggedEvent], extra: int, slot_candidates: int | None
) -> None:
    budget = least_budget(events, slot_candidates) + extra
    grammar = grammar_of(events, task(), budget, slot_candidates)
    text = data.draw(sentences(grammar))
    view = verify_view(text, events, task(), budget)
    assert len(text) <= grammar.max_chars <= budget
    assert [fact.name for fact in view.facts] == [field.name for field in task().fields]


def test_the_longest_sentence_can_be_reached() -> None:
    """Else the budget would be kept by a loose bound and waste characters."""
    grammar = grammar_of(EVENTS, task(), 1338)
    longest = {name: grammar.longest(node) for name, node in grammar.rules.items()}
    assert longest["root"] == grammar.max_chars
    assert longest["statement"] == len("Although ") + 36 + 12


def test_the_least_budget_works_and_one_less_does_not() -> None:
    least = least_budget(EVENTS)
    assert grammar_of(EVENTS, task(), least).max_chars == least
    with pytest.raises(BudgetTooSmallError, match=str(least)):
        grammar_of(EVENTS, task(), least - 1)


def test_a_tight_budget_leaves_sections_empty_before_it_is_refused() -> None:
    """First COMPLIANCE, then REASONING; the fields' lines are always there."""
    grammars = [grammar_of(EVENTS, task(), budget).ebnf for budget in range(least_budget(EVENTS), 700)]
    roots = [next(row for row in ebnf.splitlines() if row.startswith("root")) for ebnf in grammars]
    sections = list(dict.fromkeys(("line" in root, "ruling" in root) for root in roots))
    assert sections == [(False, False), (True, False), (True, True)]
    assert all(f"slot{len(task().fields) - 1}" in root for root in roots)


def test_a_larger_budget_holds_more_lines() -> None:
    grammars = [grammar_of(EVENTS, task(), budget) for budget in (700, 5352)]
    assert grammars[0].max_chars < grammars[1].max_chars
    assert "- [1] Stated monthly income $7,250.00" in grammars[1].ebnf


def test_a_case_without_events_is_refused() -> None:
    with pytest.raises(RequestError, match="no events"):
        grammar_of([], task(), 1338)


def test_the_grammar_is_a_function_of_its_arguments() -> None:
    one, two = (grammar_of(EVENTS, task(), 1338) for _ in range(2))
    assert one.ebnf == two.ebnf
    assert one.digest != grammar_of(EVENTS, task(), 1339 + 400).digest


def test_unknown_is_always_possible() -> None:
    grammar = grammar_of(log_of("nothing to see"), task(), 1338)
    assert grammar.ebnf.count('"unknown"') == len(task().fields)


GOOD = """FACTS
- monthly income: $6,100.00 [2]
- debt-to-income ratio: 46.2% [3]
- closing date: unknown
- coverage ratio: 1.25x [2]
- [2] Closing date 2026-05-08, coverage ratio 1.25x.
REASONING
- [2] The history of months has 24.
COMPLIANCE
- [3] Policy 4.2: the limit is passed
"""


def test_a_view_is_read_from_its_text() -> None:
    view = verify_view(GOOD, EVENTS, task(), 1338)
    assert [(f.name, f.value, f.position) for f in view.facts] == [
        ("income", "$6,100.00", 2),
        ("dti", "46.2%", 3),
        ("closing", None, None),
        ("ratio", "1.25x", 2),
    ]
    assert [(line.number, line.section, line.position) for line in view.lines[4:]] == [
        (5, "FACTS", 2),
        (6, "REASONING", 2),
        (7, "COMPLIANCE", 3),
    ]
    assert view.lines[6].provision_id == "Policy 4.2"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("$6,100.00 [2]", "$6,100.00 [1]", "no money of event"),
        ("$6,100.00 [2]", "$6,100.00 [9]", "does not have"),
        ("$6,100.00 [2]", "$6,100 [2]", "no money of event"),
        ("$6,100.00 [2]", "46.2% [3]", "no money of event"),
        ("$6,100.00 [2]", "$6,100.00", "neither a cited value nor unknown"),
        ("46.2% [3]\n", "6.2% [3]\n", "no percent of event"),
        ("has 24", "has 25", "does not stand"),
        ("- [2] The", "- [3] The", "does not stand"),
        ("- [2] The", "- The", "free line"),
        ("- [2] The", "- [7] The", "does not have"),
        ("- [2] Closing", "- [1] Closing", "no sentence of event"),
        ("ratio 1.25x.", "ratio 1.25x", "no sentence of event"),
        ("has 24", "has \u00bd", "does not stand as a value"),
        ("has 24", "has \u0662", "does not stand as a value"),
        ("Policy 4.2:", "Policy 9.9:", "provision"),
        ("- closing date: unknown\n", "", "closing date"),
        ("REASONING\n", "", "wrong place"),
        ("COMPLIANCE\n", "COMPLIANCE\nCOMPLIANCE\n", "wrong place"),
        ("FACTS\n", "FACTS\nREASONING\n", "wrong place"),
        ("passed\n", "passed", "line feed"),
    ],
)
def test_a_view_that_breaks_the_closed_world_is_found(old: str, new: str, why: str) -> None:
    assert old in GOOD
    with pytest.raises(VerificationError, match=why):
        verify_view(GOOD.replace(old, new, 1), EVENTS, task(), 1338)


def test_a_view_over_its_budget_is_found() -> None:
    with pytest.raises(VerificationError, match="budget"):
        verify_view(GOOD, EVENTS, task(), len(GOOD) - 1)
    assert verify_view(GOOD, EVENTS, task(), len(GOOD)).num_chars == len(GOOD)


def test_omissions_are_the_anchors_that_the_view_leaves_out() -> None:
    omitted = {o.value: o.positions for o in find_omissions(parse_view(GOOD, task()), EVENTS)}
    assert omitted == {"$7,250.00": (1,), "38.5%": (1,), "****8812": (3,), "99": (3,), "$1.00": (3,)}


def test_a_value_that_reads_otherwise_on_its_own_is_not_offered_to_own_words() -> None:
    """In the event it is part of one identifier; standing alone it would be a date, and the view would not verify."""
    assert short_values(find_anchors("\u216712/31/2510:30 and 742")) == ["742"]
