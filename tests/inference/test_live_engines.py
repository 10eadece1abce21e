"""The engines of live APIs against a scripted endpoint: what is sent, what comes back, what every failure becomes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from inference.anthropic_engine import AnthropicEngine
from inference.live_calls import MAX_WAIT_S, CallLimitError, CallMeter, Prices
from inference.live_endpoint import KEY_VARIABLES, Endpoint, official_endpoint
from inference.live_engine import LiveEngine
from inference.live_models import Provider
from inference.openai_engine import OpenAIEngine
from projection.errors import ConfigurationError, DpmError, EngineError, RequestError
from projection.grammar import Grammar, Lit
from tests.inference.live_server import LiveServer, Said, chat_completion, live_server, message

KEY = "sk-live-7f3a9c55e1"
MODELS: dict[Provider, str] = {"anthropic": "claude-haiku-4-5", "openai": "gpt-4o"}
BOTH = pytest.mark.parametrize("provider", ["anthropic", "openai"])
Opened = Callable[..., LiveEngine]


@pytest.fixture
def server() -> Iterator[LiveServer]:
    with live_server() as script:
        yield script


@pytest.fixture
def waits() -> list[float]:
    """Seconds that an engine let pass, without letting them."""
    return []


@pytest.fixture
def opened(server: LiveServer, waits: list[float], monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    engines: list[LiveEngine] = []

    def open_engine(provider: Provider, meter: CallMeter | None = None, **changes: Any) -> LiveEngine:
        monkeypatch.setenv(KEY_VARIABLES[provider], KEY)
        endpoint = replace(official_endpoint(provider, MODELS[provider], server.url), **changes)
        make = AnthropicEngine if provider == "anthropic" else OpenAIEngine
        engines.append(make(endpoint, meter or CallMeter(100), waits.append))
        return engines[-1]

    yield open_engine
    for engine in engines:
        engine.close()


def whole(provider: Provider, text: str = "FACTS\n", model: str | None = None, end: str | None = None) -> Said:
    named = model or MODELS[provider]
    if provider == "anthropic":
        return Said(message(text, named, end or "end_turn"))
    return Said(chat_completion(text, named, end or "stop"))


def failing(status: int, words: str = "no", **headers: str) -> Said:
    return Said({"error": {"type": "error", "message": words}}, status, headers)


def ask(engine: LiveEngine, user: str = "| event\n<|end|>") -> Any:
    return engine.generate(engine.tokenizer.render_chat("system text é", user), 50, None)


@BOTH
def test_system_and_user_texts_arrive_as_they_were_rendered(
    server: LiveServer, opened: Opened, provider: Provider
) -> None:
    server.say(whole(provider))
    ask(opened(provider))
    body = server.asked[0].body
    turns = body["messages"] if provider == "openai" else [{"content": body["system"]}, *body["messages"]]
    assert [turn["content"] for turn in turns] == ["system text é", "| event\n<|end|>"]


@BOTH
def test_an_answer_is_its_text_in_bytes_and_claims_no_log_probabilities(
    server: LiveServer, opened: Opened, provider: Provider
) -> None:
    server.say(whole(provider, "FACTS é\n"))
    engine = opened(provider)
    completion = ask(engine)
    assert completion.text == "FACTS é\n"
    assert completion.token_ids == (*"FACTS é\n".encode(), engine.tokenizer.END)  # type: ignore[attr-defined]
    assert engine.tokenizer.decode(completion.token_ids) == completion.text
    assert (completion.finish_reason, completion.logprobs, completion.margins) == ("stop", (), ())
    assert completion.min_margin is None


@pytest.mark.parametrize(("provider", "end"), [("anthropic", "max_tokens"), ("openai", "length")])
def test_an_answer_that_reached_its_limit_says_so(
    server: LiveServer, opened: Opened, provider: Provider, end: str
) -> None:
    server.say(whole(provider, end=end))
    completion = ask(opened(provider))
    assert completion.finish_reason == "length"
    assert completion.token_ids == tuple(b"FACTS\n")


@pytest.mark.parametrize(
    ("provider", "model", "sent"),
    [
        ("anthropic", "claude-haiku-4-5-20251001", {"temperature": 0}),
        ("anthropic", "claude-opus-4-7", {}),
        ("anthropic", "claude-of-tomorrow", {}),
        ("openai", "gpt-4o", {"temperature": 0, "seed": 0, "logprobs": True}),
        ("openai", "gpt-5", {}),
        ("openai", "gpt-of-tomorrow", {}),
    ],
)
def test_what_is_sent_follows_the_table_and_nothing_else(
    server: LiveServer, opened: Opened, provider: Provider, model: str, sent: dict[str, Any]
) -> None:
    pins = official_endpoint(provider, model).pins
    server.say(whole(provider, model=model))
    engine = opened(provider, model=model, pins=pins)
    ask(engine)
    limit = "max_tokens" if provider == "anthropic" else "max_completion_tokens"
    required = {"model", "messages", limit} | ({"system"} if provider == "anthropic" else set())
    assert server.asked[0].body == sent | {name: server.asked[0].body[name] for name in required}
    assert server.asked[0].body[limit] == 50
    stated = engine.identity.fields["pins"]
    assert {name for name in ("temperature", "seed", "logprobs") if stated[name].startswith("sent")} == set(sent)
    assert ("unknown" in stated["model"]) == model.endswith("tomorrow")


def test_the_fingerprint_and_the_model_that_answered_are_in_the_answer(server: LiveServer, opened: Opened) -> None:
    server.say(whole("openai", model="gpt-4o-2024-11-20"))
    engine = opened("openai")
    answer = engine.ask(engine.tokenizer.render_chat("s", "u"), 50)
    assert (answer.fingerprint, answer.model, answer.logprobs) == ("fp_1", "gpt-4o-2024-11-20", (-0.25,))


@BOTH
def test_the_key_is_sent_and_stands_nowhere_else(server: LiveServer, opened: Opened, provider: Provider) -> None:
    server.say(whole(provider))
    engine = opened(provider)
    answer = engine.ask(engine.tokenizer.render_chat("s", "u"), 50)
    assert KEY in json.dumps(dict(server.asked[0].headers))
    for shown in (engine, engine.identity, engine.identity.fields, engine.endpoint, answer, ask(engine)):
        assert KEY not in repr(shown)
        assert KEY not in str(shown)


@BOTH
def test_the_key_is_in_no_log_line_even_of_the_sdk_s_own_debug_log(
    server: LiveServer, opened: Opened, caplog: pytest.LogCaptureFixture, provider: Provider
) -> None:
    caplog.set_level(logging.DEBUG)
    server.say(failing(401, KEY), whole(provider))
    engine = opened(provider)
    with pytest.raises(ConfigurationError):
        ask(engine)
    ask(engine)
    assert caplog.records
    assert KEY not in caplog.text


@BOTH
@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500])
def test_no_error_repeats_the_key_even_if_the_provider_does(
    server: LiveServer, opened: Opened, provider: Provider, status: int
) -> None:
    server.say(failing(status, f"Incorrect API key provided: {KEY} or sk-li****55e1"))
    with pytest.raises(DpmError) as raised:
        ask(opened(provider, max_retries=0))
    error: BaseException | None = raised.value
    while error is not None:
        assert KEY not in f"{error!r} {error} {vars(error)}"
        assert "55e1" not in str(error)
        error = error.__cause__ or error.__context__


@BOTH
@pytest.mark.parametrize("value", [None, "", "two words", "line\nfeed", "schlüssel"])
def test_a_key_that_is_missing_or_can_be_none_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, provider: Provider, value: str | None
) -> None:
    variable = KEY_VARIABLES[provider]
    monkeypatch.delenv(variable, raising=False)
    if value is not None:
        monkeypatch.setenv(variable, value)
    make = AnthropicEngine if provider == "anthropic" else OpenAIEngine
    with pytest.raises(ConfigurationError, match=variable) as raised:
        make(official_endpoint(provider, MODELS[provider]), CallMeter(1))
    assert raised.value.fields["variable"] == variable
    assert not value or value not in raised.value.message


@BOTH
@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_names_its_variable_and_is_not_tried_again(
    server: LiveServer, opened: Opened, provider: Provider, status: int
) -> None:
    server.say(failing(status))
    with pytest.raises(ConfigurationError, match=KEY_VARIABLES[provider]):
        ask(opened(provider))
    assert len(server.asked) == 1


@BOTH
def test_a_rate_limit_is_waited_for_as_long_as_asked_and_counted(
    server: LiveServer, opened: Opened, waits: list[float], provider: Provider
) -> None:
    server.say(failing(429, **{"retry-after": "7"}), failing(429, **{"retry-after": "3"}), whole(provider))
    meter = CallMeter(10)
    assert ask(opened(provider, meter)).text == "FACTS\n"
    assert waits == [7.0, 3.0]
    counts = meter.counts
    assert (counts.num_calls, counts.num_answers, counts.num_retries, counts.num_rate_limits) == (3, 1, 2, 2)
    assert (counts.waited_s, len(server.asked)) == (10.0, 3)


@BOTH
def test_a_wait_beyond_patience_is_an_error_and_not_a_wait(
    server: LiveServer, opened: Opened, waits: list[float], provider: Provider
) -> None:
    server.say(failing(429, **{"retry-after": str(MAX_WAIT_S + 1)}))
    with pytest.raises(EngineError, match="asks to wait 61 s"):
        ask(opened(provider))
    assert (waits, len(server.asked)) == ([], 1)


@BOTH
def test_a_failing_server_is_asked_again_with_longer_waits_and_then_given_up(
    server: LiveServer, opened: Opened, waits: list[float], provider: Provider
) -> None:
    server.say(failing(500))
    meter = CallMeter(10)
    with pytest.raises(EngineError, match="status 500"):
        ask(opened(provider, meter, max_retries=3))
    assert waits == [1.0, 2.0, 4.0]
    assert (len(server.asked), meter.counts.num_calls, meter.counts.num_answers) == (4, 4, 0)


@BOTH
def test_the_sdk_makes_no_retry_of_its_own(server: LiveServer, opened: Opened, provider: Provider) -> None:
    server.say(failing(500, **{"x-should-retry": "true"}))
    with pytest.raises(EngineError):
        ask(opened(provider, max_retries=0))
    assert len(server.asked) == 1


@BOTH
def test_no_call_is_made_beyond_the_limit_retries_included(
    server: LiveServer, opened: Opened, provider: Provider
) -> None:
    server.say(failing(500), failing(500), whole(provider))
    meter = CallMeter(2)
    with pytest.raises(CallLimitError) as raised:
        ask(opened(provider, meter))
    assert raised.value.fields["max_calls"] == 2
    assert len(server.asked) == 2


@BOTH
def test_a_slow_server_is_given_up_with_its_time_limit(server: LiveServer, opened: Opened, provider: Provider) -> None:
    server.say(Said({}, way="never"))
    with pytest.raises(EngineError, match=r"did not answer within 0\.2 s"):
        ask(opened(provider, timeout_s=0.2, max_retries=0))


@BOTH
def test_an_answer_that_breaks_off_is_no_answer(server: LiveServer, opened: Opened, provider: Provider) -> None:
    server.say(replace(whole(provider), way="cut off"))
    with pytest.raises(EngineError, match="broke off"):
        ask(opened(provider, max_retries=0))


@BOTH
@pytest.mark.parametrize("body", [[], "words", {}, {"model": "gpt-4o", "choices": []}, {"content": 7}, None])
def test_an_answer_that_is_none_is_an_error(server: LiveServer, opened: Opened, provider: Provider, body: Any) -> None:
    server.say(Said(body))
    with pytest.raises(EngineError):
        ask(opened(provider, max_retries=0))


@BOTH
def test_a_server_that_is_not_there_is_an_error(opened: Opened, provider: Provider) -> None:
    with pytest.raises(EngineError, match="cannot be reached"):
        ask(opened(provider, base_url="http://127.0.0.1:9", max_retries=0))


@BOTH
def test_a_wrong_model_name_is_the_caller_s_to_mend(server: LiveServer, opened: Opened, provider: Provider) -> None:
    server.say(failing(404, "model: nothing of that name"))
    with pytest.raises(ConfigurationError, match=MODELS[provider]):
        ask(opened(provider))
    assert len(server.asked) == 1


@BOTH
def test_another_model_s_answer_is_refused(server: LiveServer, opened: Opened, provider: Provider) -> None:
    server.say(whole(provider, model=f"{MODELS[provider]}-mini"))
    with pytest.raises(EngineError, match="answered"):
        ask(opened(provider))


@pytest.mark.parametrize(("provider", "end"), [("anthropic", "refusal"), ("openai", "content_filter")])
def test_an_ending_that_is_no_text_is_an_error(
    server: LiveServer, opened: Opened, provider: Provider, end: str
) -> None:
    server.say(whole(provider, end=end))
    with pytest.raises(EngineError, match=end):
        ask(opened(provider))


@BOTH
def test_a_redirect_does_not_carry_the_key_elsewhere(server: LiveServer, opened: Opened, provider: Provider) -> None:
    with live_server() as elsewhere:
        elsewhere.say(whole(provider))
        server.say(Said({}, 307, {"location": f"{elsewhere.url}/v1/messages"}))
        with pytest.raises(DpmError):
            ask(opened(provider, max_retries=0))
        assert elsewhere.asked == []


@BOTH
def test_scoring_and_grammars_are_refused_before_anything_is_sent(
    server: LiveServer, opened: Opened, provider: Provider
) -> None:
    engine = opened(provider)
    prompt = engine.tokenizer.render_chat("s", "u")
    with pytest.raises(RequestError, match="cannot score"):
        engine.score(prompt, [1], None)
    with pytest.raises(RequestError, match="grammar"):
        engine.generate(prompt, 50, Grammar({"root": Lit("x")}, "root"))
    assert server.asked == []


@BOTH
def test_the_identity_promises_nothing(opened: Opened, provider: Provider) -> None:
    fields = opened(provider).identity.fields
    assert (fields["kind"], fields["promises_equal_bytes"], fields["provider"]) == ("unpinned", False, provider)
    assert fields["model"] == MODELS[provider]


@BOTH
def test_tokens_are_counted_and_cost_what_the_caller_states(
    server: LiveServer, opened: Opened, provider: Provider
) -> None:
    server.say(whole(provider))
    meter = CallMeter(10)
    engine = opened(provider, meter)
    ask(engine)
    ask(engine)
    assert (meter.counts.input_tokens, meter.counts.output_tokens) == (26, 14)
    assert meter.counts.cost(Prices(Decimal("1"), Decimal("5"))) == Decimal("0.000096")


@pytest.mark.parametrize("url", ["ftp://h", "https://user:secret@h/v1", "https://h/v1?key=secret", "h", "https://"])
def test_an_address_that_could_hold_a_secret_or_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        official_endpoint("openai", "gpt-4o", url)
    assert "secret" not in raised.value.message


def test_a_server_without_keys_needs_no_variable(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLES["openai"], raising=False)
    server.say(whole("openai"))
    endpoint: Endpoint = replace(official_endpoint("openai", "gpt-4o", server.url), key_variable=None)
    with closing(OpenAIEngine(endpoint, CallMeter(1))) as engine:
        assert ask(engine).text == "FACTS\n"
