"""Incremental summarisation: which calls it makes, what each of them sees, and how the budget is kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baseline.memory import NOTHING, BuiltMemory
from baseline.summary import CHARS_PER_TOKEN, max_summary_tokens, summarize_every_event, summarize_on_overflow
from inference.scripted_engine import ScriptedEngine
from projection.errors import BudgetTooSmallError, PromptTooLongError, RequestError
from projection.events import LoggedEvent
from projection.view import MemoryView, verify_view
from projection.view_grammar import Profile
from tests.baseline.speaking_engine import NAME, SpeakingEngine
from tests.projection.cases import log_of, odd_logs, task
from tests.projection.examples import example

PROFILE = Profile(2)
MORTGAGE = example("mortgage")


def prompts_of(built: BuiltMemory) -> list[str]:
    tokenizer = ScriptedEngine().tokenizer
    return [tokenizer.decode(call.prompt_token_ids) for call in built.calls]


def test_every_event_costs_one_call_in_the_order_of_the_log() -> None:
    built = summarize_every_event(ScriptedEngine(), MORTGAGE.events, MORTGAGE.task, 1338, PROFILE)
    assert [call.name for call in built.calls] == [f"event {event.position}" for event in MORTGAGE.events]
    assert built.text == built.calls[-1].memory_text


def test_a_step_sees_the_memory_before_it_and_its_own_event_and_nothing_else() -> None:
    events = log_of("The first says alpha.", "The second says beta.", "The third says gamma.")
    built = summarize_every_event(ScriptedEngine(), events, task(), 400, PROFILE)
    before = [NOTHING, *(call.memory_text for call in built.calls)]
    for prompt, memory_text, event in zip(prompts_of(built), before, events, strict=False):
        assert f"MEMORY SO FAR\n| {memory_text}\n" in prompt
        assert [other.position for other in events if other.text in prompt] == [event.position]


def test_what_a_model_drops_is_gone_for_every_later_step() -> None:
    events = log_of("Income $6,100.00.", "Ratio 46.2%.", "Closing 2026-05-08.")
    engine = SpeakingEngine(lambda prompt: prompt.rpartition("NEXT EVENT")[2].split("| ")[1].split("\n")[0])
    built = summarize_every_event(engine, events, task(), 400, PROFILE)
    assert [call.memory_text for call in built.calls] == [event.text for event in events]


def test_an_answer_beyond_the_budget_is_cut_behind_a_word_and_the_call_keeps_it() -> None:
    said = " ".join([NAME] * 20)
    built = summarize_every_event(SpeakingEngine(lambda _: said), log_of("a"), task(), 125, PROFILE)
    [call] = built.calls
    assert call.completion.finish_reason == "stop"
    assert call.completion.text == said
    assert call.memory_text == built.text == " ".join([NAME] * 11)


def test_an_answer_that_hits_its_token_limit_loses_its_last_word_only() -> None:
    built = summarize_every_event(SpeakingEngine(lambda _: "income " * 99), log_of("a"), task(), 60, PROFILE)
    [call] = built.calls
    assert call.completion.finish_reason == "length"
    assert len(call.completion.token_ids) == call.max_tokens == max_summary_tokens(60) == 60 // CHARS_PER_TOKEN + 1
    assert built.text == "income income income"


@pytest.mark.parametrize("say", [lambda _: "", lambda _: "x" * 999], ids=["nothing", "no space"])
def test_a_model_that_says_nothing_usable_leaves_an_empty_memory(say: object) -> None:
    built = summarize_every_event(SpeakingEngine(say), log_of("a", "b"), task(), 60, PROFILE)  # type: ignore[arg-type]
    assert built.text == ""
    assert [line.text for line in built.memory.lines] == [NOTHING]


@settings(max_examples=40)
@given(odd_logs, st.integers(1, 600))
def test_no_free_memory_ever_exceeds_its_budget(events: list[LoggedEvent], budget_chars: int) -> None:
    engine = SpeakingEngine(lambda prompt: f"{NAME} " * (len(prompt) % 40))
    for build in (summarize_every_event, summarize_on_overflow):
        built = build(engine, events, task(), budget_chars, PROFILE)
        assert len(built.text) <= budget_chars
        assert all(len(call.memory_text) <= budget_chars for call in built.calls)


def test_nothing_is_summarised_while_everything_fits() -> None:
    events = log_of("Income $6,100.00.", "Ratio 46.2%.")
    built = summarize_on_overflow(ScriptedEngine(), events, task(), 400, PROFILE)
    assert built.calls == ()
    assert built.text == "[1] note 2026-03-05: Income $6,100.00.\n[2] note 2026-03-05: Ratio 46.2%."


def test_the_event_that_would_overflow_is_summarised_with_the_memory() -> None:
    events = log_of("a" * 50, "b" * 50, "c" * 50)
    built = summarize_on_overflow(SpeakingEngine(lambda _: "short"), events, task(), 160, PROFILE)
    [call] = built.calls
    assert call.name == "event 3"
    assert "a" * 50 in prompts_of(built)[0]
    assert built.text == "short"


def test_events_go_on_being_appended_behind_a_summary() -> None:
    events = log_of("a" * 70, "b" * 20, "c" * 20)
    built = summarize_on_overflow(SpeakingEngine(lambda _: "short"), events, task(), 80, PROFILE)
    assert [call.name for call in built.calls] == ["event 1", "event 3"]
    assert built.calls[1].memory_text == "short"


def test_an_overflow_memory_calls_the_model_exactly_where_the_rule_says() -> None:
    built = summarize_on_overflow(ScriptedEngine(), MORTGAGE.events, MORTGAGE.task, 1338, PROFILE)
    assert 0 < len(built.calls) < len(MORTGAGE.events)
    free = summarize_on_overflow(ScriptedEngine(), MORTGAGE.events, MORTGAGE.task, 1_000_000, PROFILE)
    assert free.calls == ()


def test_in_the_closed_world_each_step_is_a_verified_view_of_the_events_so_far() -> None:
    built = summarize_every_event(ScriptedEngine(), MORTGAGE.events, MORTGAGE.task, 1338, PROFILE, is_closed_world=True)
    assert isinstance(built.memory, MemoryView)
    for index, call in enumerate(built.calls):
        verify_view(call.memory_text, MORTGAGE.events[: index + 1], MORTGAGE.task, 1338)


def test_in_the_closed_world_the_overflow_memory_keeps_its_budget_and_makes_no_free_call() -> None:
    built = summarize_on_overflow(ScriptedEngine(), MORTGAGE.events, MORTGAGE.task, 1338, PROFILE, is_closed_world=True)
    assert built.calls
    assert all(call.grammar is not None for call in built.calls)
    assert len(built.text) <= 1338


def test_a_closed_world_needs_room_for_its_mandatory_lines() -> None:
    with pytest.raises(BudgetTooSmallError):
        summarize_every_event(ScriptedEngine(), log_of("a"), task(), 40, PROFILE, is_closed_world=True)


@pytest.mark.parametrize("build", [summarize_every_event, summarize_on_overflow])
def test_a_case_without_events_is_refused(build: object) -> None:
    with pytest.raises(RequestError, match="no events"):
        build(ScriptedEngine(), [], task(), 400, PROFILE)  # type: ignore[operator]


def test_an_event_beyond_the_context_is_refused_never_truncated() -> None:
    with pytest.raises(PromptTooLongError):
        summarize_every_event(ScriptedEngine(max_model_len=2_000), log_of("a " * 1_500), task(), 400, PROFILE)


def test_the_watch_is_told_of_each_event() -> None:
    names: list[str] = []

    def watch(name: str) -> object:
        names.append(name)
        return lambda _done, _limit: None

    summarize_every_event(ScriptedEngine(), log_of("a", "b"), task(), 400, PROFILE, watch)  # type: ignore[arg-type]
    assert names == ["event 1 of 2", "event 2 of 2"]
