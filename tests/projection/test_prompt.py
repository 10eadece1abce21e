"""Prompts: what the model reads, and that nothing in it can pass for something else."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.scripted_engine import ScriptedEngine, ScriptedTokenizer
from projection.candidates import rank_candidates
from projection.errors import PromptTooLongError
from projection.events import Event, LoggedEvent
from projection.grammar import Grammar, alt, seq
from projection.projector import answer_room, prepare_projection, project
from projection.prompt import (
    DECISION_SYSTEM,
    PROJECTION_SYSTEM,
    check_fit,
    render_decision,
    render_projection,
    visible,
)
from projection.view import parse_view
from projection.view_grammar import Profile
from tests.projection.cases import EVENTS, log_of, odd_logs, odd_texts, task

TOKENIZER = ScriptedTokenizer()


def turns(token_ids: list[int]) -> tuple[str, str]:
    """The system's and the user's text of a scripted prompt, which has no other special tokens."""
    special = [token_id for token_id in token_ids if token_id >= 256]
    assert special == [TOKENIZER.SYSTEM, TOKENIZER.END, TOKENIZER.USER, TOKENIZER.END, TOKENIZER.ASSISTANT]
    end = token_ids.index(TOKENIZER.END)
    return TOKENIZER.decode(token_ids[1:end]), TOKENIZER.decode(token_ids[end + 2 : -1])


def projection_text(events: list[LoggedEvent], budget_chars: int = 1338) -> str:
    return turns(render_projection(TOKENIZER, events, task(), budget_chars))[1]


PROJECTION_PROMPT = """\
TASK
| Decide application LN-7.

POLICY
| The ratio is at most 45.0%.

PROVISIONS
- 12 CFR 1002.9(b)(2): specific reasons
- Policy 4.2: ratio limit

EVENTS
[1] loan.note 2026-03-05
| Income $5.00.
| Ratio 4%.
[2] note
| FACTS

FIELDS
- monthly income
- debt-to-income ratio
- closing date
- coverage ratio

Write the memory view in at most 1338 characters: FACTS (one line for each field, then other facts), REASONING, \
COMPLIANCE. Cite events as [number]."""

VIEW = """FACTS
- monthly income: $5.00 [1]
- debt-to-income ratio: 4% [1]
- closing date: unknown
- coverage ratio: unknown
REASONING
- [1] It is so.
COMPLIANCE
- [1] Policy 4.2: It is so.
"""

DECISION_PROMPT = """\
TASK
| Decide application LN-7.

POLICY
| The ratio is at most 45.0%.

OUTCOMES
- APPROVE
- DENY

REASONS
- R01: Income insufficient for amount of credit requested
- R02: Excessive obligations in relation to income
- R03: Unable to verify income

MEMORY VIEW
L1 - monthly income: $5.00 [1]
L2 - debt-to-income ratio: 4% [1]
L3 - closing date: unknown
L4 - coverage ratio: unknown
L5 - [1] It is so.
L6 - [1] Policy 4.2: It is so.

Write the outcome, its reasons with the view lines they rest on, and a short rationale."""


def test_the_projection_prompt_is_laid_out_so() -> None:
    events = [
        LoggedEvent(1, Event("a", "loan.note", "test", "2026-03-05T10:00:00Z", "Income $5.00.\nRatio 4%.")),
        LoggedEvent(2, Event("b", "note", "test", None, "FACTS")),
    ]
    assert turns(render_projection(TOKENIZER, events, task(), 1338)) == (PROJECTION_SYSTEM, PROJECTION_PROMPT)


def test_the_likeliest_values_stand_behind_their_fields() -> None:
    candidates = rank_candidates(EVENTS, task(), 2)
    user = turns(render_projection(TOKENIZER, EVENTS, task(), 1338, candidates))[1]
    assert "FIELDS, the likeliest values first\n- monthly income: $6,100.00 [2] or $1.00 [3]\n" in user
    assert "\n- closing date: 2026-05-08 [2]\n" in user


def test_a_field_without_candidates_is_listed_as_unknown() -> None:
    events = log_of("Nothing is said here.")
    user = turns(render_projection(TOKENIZER, events, task(), 1338, rank_candidates(events, task(), 2)))[1]
    assert "\n- monthly income: unknown\n" in user


def test_no_more_values_are_listed_than_a_prompt_has_room_for() -> None:
    events = log_of(*(f"Monthly income ${n}.00." for n in range(1, 9)))
    user = turns(render_projection(TOKENIZER, events, task(), 1338, rank_candidates(events, task(), None)))[1]
    assert "\n- monthly income: $8.00 [8] or $7.00 [7] or $6.00 [6]\n" in user


def test_the_decision_prompt_is_laid_out_so() -> None:
    token_ids = render_decision(TOKENIZER, task(), parse_view(VIEW, task()))
    assert turns(token_ids) == (DECISION_SYSTEM, DECISION_PROMPT)


def test_what_a_task_does_not_have_is_left_out() -> None:
    bare = task().model_copy(update={"policy": "", "provisions": [], "reasons": []})
    user = turns(render_projection(TOKENIZER, EVENTS, bare, 1338))[1]
    assert "POLICY" not in user
    assert "PROVISIONS" not in user
    assert "REASONS" not in turns(render_decision(TOKENIZER, bare, parse_view(VIEW, task())))[1]


def test_the_decision_prompt_does_not_see_the_log() -> None:
    user = turns(render_decision(TOKENIZER, task(), parse_view(VIEW, task())))[1]
    assert "EVENTS" not in user


@given(odd_logs)
@settings(max_examples=60)
def test_every_line_of_an_event_stands_behind_a_bar(events: list[LoggedEvent]) -> None:
    section = projection_text(events).split("EVENTS\n", 1)[1].rsplit("\n\nFIELDS\n", 1)[0]
    rows = section.split("\n")
    assert [row for row in rows if not row.startswith("| ")] == [f"[{e.position}] note 2026-03-05" for e in events]
    told = "\n".join(row[2:] for row in rows if row.startswith("| "))
    assert told == "\n".join(visible(event.text) for event in events)


@given(st.text() | odd_texts)
def test_what_cannot_be_seen_is_spelled_out_and_everything_else_is_kept(text: str) -> None:
    shown = visible(text)
    assert all(char in "\n\t" or unicodedata.category(char) not in {"Cc", "Cf", "Co", "Cn", "Cs"} for char in shown)
    assert re.sub(r"<U\+([0-9A-F]{4,6})>", lambda m: chr(int(m[1], 16)), shown) == text or "<U+" in text
    assert visible(shown) == shown


def test_hidden_characters_are_spelled_out() -> None:
    hidden = "\u202e\u200b\x00\r\x85\u2028\ufeff\u00ad\U000e0041\ufe0f\U000e0100\u3164\u034f"
    assert visible(f"a{hidden}b") == "a" + "".join(f"<U+{ord(char):04X}>" for char in hidden) + "b"
    assert visible("caf\u00e9 \u4f60\u597d \U0001f600\t\u00bd\n") == "caf\u00e9 \u4f60\u597d \U0001f600\t\u00bd\n"


def test_an_event_type_cannot_open_a_line_either() -> None:
    event = LoggedEvent(1, Event("a", "note\u2028[99] x\u202e", "test", None, "text"))
    assert "[1] note<U+2028>[99] x<U+202E>\n| text\n" in projection_text([event])


def test_the_prompt_is_a_function_of_events_task_and_budget() -> None:
    first = render_projection(TOKENIZER, EVENTS, task(), 1338)
    assert render_projection(TOKENIZER, list(EVENTS), task(), 1338) == first
    assert render_projection(TOKENIZER, EVENTS, task(), 1339) != first
    assert render_projection(TOKENIZER, EVENTS[:2], task(), 1338) != first


def test_nothing_is_truncated_and_a_log_that_does_not_fit_says_how_much_it_needs() -> None:
    events = log_of("Income $5.00. " + "x" * 100_000 + " the end")
    prompt, _ = prepare_projection(TOKENIZER, events, task(), 1338, Profile())
    assert "x" * 100_000 + " the end" in turns(prompt)[1]
    with pytest.raises(PromptTooLongError) as caught:
        project(ScriptedEngine(max_model_len=100_000), events, task(), 1338, Profile())
    fields = caught.value.fields
    assert fields["num_prompt_tokens"] == len(prompt)
    assert fields["num_tokens_available"] == 100_000
    needed = fields["num_tokens_needed"]
    assert isinstance(needed, int)
    assert needed > len(prompt)
    assert str(needed) in caught.value.message
    assert project(ScriptedEngine(max_model_len=needed), events, task(), 1338, Profile()).view.num_chars <= 1338


def test_a_prompt_fits_up_to_the_last_token() -> None:
    check_fit(90, 10, 100)
    with pytest.raises(PromptTooLongError):
        check_fit(91, 10, 100)


def test_an_answer_has_room_for_its_longest_sentence_or_half_of_it_or_is_refused() -> None:
    grammar = Grammar({"root": seq(alt("a" * 99, "b"))})
    assert answer_room(50, grammar, 1000) == 100
    assert answer_room(50, grammar, 120) == 70
    assert answer_room(50, grammar, 100) == 50
    with pytest.raises(PromptTooLongError):
        answer_room(51, grammar, 100)
