"""The live engines on a real vLLM server with stock settings: both protocols, and no process left behind."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from determinism.tiny_model import write_tiny_model
from inference.anthropic_engine import AnthropicEngine
from inference.live_calls import CallMeter
from inference.live_engine import LiveEngine
from inference.openai_engine import OpenAIEngine
from inference.server import Server
from inference.uncontrolled_server import StockSettings, endpoint_of, plan_uncontrolled, uncontrolled_server
from projection.errors import ConfigurationError, EngineError, RequestError
from projection.prompt import render_projection
from tests.projection.cases import EVENTS, task

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def served(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("uncontrolled")
    model = write_tiny_model(model_dir, folder / "tiny")
    plan = plan_uncontrolled(StockSettings("float32", compile=False, kv_cache_gib=0.25), model)
    with uncontrolled_server(plan, folder / "server.log") as server:
        yield server
    command = ["ps", "-o", "stat=", "-s", str(server.process.pid)]
    group = subprocess.run(command, capture_output=True, text=True, check=False)
    assert [stat for stat in group.stdout.split() if not stat.startswith("Z")] == []


@pytest.fixture
def messages(served: Server) -> Iterator[AnthropicEngine]:
    with closing(AnthropicEngine(endpoint_of(served.plan, "anthropic"), CallMeter(100))) as engine:
        yield engine


@pytest.fixture
def chat(served: Server) -> Iterator[OpenAIEngine]:
    with closing(OpenAIEngine(endpoint_of(served.plan, "openai"), CallMeter(100))) as engine:
        yield engine


def prompt(engine: LiveEngine) -> list[int]:
    return render_projection(engine.tokenizer, EVENTS, task(), 900)


def test_both_protocols_say_the_same_words_of_the_same_prompt(messages: AnthropicEngine, chat: OpenAIEngine) -> None:
    one, other = (engine.ask(prompt(engine), 40) for engine in (messages, chat))
    assert one.text == other.text != ""
    assert (one.input_tokens, one.output_tokens, one.finish_reason) == (other.input_tokens, 40, "length")
    assert (one.fingerprint, one.logprobs) == (None, ())
    assert other.fingerprint is not None
    assert len(other.logprobs) == 40


def test_nothing_of_ours_stands_before_it(served: Server) -> None:
    import httpx

    for path in ("/dpm/identity", "/dpm/selftest"):
        assert httpx.get(f"{served.url}{path}").status_code == 404
    assert "x-dpm-identity" not in httpx.get(f"{served.url}/v1/models").headers


def test_a_wrong_model_and_a_prompt_that_does_not_fit_are_told_apart(
    served: Server, messages: AnthropicEngine, chat: OpenAIEngine
) -> None:
    for make, provider in ((AnthropicEngine, "anthropic"), (OpenAIEngine, "openai")):
        wrong = replace(endpoint_of(served.plan, provider), model="nobody")  # type: ignore[arg-type]
        with closing(make(wrong, CallMeter(1))) as engine, pytest.raises(ConfigurationError, match="nobody"):
            engine.ask(prompt(engine), 4)
    for engine in (messages, chat):
        with pytest.raises(RequestError, match="refuses the request"):
            engine.ask(engine.tokenizer.render_chat("s", "word " * 9000), 4)


def test_a_server_that_cannot_start_says_why(model_dir: Path, tmp_path: Path) -> None:
    plan = plan_uncontrolled(StockSettings("float32"), model_dir)
    broken = replace(plan, command=(*plan.command, "--no-such-flag"))
    with pytest.raises(EngineError, match="no-such-flag"), uncontrolled_server(broken, tmp_path / "log"):
        pass
