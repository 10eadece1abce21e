"""The launcher with a stand-in for vLLM: what it checks before, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from inference import server, vllm_args
from inference.config import EngineConfig
from inference.server import MIDDLEWARE, ServerPlan, plan_server, running
from inference.server_settings import SETTINGS_VARIABLE, load_settings
from inference.vllm_identity import flag_values
from projection.engine import EngineIdentity
from projection.errors import ConfigurationError, EngineError, WeightsError

ROOT = Path(__file__).parents[2]
IDENTITY = EngineIdentity({"kind": "vllm"})
WITH_A_CHILD = """
import subprocess, sys, time, signal
signal.signal(signal.SIGTERM, signal.{disposition})
child = subprocess.Popen([sys.executable, "-c", "import time; print('child', flush=True); time.sleep(600)"])
time.sleep(600)
"""


def plan(program: str) -> ServerPlan:
    return ServerPlan(IDENTITY, (sys.executable, "-c", program), dict(os.environ), 0, "127.0.0.1", 1)


def members(session: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=,stat=", "-s", str(session)], capture_output=True, text=True, check=False)
    return [int(line.split()[0]) for line in found.stdout.splitlines() if not line.split()[1].startswith("Z")]


def said(log: Path, word: str) -> str | None:
    return word if word in log.read_text(encoding="utf-8") else None


@pytest.mark.parametrize("disposition", ["SIG_DFL", "SIG_IGN"])
def test_all_processes_end_with_the_context_even_those_that_do_not_want_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disposition: str
) -> None:
    monkeypatch.setattr(server, "STOP_TIMEOUT_S", 0.1)
    log = tmp_path / "log"
    with running(plan(WITH_A_CHILD.format(disposition=disposition)), log, None) as started:
        started.wait_until(lambda: said(log, "child"))
        assert len(members(started.process.pid)) == 2
    assert members(started.process.pid) == []


def test_an_error_in_the_context_ends_them_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(KeyboardInterrupt), running(plan(WITH_A_CHILD.format(disposition="SIG_DFL")), log, None) as one:
        one.wait_until(lambda: said(log, "child"))
        raise KeyboardInterrupt
    assert members(one.process.pid) == []


def test_a_launcher_that_is_killed_takes_its_server_along(tmp_path: Path) -> None:
    program = f"""
import sys, time
from pathlib import Path
from tests.inference.test_server import plan
from inference.server import running
with running(plan("import time; print('up', flush=True); time.sleep(600)"), Path({str(tmp_path / "log")!r}), None) as s:
    s.wait_until(lambda: "up" if "up" in s.log.read_text() else None)
    print(s.process.pid, flush=True)
    time.sleep(600)
"""
    launcher = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    pid = int(launcher.stdout.readline())
    ended = os.pidfd_open(pid)
    launcher.kill()
    launcher.communicate()
    assert select.select([ended], [], [], 30)[0]
    os.close(ended)
    assert members(pid) == []


def test_a_server_that_ends_by_itself_is_an_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    program = "import sys; print('first'); print('out of memory', file=sys.stderr); sys.exit(7)"
    log, reason = tmp_path / "log", r"exit 7(.|\n)*out of memory"
    with pytest.raises(EngineError, match=reason) as caught, running(plan(program), log, None) as started:
        started.wait()
    assert caught.value.fields["returncode"] == 7
    with pytest.raises(EngineError, match="ended by itself"), running(plan(program), tmp_path / "log", None) as started:
        started.wait_until(lambda: None)


def test_a_server_that_does_not_get_ready_in_time_is_an_error(tmp_path: Path) -> None:
    log, late = tmp_path / "log", pytest.raises(EngineError, match="did not become ready")
    with late, running(plan("import time; time.sleep(600)"), log, None) as started:
        started.wait_until(lambda: None, timeout_s=0)


class _Approved(BaseHTTPRequestHandler):
    """A server of the plan's identity that has passed its self-test."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("x-dpm-identity", IDENTITY.digest)
        self.end_headers()
        self.wfile.write(b'{"state": "APPROVED"}')

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_proxy_of_the_environment_does_not_stand_before_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{server.free_port('127.0.0.1')}")
    with HTTPServer(("127.0.0.1", 0), _Approved) as listening, ThreadPoolExecutor(1) as threads:
        listening.timeout = 10  # for whoever asks the proxy instead
        threads.submit(listening.handle_request)
        look = server.ready_state(replace(plan(""), port=listening.server_port), "APPROVED")
        assert look() == "APPROVED"


def test_the_settings_reach_the_server_and_are_gone_afterwards(tmp_path: Path) -> None:
    program = f"import os, shutil; shutil.copy(os.environ['{SETTINGS_VARIABLE}'], {str(tmp_path)!r})"
    with running(plan(program), tmp_path / "log", tmp_path / "known.json", 60.0) as started:
        started.process.wait()
    settings = load_settings(tmp_path / "settings.json")
    assert settings.engine_identity == IDENTITY.digest
    assert settings.enrolment == str(tmp_path / "known.json")
    assert settings.self_test_interval_s == 60.0


def test_a_taken_port_is_wrong_use_before_anything_is_hashed(engine_config: EngineConfig, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match="--port") as caught:
            plan_server(engine_config, tmp_path, "127.0.0.1", port)
    assert caught.value.fields["port"] == port


def test_an_address_that_is_not_this_machines_is_wrong_use(engine_config: EngineConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be used"):
        plan_server(engine_config, tmp_path, "192.0.2.1", 8000)


def test_weights_that_are_not_pinned_stop_the_start(engine_config: EngineConfig, tmp_path: Path) -> None:
    with pytest.raises(WeightsError):
        plan_server(engine_config, tmp_path, "127.0.0.1", server.free_port("127.0.0.1"))


def test_every_flag_of_the_server_is_in_the_identity(engine_config: EngineConfig) -> None:
    flags = vllm_args.server_arguments(engine_config, Path("somewhere"))
    values = flag_values(engine_config)
    assert len(values) == len(flags) - 1
    assert values["max_num_seqs"] == engine_config.max_num_seqs
    assert values["enforce_eager"] is True
    assert values["enable_prefix_caching"] is engine_config.features.prefix_caching
    assert "somewhere" not in json.dumps(values)


def test_the_middleware_is_where_the_server_looks_for_it() -> None:
    module, _, name = MIDDLEWARE.rpartition(".")
    program = f"import {module}, sys; {module}.{name}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, cwd="/")
    assert not {"torch", "vllm", "transformers"} & set(done.stdout.split())
