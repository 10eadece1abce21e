"""The parts under the live engines: prompts back to text, the table of models, and the counting of calls."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.live_calls import CallLimitError, CallMeter, Failure, LiveAnswer, call
from inference.live_models import TABLE, UNKNOWN, Provider, find_pins, is_same_model
from inference.live_prompt import read_chat
from inference.scripted_engine import ScriptedTokenizer
from projection.errors import EngineError, RequestError

TOKENIZER = ScriptedTokenizer()
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
ANSWER = LiveAnswer("x", "stop", "stop", "m", None, 1, 1, (), 0.0)


@given(TEXTS, TEXTS)
def test_both_texts_of_a_prompt_come_back_exactly(system: str, user: str) -> None:
    assert read_chat(TOKENIZER.render_chat(system, user)) == (system, user)


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1)))
def test_any_other_tokens_are_refused_or_are_the_rendering_of_their_texts(token_ids: list[int]) -> None:
    try:
        texts = read_chat(token_ids)
    except RequestError:
        return
    assert TOKENIZER.render_chat(*texts) == token_ids


def test_text_outside_of_the_turns_is_refused() -> None:
    prompt = TOKENIZER.render_chat("s", "u")
    for at in (0, 3, len(prompt)):
        with pytest.raises(RequestError, match="outside"):
            read_chat([*prompt[:at], 65, *prompt[at:]])
    with pytest.raises(RequestError, match="UTF-8"):
        read_chat([TOKENIZER.SYSTEM, 255, *prompt[2:]])


@pytest.mark.parametrize(
    ("provider", "model", "temperature"),
    [
        ("anthropic", "claude-haiku-4-5", "taken"),
        ("anthropic", "claude-haiku-4-5-20251001", "taken"),
        ("anthropic", "claude-opus-4-6", "taken"),
        ("anthropic", "claude-opus-4-7", "refused"),
        ("anthropic", "claude-sonnet-5-5", "refused"),
        ("anthropic", "claude-opus-4", "unknown"),
        ("anthropic", "claude-haiku-4-55", "unknown"),
        ("openai", "gpt-4o-mini-2024-07-18", "taken"),
        ("openai", "o3-mini", "refused"),
        ("openai", "gpt-4o-audio-preview", "unknown"),
        ("openai", "claude-haiku-4-5", "unknown"),
    ],
)
def test_a_model_is_known_by_its_whole_name(provider: Provider, model: str, temperature: str) -> None:
    assert find_pins(provider, model).temperature == temperature


def test_the_messages_protocol_has_no_seed_and_no_fingerprint() -> None:
    for pins in (*(pins for _, pins in TABLE["anthropic"]), UNKNOWN["anthropic"]):
        assert (pins.seed, pins.fingerprint) == ("absent", "absent")


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_an_unknown_model_is_sent_nothing_optional_and_says_so(provider: Provider) -> None:
    stated = find_pins(provider, "nobody-knows").described()
    assert stated["model"] == "unknown: nothing optional is sent"
    assert not any(value.startswith("sent") for value in stated.values())


@pytest.mark.parametrize(
    ("asked", "answered", "is_same"),
    [
        ("gpt-4o", "gpt-4o", True),
        ("gpt-4o", "gpt-4o-2024-11-20", True),
        ("claude-haiku-4-5", "claude-haiku-4-5-20251001", True),
        ("chatgpt-4o-latest", "chatgpt-4o-20250101", True),
        ("gpt-4o", "gpt-4o-mini", False),
        ("gpt-4o-2024-11-20", "gpt-4o-2024-08-06", False),
        ("gpt-4.1", "gpt-4x1", False),
    ],
)
def test_a_name_means_itself_or_a_dated_model(asked: str, answered: str, is_same: bool) -> None:
    assert is_same_model(asked, answered) == is_same


def test_what_cannot_pass_is_not_tried_again() -> None:
    meter, waits = CallMeter(10), list[float]()
    with pytest.raises(EngineError):
        call(lambda: Failure(EngineError("no")), meter, 5, waits.append)
    assert (meter.counts.num_calls, waits) == (1, [])


def test_waits_double_up_to_a_minute() -> None:
    waits = list[float]()
    with pytest.raises(EngineError):
        call(lambda: Failure(EngineError("no"), may_pass=True), CallMeter(100), 8, waits.append)
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_a_limit_that_retries_used_up_tells_what_they_met() -> None:
    with pytest.raises(CallLimitError, match="the last attempt failed: no connection"):
        call(lambda: Failure(EngineError("no connection"), may_pass=True), CallMeter(2), 5, lambda _: None)


def test_the_limit_holds_for_many_threads_together() -> None:
    meter = CallMeter(50)
    refused = list[CallLimitError]()

    def work() -> None:
        for _ in range(20):
            try:
                call(lambda: ANSWER, meter, 0)
            except CallLimitError as error:
                refused.append(error)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (meter.counts.num_calls, meter.counts.num_answers, len(refused)) == (50, 50, 50)
