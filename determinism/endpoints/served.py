"""vLLM's server as an endpoint: started for the suite, or reached at an address."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from determinism.endpoints.endpoint import Endpoint, EngineEndpoint, Request
from determinism.endpoints.routes import RouteEndpoint, RouteName
from inference.api_key import key_headers
from inference.config import EngineConfig
from inference.enrolment import KnownAnswer, enrol, save_enrolment
from inference.server import free_port, plan_server, ready_state, running
from inference.server_engine import READ_TIMEOUT_S, VllmServerEngine
from projection.engine import Completion

HOST = "127.0.0.1"
ROUTES: Mapping[str, tuple[RouteName, bool]] = {
    "completions, whole": ("completions", False),
    "chat": ("chat", False),
    "chat, streamed": ("chat", True),
}
"""Routes beside the streamed completions, which the server's engine itself asks over."""


class Served:
    """A server that answers: its engine as an endpoint, and its other routes."""

    def __init__(self, endpoint: EngineEndpoint, engine: VllmServerEngine, routes: Mapping[str, Endpoint]) -> None:
        self.endpoint, self.engine, self.routes = endpoint, engine, routes


@contextmanager
def connect(url: str, weights_dir: Path) -> Iterator[Served]:
    """Reach a server.

    Raises:
        EngineError: it cannot be reached, or is not one of ours.
    """
    import httpx

    with ExitStack() as opened:
        engine = opened.enter_context(VllmServerEngine.connect(url, weights_dir))
        headers = key_headers(os.environ)
        client = opened.enter_context(
            httpx.Client(base_url=url, headers=headers, timeout=READ_TIMEOUT_S, trust_env=False)
        )

        def with_another_salt() -> VllmServerEngine:
            return VllmServerEngine(client, engine.tokenizer, engine.identity, weights_dir, secrets.token_hex(16))

        endpoint = EngineEndpoint(engine, f"{url} completions, streamed", with_another_salt)
        routes = {
            name: RouteEndpoint(endpoint, client, engine.tokenizer, route, is_streamed)
            for name, (route, is_streamed) in ROUTES.items()
        }
        yield Served(endpoint, engine, routes)


@contextmanager
def start(config: EngineConfig, weights_dir: Path, request: Request, answer: Completion, log: Path) -> Iterator[Served]:
    """Start a server on a free port and wait until its self-test has passed.

    request, answer: what the engine in process says, which the server must say too before it serves. It is short: the
    server's self-test is not what is tested here.

    Raises:
        EngineError: it cannot start, or its self-test fails.
    """
    plan = plan_server(config, weights_dir, HOST, free_port(HOST))
    known = KnownAnswer(
        prompt_token_ids=request.prompt_token_ids,
        token_ids=answer.token_ids,
        logprobs=tuple(logprob.hex() for logprob in answer.logprobs),
    )
    enrolment = log.with_suffix(".enrolment.json")
    save_enrolment(enrol(plan.identity, [known]), enrolment)
    with running(plan, log, enrolment) as server:
        server.wait_until(ready_state(plan, "APPROVED"))
        with connect(server.url, weights_dir) as served:
            yield served
