"""`dpm engine serve` and `dpm engine enroll`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from inference import engines
from inference.enrolling import enrol_server
from inference.enrolment import load_enrolment, save_enrolment
from inference.server import ServerPlan, plan_server, ready_state, running
from inference.tokenizer import PinnedTokenizer
from service import options
from service.console import out, print_json, say, step

Host = Annotated[str, typer.Option("--host", help="The address to listen on.")]
Port = Annotated[int, typer.Option("--port", help="The port to listen on.", min=1, max=65535)]
Log = Annotated[
    Path | None, typer.Option("--log", help="What the server says; by default under .dpm/logs.", dir_okay=False)
]


def serve(
    config: options.Config = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    log: Log = None,
    self_test_minutes: Annotated[
        float, typer.Option("--self-test-minutes", help="Minutes between two self-tests.", min=1)
    ] = 60.0,
) -> None:
    """Start the deterministic server; it is ready when its self-test has passed, and runs until it is stopped."""
    plan, _ = _plan(config, host, port)
    enrolment = engines.enrolment_path(plan.identity.digest)
    load_enrolment(enrolment, plan.identity.digest)
    with _stopped_by_signals(), running(plan, log or _log(port), enrolment, self_test_minutes * 60) as server:
        with step("starting vLLM and testing itself"):
            server.wait_until(ready_state(plan, "APPROVED"))
        say(f"ready: {server.url}  engine identity {plan.identity.digest}  log {server.log}")
        server.wait()


def enroll(
    config: options.Config = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    log: Log = None,
    json: options.Json = False,
) -> None:
    """Store this machine's known answers, after seeing that they do not depend on their neighbours."""
    plan, directory = _plan(config, host, port)
    path = engines.enrolment_path(plan.identity.digest)
    with running(plan, log or _log(port), None) as server:
        with step("starting vLLM"):
            server.wait_until(ready_state(plan, "SELF_TEST"))
        with step("asking for known answers, alone, in batches and in one forward pass"):
            enrolment = enrol_server(server.url, plan.identity, PinnedTokenizer(directory))
    save_enrolment(enrolment, path)
    if json:
        document = {"engine_identity": plan.identity.digest, "known_answers": len(enrolment.known_answers)}
        print_json({**document, "file": str(path)})
    else:
        out.print(
            f"enrolled {plan.identity.digest}  {len(enrolment.known_answers)} known answers in {path}", markup=False
        )


def _plan(config: Path | None, host: str, port: int) -> tuple[ServerPlan, Path]:
    settings = engines.read_config(config)
    directory = engines.existing_weights(settings.model)
    with step("checking weights and environment"):
        return plan_server(settings, directory, host, port), directory


def _log(port: int) -> Path:
    return engines.home() / "logs" / f"server-{port}.log"


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """SIGTERM stops as Ctrl-C does, and being stopped is how a server ends well."""

    def stop(_signum: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        say("stopped")
    finally:
        signal.signal(signal.SIGTERM, before)
