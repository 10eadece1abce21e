"""The routes of a wrapped server: which pass, which are ours, which do not exist; and answers piece by piece."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import httpx
import pytest

from inference.middleware import DpmMiddleware, Message, Receive, Scope, Send
from tests.inference.wrapped_server import IDENTITY, LittleServer, run

# Routes


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/inference/v1/generate"),
        ("POST", "/invocations"),
        ("POST", "/v1/chat/completions/batch"),
        ("POST", "/v1/completions/"),
        ("POST", "//v1/completions"),
        ("POST", "/cohere/v2/chat"),
        ("POST", "/generative_scoring"),
        ("POST", "/v1/systemone"),
        ("POST", "/v1/audio/transcriptions"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/update_weights"),
        ("POST", "/pause"),
        ("POST", "/a/route/of/next/year"),
        ("GET", "/v1/completions"),
        ("GET", "/v1/responses/resp_1"),
        ("PUT", "/v1/completions"),
        ("DELETE", "/health"),
    ],
)
def test_a_route_that_is_not_listed_is_not_served(
    wrapped: DpmMiddleware, little: LittleServer, method: str, path: str
) -> None:
    answer = run(wrapped, lambda client: client.request(method, f"http://server{path}", json={}))
    assert answer.status_code == 404
    assert little.received == []


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/health"), ("GET", "/metrics"), ("GET", "/v1/models"), ("POST", "/tokenize"), ("HEAD", "/health")],
)
def test_what_generates_nothing_passes(wrapped: DpmMiddleware, little: LittleServer, method: str, path: str) -> None:
    answer = run(wrapped, lambda client: client.request(method, path))
    assert answer.status_code == 200
    assert little.received[-1][:2] == (method, path)
    assert answer.headers["x-own"] == "1"
    assert answer.headers["x-dpm-determinism"] == "approved"


def test_a_websocket_is_closed(wrapped: DpmMiddleware) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    asyncio.run(wrapped({"type": "websocket", "path": "/v1/realtime", "headers": []}, receive, send))
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_the_identity_is_served_whole(wrapped: DpmMiddleware) -> None:
    answer = run(wrapped, lambda client: client.get("/dpm/identity")).json()
    assert answer == {"engine_identity": IDENTITY.digest, "identity": dict(IDENTITY.fields)}


def test_an_unknown_route_of_ours_is_404(wrapped: DpmMiddleware) -> None:
    assert run(wrapped, lambda client: client.get("/dpm/nothing")).status_code == 404


# Streams, and clients that go away


def test_a_stream_is_passed_on_piece_by_piece(wrapped: DpmMiddleware, little: LittleServer) -> None:
    """The server waits in the middle of its answer until the client has the first piece."""
    seen: list[bytes] = []

    async def talk(client: httpx.AsyncClient) -> None:
        gate = little.gate = asyncio.Event()
        sent: asyncio.Queue[Message] = asyncio.Queue()
        body = json.dumps({"prompt": [1], "stream": True}).encode()
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "client": ("c", 1)}

        async def receive() -> Message:
            return {"type": "http.request", "body": body}

        answering = asyncio.create_task(wrapped(scope, receive, sent.put))
        assert (await sent.get())["status"] == 200
        seen.append((await sent.get())["body"])
        assert not answering.done()
        gate.set()
        seen.append((await sent.get())["body"])
        await answering

    run(wrapped, talk)
    assert seen == little.chunks


def test_the_server_hears_that_its_client_went_away(wrapped: DpmMiddleware, little: LittleServer) -> None:
    heard: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        heard.extend([(await receive())["type"], (await receive())["type"]])

    async def talk(client: httpx.AsyncClient) -> None:
        messages: Iterator[Message] = iter(
            [{"type": "http.request", "body": b'{"prompt": [1]}'}, {"type": "http.disconnect"}]
        )

        async def receive() -> Message:
            return next(messages)

        wrapped._app = app
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "client": ("c", 1)}
        await wrapped(scope, receive, receive_nothing)

    run(wrapped, talk)
    assert heard == ["http.request", "http.disconnect"]


async def receive_nothing(message: Message) -> None:
    raise AssertionError(f"nothing is sent to a client that went away: {message}")


def test_a_client_that_goes_away_before_its_request_is_whole_costs_nothing(wrapped: DpmMiddleware) -> None:
    async def talk(client: httpx.AsyncClient) -> None:
        messages: Iterator[Message] = iter(
            [{"type": "http.request", "body": b'{"pro', "more_body": True}, {"type": "http.disconnect"}]
        )

        async def receive() -> Message:
            return next(messages)

        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "client": ("c", 1)}
        await wrapped(scope, receive, receive_nothing)

    run(wrapped, talk)
