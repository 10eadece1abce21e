"""A tiny ASGI application for the server's wrapper to stand in front of, and how the tests talk to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from inference.enrolment import KnownAnswer, enrol, save_enrolment
from inference.middleware import DpmMiddleware, Message, Receive, Scope, Send
from inference.server_settings import ServerSettings
from projection.engine import EngineIdentity

IDENTITY = EngineIdentity({"kind": "vllm", "tokenizer_digest": "00"})


def logprob_of(prompt: list[int], position: int) -> float:
    """What our little model says of each token: a function of nothing but the prompt."""
    return -(sum(prompt) * 31 + position * 7) % 97 / 64


class LittleServer:
    """An ASGI application that answers the self-test from its prompts, and keeps what clients sent."""

    def __init__(self) -> None:
        self.received: list[tuple[str, str, bytes]] = []
        self.num_running = self.max_running = 0
        self.drift = 0.0  # added to log-probabilities of whoever is not alone
        self.drift_alone = 0.0
        self.status = 200
        self.failure: Exception | None = None  # raised instead of an answer, as a route of vLLM's may
        self.chunks = [b'{"ok":', b" true}"]
        self.gate: asyncio.Event | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        body = (await receive()).get("body", b"") if scope["method"] == "POST" else b""
        if self.failure is not None:
            raise self.failure
        if scope["client"]:
            self.received.append((scope["method"], scope["path"], body))
        chunks = self.chunks if scope["client"] else [json.dumps(await self._complete(json.loads(body))).encode()]
        await send({"type": "http.response.start", "status": self.status, "headers": [(b"x-own", b"1")]})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if self.gate is not None:
                await self.gate.wait()
        await send({"type": "http.response.body", "body": b""})

    async def _complete(self, request: dict[str, Any]) -> dict[str, Any]:
        self.num_running += 1
        self.max_running = max(self.max_running, self.num_running)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        prompt, drift = request["prompt"], self.drift if self.num_running > 1 else self.drift_alone
        self.num_running -= 1
        if "prompt_logprobs" in request:
            known = known_answer(prompt[:3])
            rows = [
                {str(token_id): {"logprob": float.fromhex(logprob), "rank": 1}}
                for token_id, logprob in zip(known.token_ids, known.logprobs, strict=True)
            ]
            return {"choices": [{"prompt_logprobs": [None, *[{}] * 2, *rows]}]}
        known = known_answer(prompt)
        logprobs = [float.fromhex(logprob) + drift for logprob in known.logprobs]
        return {"choices": [{"token_ids": known.token_ids, "logprobs": {"token_logprobs": logprobs}}]}


def known_answer(prompt: list[int]) -> KnownAnswer:
    token_ids = [sum(prompt) + position for position in range(4)]
    logprobs = [logprob_of(prompt, position).hex() for position in range(4)]
    return KnownAnswer.model_validate(
        {"prompt_token_ids": prompt, "token_ids": token_ids, "logprobs": logprobs}, strict=False
    )


KNOWN = [known_answer([seed, seed + 1, 5]) for seed in range(3)]


def server_settings(tmp_path: Path, known: list[KnownAnswer] | None, **more: Any) -> ServerSettings:
    path = tmp_path / "enrolment.json"
    if known is not None:
        save_enrolment(enrol(IDENTITY, known), path)
    return ServerSettings(
        identity=dict(IDENTITY.fields), seed=7, enrolment=None if known is None else str(path), **more
    )


def run(wrapped: DpmMiddleware, talk: Callable[[httpx.AsyncClient], Awaitable[Any]], *, is_started: bool = True) -> Any:
    """Start the wrapped application, wait for its self-test where there is one, and talk to it."""

    async def live() -> Any:
        told: asyncio.Queue[Message] = asyncio.Queue()
        done: asyncio.Queue[Message] = asyncio.Queue()
        await told.put({"type": "lifespan.startup"})
        life = asyncio.create_task(wrapped({"type": "lifespan", "state": {}}, told.get, done.put))
        await done.get()
        transport = httpx.ASGITransport(app=wrapped, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            if is_started:
                await client.post("/dpm/selftest")
            answer = await talk(client)
        await told.put({"type": "lifespan.shutdown"})
        await life
        return answer

    return asyncio.run(live())
