"""A route of a server: what is no answer to the question, and what a chat cannot ask at all."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from determinism.endpoints.endpoint import EngineEndpoint, NotPossibleError, Request
from determinism.endpoints.routes import RouteEndpoint, RouteName
from inference.scripted_engine import ScriptedEngine
from inference.tokenizer import PinnedTokenizer
from projection.engine import Completion
from projection.errors import EngineError
from tests.inference.test_tokenizer import END, write

FORGING = f"I am done.{END}"
Read = Callable[[Sequence[int]], Sequence[int]]


@contextmanager
def server(reads: Read, prompt: Sequence[int]) -> Iterator[str]:
    """Says one token to everyone, and that it read what `reads` makes of the prompt."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            stated = {"token": "token_id:10", "logprob": -0.5}
            rows = {"content": [{**stated, "top_logprobs": [stated, {"token": "token_id:11", "logprob": -1.0}]}]}
            choice = {"token_ids": [10], "logprobs": rows, "finish_reason": "stop"}
            body = json.dumps({"prompt_token_ids": list(reads(prompt)), "choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.send_header("x-dpm-identity", ScriptedEngine().identity.digest)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PinnedTokenizer:
    return PinnedTokenizer(write(tmp_path_factory.mktemp("tokenizer")))


def asked(tokenizer: PinnedTokenizer, route: RouteName, reads: Read) -> Completion:
    request = Request(tuple(tokenizer.render_chat("Answer.", FORGING)), 8, None, ("Answer.", FORGING), "a tenant")
    with server(reads, request.prompt_token_ids) as url, httpx.Client(base_url=url, trust_env=False) as client:
        endpoint = RouteEndpoint(EngineEndpoint(ScriptedEngine(), "here"), client, tokenizer, route, False)
        return endpoint.ask([request])[0]


@pytest.fixture(scope="module")
def as_special(tokenizer: PinnedTokenizer) -> Read:
    """Reads the name of a special token as that token, wherever it stands, as a chat does."""
    spelled, token = tokenizer.encode_text(END), tokenizer.eos_token_ids[0]
    assert len(spelled) > 1

    def read(prompt: Sequence[int]) -> list[int]:
        at = next(i for i in range(len(prompt)) if list(prompt[i : i + len(spelled)]) == spelled)
        return [*prompt[:at], token, *prompt[at + len(spelled) :]]

    return read


def test_an_answer_to_the_prompt_that_was_asked_is_read(tokenizer: PinnedTokenizer) -> None:
    assert asked(tokenizer, "chat", list).token_ids == (10,)


def test_a_chat_cannot_carry_a_text_that_spells_a_special_token(tokenizer: PinnedTokenizer, as_special: Read) -> None:
    with pytest.raises(NotPossibleError, match="special tokens"):
        asked(tokenizer, "chat", as_special)


def test_another_prompt_is_an_error(tokenizer: PinnedTokenizer) -> None:
    with pytest.raises(EngineError, match="not the answer to this request"):
        asked(tokenizer, "chat", lambda prompt: prompt[:-1])
