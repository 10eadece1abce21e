"""An endpoint in another process: the same answers, typed errors, and nothing left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from determinism.endpoints.child import Child, open_child
from determinism.endpoints.endpoint import EngineEndpoint, Request
from determinism.workloads import choose_workloads
from inference.config import EngineConfig
from inference.scripted_engine import ScriptedEngine
from projection.errors import ConfigurationError, EngineError, NotFoundError, PromptTooLongError

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    with open_child(ENVIRONMENT, tmp_path / "child.log") as child:
        yield child


@pytest.fixture
def requests() -> list[Request]:
    tokenizer = ScriptedEngine().tokenizer
    workloads = choose_workloads(["mortgage-decision-short", "claim-decision-short-free"])
    return [Request.of(workload, tokenizer, 24) for workload in workloads]


def test_a_child_says_what_the_engine_says_here(
    child: Child, requests: list[Request], engine_config: EngineConfig
) -> None:
    here, there = EngineEndpoint(ScriptedEngine(), "here"), child.open("scripted", engine_config)
    assert there.identity == here.identity
    assert there.place == f"process {child.pid}"
    assert child.pid != os.getpid()
    for ours, theirs in zip(here.ask(requests), there.ask(requests), strict=True):
        assert (theirs.token_ids, theirs.logprobs, theirs.text) == (ours.token_ids, ours.logprobs, ours.text)
        request = requests[0]
    assert there.score(request, [1, 2]).positions == here.score(request, [1, 2]).positions
    first, *later = there.ask_late(requests[0], requests[1:])
    assert [first.token_ids, *(said.token_ids for said in later)] == [said.token_ids for said in here.ask(requests)]
    assert there.counters() is None


def test_its_errors_are_raised_here_and_it_lives_on(
    child: Child, requests: list[Request], engine_config: EngineConfig
) -> None:
    with pytest.raises(ConfigurationError, match="no engine 'nobody'"):
        child.open("nobody", engine_config)
    with pytest.raises(NotFoundError):
        child.open("vllm", engine_config.model_copy(update={"model": "nobody"}))
    endpoint = child.open("scripted", engine_config)
    long = Request((1,) * 300_000, 24, None, ("", ""), "t")
    with pytest.raises(PromptTooLongError) as caught:
        endpoint.ask([long])
    assert caught.value.fields["num_prompt_tokens"] == 300_000
    assert endpoint.ask(requests)


def test_a_child_that_is_killed_is_an_engine_error_in_every_call(
    child: Child, requests: list[Request], engine_config: EngineConfig
) -> None:
    endpoint = child.open("scripted", engine_config)
    os.kill(child.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(EngineError, match="ended"):
            endpoint.ask(requests)


def test_a_child_ends_with_its_context(tmp_path: Path, engine_config: EngineConfig) -> None:
    with open_child(ENVIRONMENT, tmp_path / "child.log") as child:
        child.open("scripted", engine_config)
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
