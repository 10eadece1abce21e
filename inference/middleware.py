"""`DpmMiddleware`: what vLLM's own server is wrapped in, so that every answer is deterministic, and says so.

Loaded by vLLM (`--middleware inference.middleware.DpmMiddleware`) in its API process. Promises that nothing generates
there outside the profile of `inference.request_profile`, that each answer carries `x-dpm-identity` and
`x-dpm-determinism`, and that until the self-test has passed, and from its first failure on, nobody gets an answer who
did not ask for a degraded one with `x-dpm-accept: degraded`. Bodies of answers pass as they come, unbuffered.

    GET  /dpm/identity   the engine identity and its digest         GET  /dpm/ready     200 when approved, else 503
    GET  /dpm/selftest   state, reason, times run                   POST /dpm/selftest  run it now
    GET  /dpm/metrics    Prometheus text, beside vLLM's /metrics

A request may leave temperature and seed out: they are set to 0 and the pinned seed, and `x-dpm-set` names them.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from inference.api_key import key_headers
from inference.containment import FOREIGN_ERRORS
from inference.enrolment import load_enrolment
from inference.request_profile import GENERATING, NEUTRAL, is_harmless, judge, parse_object
from inference.selftest import SelfTest
from inference.server_settings import SETTINGS_VARIABLE, ServerSettings, load_settings
from inference.vllm_identity import require_settled
from projection.errors import ConfigurationError, RequestError

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOCAL_SCOPE = {
    "type": "http",
    "asgi": {"version": "3.0"},
    "http_version": "1.1",
    "scheme": "http",
    "method": "POST",
    "query_string": b"",
    "root_path": "",
    "client": None,
    "server": None,
}


class _Refused(Exception):
    """An answer that is not vLLM's; never leaves this module."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param


class DpmMiddleware:
    """An ASGI application around another."""

    def __init__(self, app: App, settings: ServerSettings | None = None) -> None:
        self._app = app
        self._settings = settings or settings_from_environment(os.environ)
        self._key_headers = key_headers(os.environ)
        self._digest = self._settings.engine_identity.encode("ascii")
        path = self._settings.enrolment
        enrolment = None if path is None else load_enrolment(Path(path), self._settings.engine_identity)
        self._self_test = SelfTest(enrolment, self._ask, self._settings.max_num_seqs)
        self._server: Mapping[str, Any] = {}
        self._timer: asyncio.Task[None] | None = None
        self._num_refused: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._answer(scope, receive, send)
            case "lifespan":
                await self._live(scope, receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1008, "reason": "not served under this profile"})

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The server's life: the self-test begins when vLLM has started and ends with it."""
        self._server = {name: scope[name] for name in ("app", "state") if name in scope}
        if "app" in scope:
            require_settled(scope["app"].state.vllm_config, self._settings.identity["flags"])

        async def send_on(message: Message) -> None:
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                self._timer = asyncio.create_task(self._test_for_ever())

        try:
            await self._app(scope, receive, send_on)
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def _test_for_ever(self) -> None:
        while True:
            await self._self_test.run()
            if self._settings.self_test_interval_s is None:
                return
            await asyncio.sleep(self._settings.self_test_interval_s)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        more: list[tuple[bytes, bytes]] = []

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                marks = [(b"x-dpm-identity", self._digest), (b"x-dpm-determinism", self._determinism())]
                message = {**message, "headers": [*message.get("headers", ()), *marks, *more]}
            await send(message)

        try:
            body = await self._judge(scope, receive, more)
        except _Refused as refused:
            await _send_error(send_on, refused)
        except _Disconnected:
            return
        else:
            if scope["path"].startswith("/dpm/"):
                await self._serve(scope, send_on)
            else:
                await self._app(scope, receive if body is None else _replayed(body, receive), send_on)

    async def _judge(self, scope: Scope, receive: Receive, more: list[tuple[bytes, bytes]]) -> bytes | None:
        """The body to hand on; None where the request passes as it is."""
        method, path = scope["method"], scope["path"]
        if path.startswith("/dpm/") or (path not in GENERATING and is_harmless(method, path)):
            return None
        if path not in GENERATING or method != "POST":
            self._count_refused("route")
            raise _Refused(404, f"{method} {path} is not served under this profile")
        self._require_answerable(scope)
        body = await self._read(receive)
        try:
            judged = judge(path, body, self._settings.seed)
        except RequestError as exc:
            param = exc.fields.get("param")
            self._count_refused(str(param) if param in NEUTRAL else "body")
            raise _Refused(400, exc.message, str(param) if param else None) from exc
        if judged.set_fields:
            more.append((b"x-dpm-set", ", ".join(judged.set_fields).encode("ascii")))
        _set_content_length(scope, len(judged.body))
        return judged.body

    def _require_answerable(self, scope: Scope) -> None:
        test = self._self_test
        accepts_degraded = (b"x-dpm-accept", b"degraded") in scope["headers"]
        if test.state != "APPROVED" and not accepts_degraded:
            self._count_refused("state")
            raise _Refused(503, f"this server is in state {test.state}: {test.reason}. It answers when it is APPROVED")

    async def _read(self, receive: Receive) -> bytes:
        parts, size, is_more = [], 0, True
        while is_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Disconnected
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._settings.max_body_bytes:
                self._count_refused("size")
                raise _Refused(413, f"the body has more than {self._settings.max_body_bytes} bytes")
            is_more = message.get("more_body", False)
        return b"".join(parts)

    def _determinism(self) -> bytes:
        return b"approved" if self._self_test.state == "APPROVED" else b"degraded"

    def _count_refused(self, what: str) -> None:
        self._num_refused[what] = self._num_refused.get(what, 0) + 1

    async def _serve(self, scope: Scope, send: Send) -> None:
        """Our own routes."""
        test = self._self_test
        match scope["method"], scope["path"]:
            case "GET", "/dpm/identity":
                identity = dict(self._settings.identity)
                await _send_json(send, 200, {"engine_identity": self._settings.engine_identity, "identity": identity})
            case "GET", "/dpm/ready":
                await _send_json(send, 200 if test.state == "APPROVED" else 503, test.document())
            case "GET", "/dpm/selftest":
                await _send_json(send, 200, test.document())
            case "POST", "/dpm/selftest":
                await test.run()
                await _send_json(send, 200 if test.state == "APPROVED" else 503, test.document())
            case "GET", "/dpm/metrics":
                await _send(send, 200, b"text/plain; version=0.0.4; charset=utf-8", self._metrics().encode("ascii"))
            case method, path:
                await _send_error(send, _Refused(404, f"{method} {path} is not a route of this server"))

    def _metrics(self) -> str:
        refused = [
            f'dpm_refused_requests_total{{what="{what}"}} {num}' for what, num in sorted(self._num_refused.items())
        ]
        identity = [f'dpm_engine_identity{{digest="{self._settings.engine_identity}"}} 1']
        return "\n".join([*self._self_test.metrics(), *identity, *refused]) + "\n"

    async def _ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the wrapped server answers to a completion request of ours.

        Raises:
            RequestError: it fails, or answers with an error, or not with JSON.
        """
        body = json.dumps({**request, "temperature": 0, "seed": self._settings.seed}).encode("utf-8")
        sent = {"content-type": "application/json", "content-length": str(len(body)), **self._key_headers}
        headers = [(name.encode("ascii"), value.encode("utf-8")) for name, value in sent.items()]
        path = "/v1/completions"
        scope = {**LOCAL_SCOPE, **self._server, "path": path, "raw_path": path.encode("ascii"), "headers": headers}
        status, parts = 0, []

        async def keep(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            parts.append(message.get("body", b""))

        try:
            await self._app(scope, _replayed(body, _silence), keep)
        except FOREIGN_ERRORS as exc:
            raise RequestError(f"the server failed: {exc!r}") from exc
        answer = b"".join(parts)
        if status != 200:
            raise RequestError(f"the server answers {status}: {answer[:500].decode('utf-8', 'replace')}")
        return parse_object(answer)


class _Disconnected(Exception):
    """The client went away before its request was whole; never leaves this module."""


def settings_from_environment(environ: Mapping[str, str]) -> ServerSettings:
    """The settings that the launcher wrote.

    Raises:
        ConfigurationError: there are none, or they are malformed.
    """
    if SETTINGS_VARIABLE not in environ:
        raise ConfigurationError(f"{SETTINGS_VARIABLE} is not set: start this server with 'dpm engine serve'")
    return load_settings(Path(environ[SETTINGS_VARIABLE]))


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Receive the whole body at once, then whatever comes, which is that the client goes away."""
    is_read = False

    async def receive_on() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_on


async def _silence() -> Message:
    """A client that stays."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def _set_content_length(scope: Scope, length: int) -> None:
    kept = [(name, value) for name, value in scope["headers"] if name not in (b"content-length", b"transfer-encoding")]
    scope["headers"] = [*kept, (b"content-length", str(length).encode("ascii"))]


async def _send_error(send: Send, refused: _Refused) -> None:
    kind = "invalid_request_error" if refused.status < 500 else "unavailable_error"
    error = {"message": refused.message, "type": kind, "param": refused.param, "code": refused.status}
    await _send_json(send, refused.status, {"type": "error", "error": error})


async def _send_json(send: Send, status: int, document: Mapping[str, Any]) -> None:
    await _send(send, status, b"application/json", json.dumps(document).encode("utf-8"))


async def _send(send: Send, status: int, content_type: bytes, body: bytes) -> None:
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode("ascii"))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
