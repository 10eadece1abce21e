"""`dpm determinism run` on real engines: all passes, every control fails as it must, and bad servers are found out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from determinism.cell import Cell
from determinism.suite.checks import CHECKS
from determinism.suite.controls import CONTROLS
from determinism.suite.plan import MODELLED_FAULTS, ON_A_SERVER
from determinism.suite.results import read_results
from determinism.tiny_model import NAME as TINY_NAME
from inference.tokenizer import PinnedTokenizer
from projection.engine import EngineIdentity

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[3]
ON_SERVERS = {check.name for check in CHECKS if check.beside in ON_A_SERVER}
TINY = f"vllm {TINY_NAME}"


@pytest.fixture(scope="module")
def home(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the pinned model and nothing else."""
    home = tmp_path_factory.mktemp("home")
    (home / "weights").mkdir()
    (home / "weights" / model_dir.name).symlink_to(model_dir, target_is_directory=True)
    return home


def dpm_run(home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    ours = ("VLLM_", "OMP_", "HF_", "TORCH", "TOKENIZERS_", "LD_PRELOAD")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    command = [sys.executable, "-m", "service.cli", "determinism", "run", *map(str, arguments)]
    environ |= {"DPM_HOME": str(home)}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def quick(home: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Cell]:
    """The cells of one quick run, which holds."""
    results = tmp_path_factory.mktemp("results")
    done = dpm_run(home, "--quick", "--out", results, "--json")
    document = json.loads(done.stdout)
    wrong = [cell for cell in document.get("cells", []) if not cell["holds"]]
    assert (done.returncode, document["num_missing"], wrong) == (0, 0, []), done.stderr
    return read_results(results)[1]


def evidence_of(cells: list[Cell], check: str) -> list[Mapping[str, Any]]:
    return [cell.evidence for cell in cells if (cell.check, cell.control, cell.verdict) == (check, None, "PASS")]


def test_every_check_passes_on_the_configured_model_and_on_the_tiny_one(quick: list[Cell]) -> None:
    passed = {(cell.engine == TINY, cell.check) for cell in quick if cell.verdict == "PASS"}
    names = {check.name for check in CHECKS}
    assert passed == {(False, name) for name in names} | {(True, name) for name in names - ON_SERVERS}


def test_every_control_fails_on_one_of_the_two_and_one_real_fault_on_the_configured_model(quick: list[Cell]) -> None:
    failed = {(cell.check, cell.control) for cell in quick if cell.control and cell.verdict == "DRIFT"}
    assert failed == {(control.check, control.name) for control in CONTROLS}
    on_the_model = {cell.control for cell in quick if cell.control and cell.engine != TINY}
    assert on_the_model >= set(MODELLED_FAULTS)


def test_nothing_was_vacuous(quick: list[Cell]) -> None:
    assert all(cell.num_comparisons >= 1 for cell in quick)
    widest = [evidence for evidence in evidence_of(quick, "batch_size") if "batch of 32" in evidence]
    assert all(evidence["batch of 32"]["max_num_running"] == 32 for evidence in widest)
    assert widest
    assert all(evidence["num_preemptions"] >= 1 for evidence in evidence_of(quick, "preemption"))
    for evidence in evidence_of(quick, "prefix_cache"):
        assert evidence["as configured"]["num_cached_tokens"] >= 1
        assert evidence["caching turned"]["num_cached_tokens"] == 0
    for evidence in evidence_of(quick, "speculation"):
        assert evidence["as configured"]["num_accepted_draft_tokens"] >= 1
        assert evidence["speculation turned"]["num_draft_tokens"] == 0


def test_another_weight_byte_or_setting_is_another_identity_too(quick: list[Cell]) -> None:
    """So a record would have been INCOMPARABLE before a bit was compared."""
    real = {control.name for control in CONTROLS if isinstance(control.fault, str)}
    for cell in quick:
        if cell.control in real:
            assert cell.engine_identity not in str(cell.evidence["engine_identity_with_fault"])


class Stub(BaseHTTPRequestHandler):
    """A server that shows an identity and then goes wrong."""

    identity: EngineIdentity
    answers: str

    def do_GET(self) -> None:
        if self.path != "/dpm/identity":
            self.send_error(404)
            return
        fields = dict(self.identity.fields)
        self._send({"engine_identity": self.identity.digest, "identity": fields})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        if self.answers != "nothing":
            self._send({"choices": []})

    def _send(self, document: Mapping[str, Any]) -> None:
        body = json.dumps(document).encode("utf-8")
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.send_header("x-dpm-identity", "f" * 64)
        self.send_header("x-dpm-determinism", "approved")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@contextmanager
def stub(model_dir: Path, answers: str) -> Iterator[str]:
    digest = PinnedTokenizer(model_dir).digest
    identity = EngineIdentity({"tokenizer_digest": digest, "flags": {"max_model_len": 8192}})
    handler = type("Handler", (Stub,), {"identity": identity, "answers": answers})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_server_that_cannot_be_reached_is_exit_4(home: Path, tmp_path: Path) -> None:
    done = dpm_run(home, "--engine", "http://127.0.0.1:9", "--quick", "--out", tmp_path, "--json")
    assert done.returncode == 4
    assert json.loads(done.stdout)["error"]["type"] == "EngineError"


@pytest.mark.parametrize(("answers", "said"), [("nothing", "ended in mid-call"), ("as another", "f" * 64)])
def test_a_server_that_dies_or_answers_as_another_makes_errors_and_exit_4(
    home: Path, model_dir: Path, tmp_path: Path, answers: str, said: str
) -> None:
    with stub(model_dir, answers) as url:
        done = dpm_run(home, "--engine", url, "--quick", "--check", "run_to_run", "--out", tmp_path, "--json")
    assert done.returncode == 4, done.stderr
    _, cells = read_results(tmp_path)
    assert {cell.verdict for cell in cells} == {"ERROR"}
    assert all(said in cell.reason for cell in cells)
