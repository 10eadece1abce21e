"""What the server's middleware costs a request: `python -m benchmarks.middleware_cost`.

The same requests to an ASGI application that does nothing, bare and wrapped, one after the other in one process; the
cost is the difference of the medians. No model, no network.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Sequence

from inference.middleware import App, DpmMiddleware, Message, Receive, Scope, Send
from inference.server_settings import ServerSettings

PROMPT_LENGTHS = (16, 1000, 6500)
NUM_REQUESTS = 500


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


async def _discard(_message: Message) -> None:
    pass


async def _seconds(app: App, body: bytes) -> Sequence[float]:
    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    seconds = []
    for _ in range(NUM_REQUESTS):
        headers = [(b"content-type", b"application/json"), (b"x-dpm-accept", b"degraded")]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}
        started = time.perf_counter()
        await app(scope, receive, _discard)
        seconds.append(time.perf_counter() - started)
    return seconds


def measure(num_prompt_tokens: int) -> float:
    """Milliseconds that the middleware adds to a request of that many prompt tokens, median."""
    wrapped = DpmMiddleware(_nothing, ServerSettings(identity={"kind": "vllm"}, seed=0))
    body = json.dumps({"prompt": list(range(num_prompt_tokens)), "max_tokens": 300}).encode("utf-8")
    bare, with_middleware = (statistics.median(asyncio.run(_seconds(app, body))) for app in (_nothing, wrapped))
    return (with_middleware - bare) * 1000


def main() -> None:
    for num_tokens in PROMPT_LENGTHS:
        print(f"{num_tokens:>6} prompt tokens: {measure(num_tokens):.3f} ms a request")


if __name__ == "__main__":
    main()
