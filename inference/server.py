"""vLLM's own OpenAI server, started as a configuration asks and ended with everything that belongs to it.

Promises that the weights are checked first, that the identity that the server shows is the in-process engine's, that
nothing reaches it but through `inference.middleware`, and that no process of it outlives its launcher: its processes
are one group, which is killed at the end, and the kernel ends it if the launcher is killed. What the server says goes
to a log file; its end is an EngineError with the last lines of that file.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from inference import vllm_args, vllm_runtime, weights
from inference.config import EngineConfig
from inference.server_settings import SETTINGS_VARIABLE, ServerSettings
from inference.tokenizer import PinnedTokenizer
from inference.vllm_identity import vllm_identity
from projection.engine import EngineIdentity
from projection.errors import ConfigurationError, EngineError

MODULE = "vllm.entrypoints.openai.api_server"
MIDDLEWARE = "inference.middleware.DpmMiddleware"
MODEL_NAME = "dpm"
START_TIMEOUT_S = 1800.0
STOP_TIMEOUT_S = 30.0  # to end by itself
KILL_TIMEOUT_S = 30.0  # for the kernel to clear away what was killed
SECONDS_BETWEEN_LOOKS = 0.25
SECONDS_BETWEEN_DEATHS = 0.01
NUM_TAIL_LINES = 30
PR_SET_PDEATHSIG = 1
Settle = Callable[[], str | None]
"""Whether the server got where it should: None is not yet. Raises where it never will."""


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """All that a server is started with, checked. identity: what it will show."""

    identity: EngineIdentity
    command: tuple[str, ...]
    environment: Mapping[str, str]
    seed: int
    host: str
    port: int

    @property
    def url(self) -> str:
        """Where this machine reaches it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{host}:{self.port}"


def plan_server(config: EngineConfig, weights_dir: Path, host: str, port: int) -> ServerPlan:
    """Check weights, environment and port, and say what to start.

    Raises:
        WeightsError: a pinned file is missing, added or changed.
        ConfigurationError: vLLM or our plugin is not installed, the environment contradicts the configuration, or the
            port is taken.
    """
    _require_installed(config)
    _require_free(host, port)
    environment = _environment(config)
    identity = _identity(config, weights_dir, environment)
    arguments = [*vllm_args.server_arguments(config, weights_dir.resolve()), *_own_arguments(identity, host, port)]
    command = (sys.executable, "-P", "-m", MODULE, *arguments)
    return ServerPlan(identity, command, environment, config.seed, host, port)


def server_identity(config: EngineConfig, weights_dir: Path) -> EngineIdentity:
    """The identity that a server would show if it were started here and now; raises as `plan_server`."""
    return _identity(config, weights_dir, _environment(config))


def _identity(config: EngineConfig, weights_dir: Path, environment: Mapping[str, str]) -> EngineIdentity:
    manifest = weights.check(weights_dir)
    return vllm_identity(config, manifest, PinnedTokenizer(weights_dir).digest, environment)


def _environment(config: EngineConfig) -> dict[str, str]:
    required = vllm_args.server_environment(config)
    vllm_runtime.require_agreement(required, os.environ)
    inherited = {name: value for name, value in os.environ.items() if name not in vllm_args.NOT_IN_THE_SERVER}
    return {**inherited, **required}


def _own_arguments(identity: EngineIdentity, host: str, port: int) -> list[str]:
    """What is ours and not the configuration's; changes no output bit."""
    return [
        f"--host={host}",
        f"--port={port}",
        f"--served-model-name={MODEL_NAME}",
        f"--middleware={MIDDLEWARE}",
        "--fingerprint-mode=custom",
        f"--fingerprint-value={identity.digest}",
        "--max-logprobs=-1",
    ]


def _require_installed(config: EngineConfig) -> None:
    if find_spec("vllm") is None:
        raise ConfigurationError("vLLM is not installed: run the set-up")
    if config.device == "cpu" and config.attention.invariant:
        plugins = entry_points(group="vllm.general_plugins", name=vllm_runtime.PLUGIN_NAME)
        if not plugins:
            raise ConfigurationError(
                f"vLLM would not find our plugin {vllm_runtime.PLUGIN_NAME}: install this package (make setup)"
            )


def _require_free(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, OverflowError) as exc:
        raise ConfigurationError(
            f"{host} port {port} cannot be used: {exc}. Choose another with --port", host=host, port=port
        ) from exc


def free_port(host: str) -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A started server. `running` makes one and ends it."""

    def __init__(self, process: subprocess.Popen[bytes], plan: ServerPlan, log: Path) -> None:
        self.process, self.plan, self.log = process, plan, log

    @property
    def url(self) -> str:
        return self.plan.url

    def wait_until(self, settled: Settle, timeout_s: float = START_TIMEOUT_S) -> str:
        """Look again and again until the server got there; returns what `settled` says.

        Raises:
            EngineError: the server ended, or did not get there in time.
        """
        limit = time.monotonic() + timeout_s
        while (found := settled()) is None:
            self.require_alive()
            if time.monotonic() > limit:
                raise EngineError(f"the server did not become ready in {timeout_s:.0f} s; see {self.log}")
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return found

    def require_alive(self) -> None:
        """Raises:
        EngineError: the server ended; with the last lines of its log.
        """
        if self.process.poll() is not None:
            raise self._ended()

    def wait(self) -> None:
        """Wait for the server's end, which is an error: it should serve until it is stopped."""
        self.process.wait()
        raise self._ended()

    def _ended(self) -> EngineError:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-NUM_TAIL_LINES:]
        tail = "\n".join(f"  {line}" for line in lines)
        return EngineError(
            f"the server ended by itself (exit {self.process.returncode}). The last lines of {self.log}:\n{tail}",
            returncode=self.process.returncode,
            log=str(self.log),
        )


@contextmanager
def running(
    plan: ServerPlan, log: Path, enrolment: Path | None, self_test_interval_s: float | None = None
) -> Iterator[Server]:
    """Start the server and end it, and all its processes, when the context ends. It is not ready at once.

    enrolment: the known answers that must come back before it is; None is a server to be enrolled.

    Raises:
        EngineError: it cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="dpm-server-") as folder:
        settings = Path(folder) / "settings.json"
        settings.write_text(_settings(plan, enrolment, self_test_interval_s), encoding="utf-8")
        process = _start(plan, log, settings)
        try:
            yield Server(process, plan, log)
        finally:
            _end(process)


def _settings(plan: ServerPlan, enrolment: Path | None, self_test_interval_s: float | None) -> str:
    return ServerSettings(
        identity=dict(plan.identity.fields),
        seed=plan.seed,
        enrolment=None if enrolment is None else str(enrolment.resolve()),
        self_test_interval_s=self_test_interval_s,
    ).model_dump_json()


def _start(plan: ServerPlan, log: Path, settings: Path) -> subprocess.Popen[bytes]:
    environment = {**plan.environment, SETTINGS_VARIABLE: str(settings)}
    prctl = ctypes.CDLL(None).prctl  # loaded before the fork
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as sink:
            return subprocess.Popen(
                plan.command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509  # one system call
            )
    except OSError as exc:
        raise EngineError(f"the server cannot be started: {exc}") from exc


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to end, then kill what is left of its group."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
    limit = time.monotonic() + KILL_TIMEOUT_S
    while _has_members(process.pid) and time.monotonic() < limit:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(SECONDS_BETWEEN_DEATHS)
    process.wait()


def _has_members(group: int) -> bool:
    """Whether a process of the group still runs; those that wait for their parent to hear of their end do not."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, found = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:3]
            if int(found) == group and state != "Z":
                return True
    return False


def ready_state(plan: ServerPlan, wanted: str) -> Settle:
    """Looks for a server of the plan's identity in the wanted state.

    The look raises EngineError where another server answers, or its self-test has failed.
    """
    import httpx

    def look() -> str | None:
        try:
            answer = httpx.get(f"{plan.url}/dpm/selftest", timeout=10.0, trust_env=False)
            state: dict[str, Any] = answer.json()
        except (httpx.HTTPError, ValueError):
            return None
        if answer.headers.get("x-dpm-identity") != plan.identity.digest:
            raise EngineError(f"another server answers at {plan.url}; choose another port")
        if state.get("state") == "ERROR":
            raise EngineError(f"the server's self-test failed: {state.get('reason')}", **state)
        return wanted if state.get("state") == wanted else None

    return look
