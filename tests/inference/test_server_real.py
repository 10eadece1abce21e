"""The real server, enrolled, started and stopped by the command line: the in-process engine's bits over HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from inference.api_key import key_headers
from inference.server_engine import VllmServerEngine
from projection.engine import Completion
from projection.errors import EngineError
from tests.inference import invariance
from tests.inference.engine_contract import NOTES, EngineContract

if TYPE_CHECKING:
    from inference.vllm_engine import VllmEngine

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
CASE = ROOT / "examples" / "mortgage"
KEY = {"VLLM_API_KEY": "a key of this test"}
GENERATING = ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses")


def environment(home: Path) -> dict[str, str]:
    """Without what an engine in this process has set."""
    ours = ("VLLM_", "OMP_", "HF_", "TORCH", "TOKENIZERS_", "LD_PRELOAD")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | {
        "DPM_HOME": str(home),
        **KEY,
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def dpm(home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment(home), capture_output=True, text=True, check=False)


def members(session: int) -> list[int]:
    """Processes of a session that have not ended."""
    found = subprocess.run(["ps", "-o", "pid=,stat=", "-s", str(session)], capture_output=True, text=True, check=False)
    return [int(line.split()[0]) for line in found.stdout.splitlines() if not line.split()[1].startswith("Z")]


@dataclass(frozen=True)
class Served:
    """A server that was started by `dpm engine serve`."""

    launcher: subprocess.Popen[str]
    url: str
    home: Path

    @property
    def server_pid(self) -> int:
        """vLLM's API process, which leads a session of its own."""
        children = Path(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children").read_text(encoding="ascii")
        return int(children.split()[0])


def start(home: Path) -> Served:
    port = free_port()
    command = [sys.executable, "-m", "service.cli", "engine", "serve", "--port", str(port)]
    launcher = subprocess.Popen(command, cwd=ROOT, env=environment(home), stderr=subprocess.PIPE, text=True)
    assert launcher.stderr is not None
    lines = []
    for line in launcher.stderr:
        lines.append(line)
        if line.startswith("ready:"):
            return Served(launcher, f"http://127.0.0.1:{port}", home)
    raise AssertionError("".join(lines))


def post(url: str, request: Any) -> httpx.Response:
    return httpx.post(url, json=request, headers=key_headers(KEY), timeout=60)


def stop(served: Served) -> str:
    served.launcher.terminate()
    _, said = served.launcher.communicate()
    return said


@pytest.fixture(scope="module", autouse=True)
def key() -> Iterator[None]:
    """All servers here want a key, which everyone but the test of its absence has in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEY.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def home(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the pinned weights and this machine's known answers."""
    home = tmp_path_factory.mktemp("home")
    (home / "weights").symlink_to(model_dir.parent, target_is_directory=True)
    done = dpm(home, "engine", "enroll", "--port", free_port(), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["known_answers"] == 3
    return home


@pytest.fixture(scope="module")
def served(home: Path) -> Iterator[Served]:
    served = start(home)
    try:
        yield served
    finally:
        if served.launcher.poll() is None:
            stop(served)


@pytest.fixture(scope="module")
def http_engine(served: Served, model_dir: Path) -> Iterator[VllmServerEngine]:
    with VllmServerEngine.connect(served.url, model_dir) as engine:
        yield engine


class TestVllmServerEngine(EngineContract):
    vocab_size = 49152

    @pytest.fixture
    def engine(self, http_engine: VllmServerEngine) -> VllmServerEngine:
        return http_engine


def bits(completion: Completion) -> tuple[Any, ...]:
    return completion.token_ids, completion.logprobs, completion.margins, completion.text, completion.finish_reason


def test_the_identity_is_the_in_process_engines(http_engine: VllmServerEngine, vllm_engine: VllmEngine) -> None:
    assert dict(http_engine.identity.fields) == dict(vllm_engine.identity.fields)


@pytest.mark.parametrize("grammar", [None, NOTES])
def test_over_http_and_in_process_the_bits_are_the_same(
    http_engine: VllmServerEngine, vllm_engine: VllmEngine, grammar: Any
) -> None:
    prompt = invariance.make_prompt(vllm_engine, 3, 520)
    ours, theirs = (engine.generate(prompt, 48, grammar) for engine in (vllm_engine, http_engine))
    assert bits(ours) == bits(theirs)
    scored = [engine.score(prompt, ours.token_ids, grammar).positions for engine in (vllm_engine, http_engine)]
    assert scored[0] == scored[1]


def test_eight_calls_at_once_get_the_bits_of_one_alone(http_engine: VllmServerEngine, vllm_engine: VllmEngine) -> None:
    prompts = [invariance.make_prompt(vllm_engine, seed, 410 + 10 * seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda prompt: http_engine.generate(prompt, 8, None), prompts))
    assert [bits(said) for said in together] == [bits(vllm_engine.generate(prompt, 8, None)) for prompt in prompts]


def test_a_burst_of_two_hundred_requests_gets_two_hundred_whole_answers(
    http_engine: VllmServerEngine, vllm_engine: VllmEngine
) -> None:
    prompts = [invariance.make_prompt(vllm_engine, seed, 24 + seed) for seed in range(8)]
    alone = [bits(vllm_engine.generate(prompt, 4, None)) for prompt in prompts]
    with ThreadPoolExecutor(200) as threads:
        told = list(threads.map(lambda number: http_engine.generate(prompts[number % 8], 4, None), range(200)))
    assert [bits(said) for said in told] == [alone[number % 8] for number in range(200)]
    assert http_engine.counters().max_num_running <= 32


def test_a_prefix_is_found_again_under_the_same_salt_only(served: Served, model_dir: Path) -> None:
    def cached_by_asking(salt: str) -> int:
        with VllmServerEngine.connect(served.url, model_dir, cache_salt=salt) as engine:
            before = engine.counters().num_cached_tokens
            engine.generate(engine.tokenizer.encode_text("The same long words again. " * 60), 1, None)
            return engine.counters().num_cached_tokens - before

    assert cached_by_asking("tenant one") == 0
    assert cached_by_asking("tenant two") == 0
    assert cached_by_asking("tenant one") > 0


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize(("field", "value"), [("temperature", 0.7), ("n", 2), ("unknown", 1)])
def test_a_request_outside_the_profile_is_refused_by_name(served: Served, path: str, field: str, value: Any) -> None:
    answer = post(served.url + path, {field: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_every_protocol_answers_greedily_and_alike_each_time(served: Served) -> None:
    turn = [{"role": "user", "content": "Say hello."}]
    requests = {
        "/v1/completions": {"prompt": "Hello", "max_tokens": 8},
        "/v1/chat/completions": {"messages": turn, "max_tokens": 8},
        "/v1/messages": {"model": "dpm", "messages": turn, "max_tokens": 8},
        "/v1/responses": {"input": "Say hello.", "max_output_tokens": 8},
    }
    for path, request in requests.items():
        answers = [post(served.url + path, request) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200] * 3, answers[0].text
        assert {answer.headers["x-dpm-determinism"] for answer in answers} == {"approved"}
        texts = [{k: v for k, v in answer.json().items() if k in ("choices", "content")} for answer in answers]
        assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("num_tokens", [8192, 9000])
def test_a_prompt_beyond_the_context_is_refused_and_not_truncated(served: Served, num_tokens: int) -> None:
    request = {"prompt": [1] * num_tokens, "max_tokens": 1}
    answer = post(f"{served.url}/v1/completions", request)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "BadRequestError"


def test_vllm_says_the_identity_as_its_fingerprint(served: Served, http_engine: VllmServerEngine) -> None:
    answer = post(f"{served.url}/v1/completions", {"prompt": [1], "max_tokens": 1})
    assert answer.json()["system_fingerprint"] == http_engine.identity.digest == answer.headers["x-dpm-identity"]


def test_a_client_that_goes_away_in_mid_stream_leaves_the_server_as_it_was(
    served: Served, http_engine: VllmServerEngine
) -> None:
    request = {"prompt": [1, 2, 3], "max_tokens": 4000, "ignore_eos": True, "stream": True}
    before = http_engine.generate([1, 2, 3], 8, None)
    with httpx.stream(
        "POST", f"{served.url}/v1/completions", json=request, headers=key_headers(KEY), timeout=60
    ) as answer:
        assert answer.status_code == 200
        next(answer.iter_lines())
    assert bits(http_engine.generate([1, 2, 3], 8, None)) == bits(before)
    assert httpx.get(f"{served.url}/health").status_code == 200


def test_the_self_test_runs_on_demand_beside_traffic(served: Served) -> None:
    answer = httpx.post(f"{served.url}/dpm/selftest", timeout=300)
    assert (answer.status_code, answer.json()["state"]) == (200, "APPROVED")
    assert 'dpm_self_test_state{state="APPROVED"} 1' in httpx.get(f"{served.url}/dpm/metrics").text
    assert "vllm:" in httpx.get(f"{served.url}/metrics").text


def test_an_unexpected_identity_is_refused_with_both_digests(served: Served, model_dir: Path) -> None:
    with pytest.raises(EngineError, match="0" * 64) as caught:
        VllmServerEngine.connect(served.url, model_dir, expected_identity="0" * 64)
    assert str(caught.value.fields["found"]) in caught.value.message


def test_whoever_has_not_the_key_gets_no_answer_and_learns_where_it_is_read(
    served: Served, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_API_KEY")
    with (
        VllmServerEngine.connect(served.url, model_dir) as engine,
        pytest.raises(EngineError, match=r"answers 401.*VLLM_API_KEY"),
    ):
        engine.generate([1, 2, 3], 1, None)


def test_a_taken_port_is_wrong_use(served: Served) -> None:
    done = dpm(served.home, "engine", "serve", "--port", served.url.rpartition(":")[2])
    assert done.returncode == 2
    assert "Choose another with --port" in done.stderr


def test_a_case_is_decided_over_http_and_replays_in_process(
    served: Served, vllm_engine: VllmEngine, tmp_path: Path
) -> None:
    from inference.engines import read_config
    from projection.case import replay_record
    from projection.replay import ReplayTools
    from projection.store_sqlite import SqliteStore

    assert read_config().model == "smollm2-135m-instruct"
    db = tmp_path / "log.sqlite"
    arguments = [CASE / "events.jsonl", "--task", CASE / "task.yaml", "--db", db, "--json"]
    done = dpm(served.home, "decide", *arguments, "--engine", served.url)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    with SqliteStore.open_read_only(db) as store:
        tools = ReplayTools(lambda: vllm_engine.tokenizer, lambda: vllm_engine)
        report = replay_record(store, document["record_id"], "R3", tools)
    assert report.verdict == "PASS", report.first_divergence
    over_http = dpm(served.home, "replay", document["record_id"], "--db", db, "--level", "R2", "--engine", served.url)
    assert over_http.returncode == 0, over_http.stderr


def test_a_server_killed_in_mid_call_leaves_the_log_unchanged_and_nothing_behind(
    home: Path, served: Served, tmp_path: Path
) -> None:
    """The last test of the running server: it kills it."""
    db = tmp_path / "log.sqlite"
    case = [CASE / "events.jsonl", "--task", CASE / "task.yaml", "--db", db]
    command = [sys.executable, "-m", "service.cli", "decide", *map(str, case), "--engine", served.url]
    session = served.server_pid
    assert members(session)
    with subprocess.Popen(command, cwd=ROOT, env=environment(home), stderr=subprocess.PIPE, text=True) as deciding:
        assert deciding.stderr is not None
        for line in deciding.stderr:
            if line.startswith("projection: begins"):
                break
        before = dpm(home, "log", "verify", "--db", db, "--json").stdout
        os.kill(session, signal.SIGKILL)
        assert deciding.wait() == 4
        assert "nothing was kept" in deciding.stderr.read()
    assert dpm(home, "log", "verify", "--db", db, "--json").stdout == before
    _, said = served.launcher.communicate()
    assert served.launcher.returncode == 4
    assert "ended by itself" in said
    assert members(session) == []
    again = dpm(home, "decide", *case, "--engine", served.url)
    assert again.returncode == 4
    assert "dpm engine serve" in again.stderr


def test_a_server_without_known_answers_does_not_start(model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "weights").symlink_to(model_dir.parent, target_is_directory=True)
    done = dpm(tmp_path, "engine", "serve", "--port", free_port())
    assert done.returncode == 2
    assert "dpm engine enroll" in done.stderr


def test_sigterm_ends_every_process_of_the_server(home: Path) -> None:
    served = start(home)
    session = served.server_pid
    assert len(members(session)) >= 2
    said = stop(served)
    assert served.launcher.returncode == 0, said
    assert members(session) == []


def test_a_cache_that_does_not_fit_the_memory_is_an_engine_error_with_vllms_words(home: Path, tmp_path: Path) -> None:
    text = (ROOT / "gpu_configs" / "cpu.yaml").read_text(encoding="utf-8")
    config = tmp_path / "engine.yaml"
    config.write_text(text.replace("kv_cache_gib: 2 ", "kv_cache_gib: 900000 "), encoding="utf-8")
    done = dpm(home, "engine", "enroll", "--config", config, "--port", free_port(), "--json")
    assert done.returncode == 4, done.stderr
    assert "ended by itself" in json.loads(done.stdout)["error"]["message"]
    assert not list((home / "enrolments").glob("*.draft"))
