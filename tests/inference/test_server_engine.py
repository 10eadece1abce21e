"""The engine behind HTTP against a little server that answers what it should, and what it should not."""

from __future__ import annotations

import json
import math
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from inference import engines
from inference.config import EngineConfig
from inference.logprob_rows import best_allowed, is_best
from inference.server_engine import VllmServerEngine
from inference.tokenizer import PinnedTokenizer
from projection.engine import EngineIdentity
from projection.errors import EngineError, NotFoundError, PromptTooLongError
from tests.inference.test_tokenizer import write

END_OF_TURN = 1
Answer = dict[str, Any]


class LittleServer(ThreadingHTTPServer):
    """Speaks as `dpm engine serve` does, of an engine that says the same three tokens to everyone."""

    daemon_threads = True

    def __init__(self, identity: EngineIdentity) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.identity = identity
        self.headers = {"x-dpm-identity": identity.digest, "x-dpm-determinism": "approved"}
        self.status = 200
        self.chunks = [chunk([10], -0.5), chunk([11], -0.25), chunk([END_OF_TURN], 0.0, "stop"), usage(3)]
        self.tail = b"data: [DONE]\n\n"
        self.is_cut = False
        self.requests: list[Answer] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: LittleServer

    def do_GET(self) -> None:
        identity = self.server.identity
        self._answer(json.dumps({"engine_identity": identity.digest, "identity": dict(identity.fields)}).encode())

    def do_POST(self) -> None:
        self.server.requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        chunks = b"".join(
            b"data: " + (part if isinstance(part, bytes) else json.dumps(part).encode()) + b"\n\n"
            for part in self.server.chunks
        )
        self._answer(chunks + self.server.tail)

    def _answer(self, body: bytes) -> None:
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body) + 1000 * self.server.is_cut))
        self.end_headers()
        self.wfile.write(body)
        if self.server.is_cut:
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def chunk(token_ids: list[int], logprob: float, finish_reason: str | None = None) -> Answer:
    top = [{f"token_id:{token_id}": logprob, "token_id:99": -9999.0} for token_id in token_ids]
    choice = {"token_ids": token_ids, "logprobs": {"top_logprobs": top}, "finish_reason": finish_reason}
    return {"choices": [choice]}


def usage(num_prompt_tokens: int) -> Answer:
    return {"choices": [], "usage": {"prompt_tokens": num_prompt_tokens}}


@pytest.fixture
def weights_dir(tmp_path: Path) -> Path:
    return write(tmp_path, config__json={"vocab_size": 272})


@pytest.fixture
def server(weights_dir: Path) -> Iterator[LittleServer]:
    fields = {"tokenizer_digest": PinnedTokenizer(weights_dir).digest, "flags": {"max_model_len": 64}}
    with LittleServer(EngineIdentity(fields)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def engine(server: LittleServer, weights_dir: Path) -> Iterator[VllmServerEngine]:
    with VllmServerEngine.connect(server.url, weights_dir) as engine:
        yield engine


def test_a_server_that_takes_the_call_and_says_nothing_is_given_up(weights_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(EngineError, match="does not answer in time"):
            VllmServerEngine.connect(url, weights_dir, identity_timeout_s=0.2)


def test_tokens_go_in_and_come_out(engine: VllmServerEngine, server: LittleServer) -> None:
    seen: list[tuple[int, int]] = []
    completion = engine.generate([4, 5, 6], 9, None, lambda done, limit: seen.append((done, limit)))
    assert completion.token_ids == (10, 11, END_OF_TURN)
    assert completion.logprobs == (-0.5, -0.25, 0.0)
    assert completion.margins == (None, None, None)
    assert completion.finish_reason == "stop"
    assert seen == [(1, 9), (2, 9), (3, 9)]
    (request,) = server.requests
    assert (request["prompt"], request["temperature"], request["stop_token_ids"]) == ([4, 5, 6], 0, [1, 2])
    assert engine.identity.digest == server.identity.digest
    assert engine.max_model_len == 64


def test_what_does_not_fit_is_never_sent(engine: VllmServerEngine, server: LittleServer) -> None:
    with pytest.raises(PromptTooLongError):
        engine.generate([4] * 60, 5, None)
    assert server.requests == []


def test_a_cut_answer_is_no_answer_and_asking_again_gives_the_whole(
    engine: VllmServerEngine, server: LittleServer
) -> None:
    server.is_cut, server.tail = True, b""
    with pytest.raises(EngineError, match="nothing was kept"):
        engine.generate([4, 5, 6], 9, None)
    server.is_cut, server.tail = False, b"data: [DONE]\n\n"
    assert engine.generate([4, 5, 6], 9, None).token_ids == (10, 11, END_OF_TURN)


@pytest.mark.parametrize(
    ("chunks", "reason"),
    [
        ([b"{"], "cannot be read"),
        ([b"[]"], "fails"),
        ([{"error": {"message": "out of memory"}}], "out of memory"),
        ([{"choices": [{"token_ids": [10]}]}], "cannot be read"),
        ([chunk([10], -0.5), usage(3)], "no whole answer"),
        ([chunk([10], -0.5, "abort"), usage(3)], "no whole answer"),
        ([chunk([10], -0.5, "stop")], "no whole answer"),
        ([chunk([10], -0.5, "stop"), usage(2)], "no whole answer"),
        ([chunk([10], math.nan, "stop"), usage(3)], "no log-probability"),
    ],
)
def test_an_answer_that_is_none_is_an_engine_error(
    engine: VllmServerEngine, server: LittleServer, chunks: list[Any], reason: str
) -> None:
    server.chunks = chunks
    with pytest.raises(EngineError, match=reason):
        engine.generate([4, 5, 6], 9, None)


def test_an_answer_without_its_last_word_is_none(engine: VllmServerEngine, server: LittleServer) -> None:
    server.tail = b""
    with pytest.raises(EngineError, match="in the middle of its answer"):
        engine.generate([4, 5, 6], 9, None)


@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_a_refusal_is_an_engine_error_that_says_why(
    engine: VllmServerEngine, server: LittleServer, status: int
) -> None:
    server.status, server.chunks, server.tail = status, [], b'{"error": {"message": "the reason"}}'
    with pytest.raises(EngineError, match="the reason") as caught:
        engine.generate([4, 5, 6], 9, None)
    assert caught.value.fields["status"] == status


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"x-dpm-determinism": "degraded"}, "not approved"),
        ({"x-dpm-identity": "f" * 64}, "f" * 64),
    ],
)
def test_an_answer_of_another_or_a_degraded_engine_is_refused(
    engine: VllmServerEngine, server: LittleServer, headers: dict[str, str], reason: str
) -> None:
    server.headers |= headers
    with pytest.raises(EngineError, match=reason):
        engine.generate([4, 5, 6], 9, None)


def test_a_server_of_another_identity_or_tokenizer_is_refused_with_both_digests(
    server: LittleServer, weights_dir: Path
) -> None:
    with pytest.raises(EngineError, match="e" * 64) as caught:
        VllmServerEngine.connect(server.url, weights_dir, expected_identity="e" * 64)
    assert caught.value.fields == {"expected": "e" * 64, "found": server.identity.digest}
    write(weights_dir, tokenizer_config__json={"eos_token": "<|im_end|>"})
    with pytest.raises(EngineError, match="has the tokenizer"):
        VllmServerEngine.connect(server.url, weights_dir)


def test_a_server_that_is_not_ours_is_refused(server: LittleServer, weights_dir: Path) -> None:
    server.status = 404
    with pytest.raises(EngineError, match="dpm engine serve"):
        VllmServerEngine.connect(server.url, weights_dir)


def test_where_nobody_listens_the_error_says_what_to_start(weights_dir: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        with pytest.raises(EngineError, match="dpm engine serve"):
            VllmServerEngine.connect(f"http://127.0.0.1:{probe.getsockname()[1]}", weights_dir)


def test_a_servers_address_is_an_engines_name(
    server: LittleServer, weights_dir: Path, engine_config: EngineConfig
) -> None:
    config = engine_config.model_copy(update={"model": str(weights_dir)})
    with engines.open_engine(server.url, config) as engine:
        assert engine.identity.digest == server.identity.digest
    assert engines.open_tokenizer(server.url, config).digest == PinnedTokenizer(weights_dir).digest
    with pytest.raises(NotFoundError):
        engines.open_engine(server.url, engine_config.model_copy(update={"model": "nowhere"}))


ALL = [-1, -1]
ONLY_SEVEN = [1 << 7, 0]
SEVEN_AND_NINE = [1 << 7 | 1 << 9, 0]


@pytest.mark.parametrize(
    ("row", "words", "num_top", "best"),
    [
        ({1: -0.5, 2: -1.0}, ALL, 2, 1),
        ({1: -0.5, 2: -1.0, 7: -9.0}, SEVEN_AND_NINE, 2, None),  # 9 may be likelier
        ({1: -0.5, 2: -1.0, 7: -9.0}, SEVEN_AND_NINE, 64, 7),  # the whole vocabulary was seen
        ({1: -0.5, 7: -1.0}, SEVEN_AND_NINE, 2, None),  # 9 may be as likely
        ({1: -0.5, 7: -0.75, 3: -1.0}, SEVEN_AND_NINE, 3, 7),
        ({1: -0.5, 2: -0.5, 3: -1.0}, ALL, 3, None),  # rounded to equals
        ({1: -0.5, 2: -1.0}, SEVEN_AND_NINE, 2, None),
        ({1: -0.5, 2: -1.0}, ONLY_SEVEN, 2, 7),  # there is no other
        ({1: -0.5, 2: -1.0}, [0, 0], 2, -1),
        ({40: -0.5, 2: -1.0}, [1, 1 << 8], 2, 40),
        ({1: -0.5, 2: -1.0}, [0, -(1 << 31)], 2, 63),
    ],
)
def test_the_best_allowed_token_is_sure_or_asked_for_again(
    row: dict[int, float], words: list[int], num_top: int, best: int | None
) -> None:
    assert best_allowed(row, words, num_top, 64) == best


def test_a_token_is_the_best_when_it_has_no_equal() -> None:
    assert is_best({1: -0.5, 2: -1.0}, 1)
    assert not is_best({1: -0.5, 2: -1.0}, 2)
    assert not is_best({1: -0.5, 2: -0.5}, 1)
    assert not is_best({1: -0.5}, 1)
