"""A scripted endpoint that speaks the Messages and the Chat Completions protocol over HTTP: it says what it is told to.

It stands for a provider, not for code of ours: requests reach it through the official SDKs and a real socket.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Way = Literal["whole", "cut off", "never"]


@dataclass(frozen=True)
class Said:
    """One scripted answer. way: whole, cut off in the middle of its body, or never sent while the endpoint runs."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    way: Way = "whole"


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]


class LiveServer:
    """What was asked, and what will be said; the last answer is said for ever."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.ends = threading.Event()
        self.url = ""
        self._script: deque[Said] = deque()

    def say(self, *answers: Said) -> None:
        self._script.extend(answers)

    def next_answer(self) -> Said:
        return self._script.popleft() if len(self._script) > 1 else self._script[0]


def message(text: str, model: str, stop_reason: str = "end_turn") -> dict[str, Any]:
    """A whole answer of the Messages protocol."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": text}],
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 7, "cache_read_input_tokens": 2},
    }


def chat_completion(text: str, model: str, finish_reason: str = "stop") -> dict[str, Any]:
    """A whole answer of the Chat Completions protocol."""
    tokens = [{"token": text, "logprob": -0.25, "bytes": None, "top_logprobs": []}]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "finish_reason": finish_reason,
        "logprobs": {"content": tokens, "refusal": None},
    }
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [choice],
        "system_fingerprint": "fp_1",
        "usage": {"prompt_tokens": 13, "completion_tokens": 7, "total_tokens": 20},
    }


@contextmanager
def live_server() -> Iterator[LiveServer]:
    """A scripted endpoint on a free port, until the context ends."""
    script = LiveServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            script.asked.append(Asked(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            said = script.next_answer()
            data = json.dumps(said.body).encode()
            if said.way == "never":
                script.ends.wait()
                self.close_connection = True
                return
            self.send_response(said.status)
            for name, value in said.headers.items():
                self.send_header(name, value)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            if said.way == "cut off":
                self.close_connection = True
                data = data[: len(data) // 2]
            self.wfile.write(data)

        def log_message(self, *_args: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    script.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield script
    finally:
        script.ends.set()
        server.shutdown()
        server.server_close()
        thread.join()
