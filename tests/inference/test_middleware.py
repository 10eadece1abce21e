"""The server's wrapper around a tiny ASGI application: what is refused, what is written in, what every answer says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.enrolment import Enrolment, KnownAnswer, enrol, load_enrolment, save_enrolment
from inference.middleware import DpmMiddleware, Message, Receive, Scope, Send, settings_from_environment
from inference.server_settings import SETTINGS_VARIABLE, ServerSettings, load_settings
from projection.engine import EngineIdentity
from projection.errors import ConfigurationError

IDENTITY = EngineIdentity({"kind": "vllm", "tokenizer_digest": "00"})
GENERATING = ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses")
PROMPTS: dict[str, dict[str, Any]] = {"/v1/completions": {"prompt": [1, 2]}, "/v1/responses": {"input": "x"}}
DEGRADED = {"x-dpm-accept": "degraded"}


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


@pytest.fixture
def little() -> LittleServer:
    return LittleServer()


@pytest.fixture
def wrapped(little: LittleServer, tmp_path: Path) -> DpmMiddleware:
    return DpmMiddleware(little, server_settings(tmp_path, KNOWN))


def post(wrapped: DpmMiddleware, path: str, body: Any, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer: httpx.Response = run(wrapped, lambda client: client.post(path, content=content, headers=headers))
    return answer


def prompt_of(path: str) -> dict[str, Any]:
    return PROMPTS.get(path, {"messages": []})


@pytest.mark.parametrize("path", GENERATING)
def test_what_is_left_out_is_set_and_named(wrapped: DpmMiddleware, little: LittleServer, path: str) -> None:
    answer = post(wrapped, path, prompt_of(path))
    assert answer.status_code == 200
    _, _, body = little.received[-1]
    seed = {"seed": 7} if path in GENERATING[:2] else {}
    assert json.loads(body) == {**prompt_of(path), "temperature": 0, **seed}
    assert answer.headers["x-dpm-set"] == ", ".join(["temperature", *seed])


def test_a_complete_request_passes_byte_for_byte(wrapped: DpmMiddleware, little: LittleServer) -> None:
    body = b'{ "temperature":0.0, "seed":7,"prompt":[1],\n "n":1 , "top_p":1.0}'
    answer = post(wrapped, "/v1/completions", body)
    assert little.received[-1][2] == body
    assert "x-dpm-set" not in answer.headers


def test_a_null_is_as_good_as_nothing(wrapped: DpmMiddleware, little: LittleServer) -> None:
    post(wrapped, "/v1/completions", {"prompt": [1], "temperature": None, "top_p": None, "seed": 7})
    assert json.loads(little.received[-1][2])["temperature"] == 0


def test_an_empty_object_stays_json(wrapped: DpmMiddleware, little: LittleServer) -> None:
    post(wrapped, "/v1/completions", b" {}")
    assert json.loads(little.received[-1][2]) == {"temperature": 0, "seed": 7}


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.7),
        ("temperature", 1e-9),
        ("temperature", False),
        ("temperature", "0"),
        ("n", 2),
        ("best_of", 3),
        ("use_beam_search", True),
        ("top_p", 0.9),
        ("top_k", 1),
        ("min_p", 0.1),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -0.5),
        ("repetition_penalty", 1.1),
        ("length_penalty", 0.5),
        ("logit_bias", {"5": 100}),
        ("bad_words", ["x"]),
        ("allowed_token_ids", [1]),
        ("truncate_prompt_tokens", 10),
        ("truncation", "auto"),
        ("prompt_embeds", "AA=="),
        ("vllm_xargs", {"x": 1}),
        ("chat_template", "{{ x }}"),
        ("kv_transfer_params", {"x": 1}),
        ("background", True),
        ("seed", 8),
        ("seed", 7.0),
        ("a_field_of_next_year", None),
    ],
)
def test_what_could_change_a_token_is_refused_by_name(
    wrapped: DpmMiddleware, little: LittleServer, path: str, field: str, value: Any
) -> None:
    answer = post(wrapped, path, {**prompt_of(path), field: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field
    assert field in answer.json()["error"]["message"]
    assert little.received == []
    assert answer.headers["x-dpm-identity"] == IDENTITY.digest


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b'{"prompt": NaN}',
        b'{"prompt": [1], "prompt": [2]}',
        b'{"temperature": 0, "temperature": 1}',
        b'{"structured_outputs": {"grammar": "a", "grammar": "b"}}',
        "{}".encode("utf-16"),
        b'\xff{"prompt": [1]}',
        b"[" * 200_000,
    ],
)
def test_what_is_no_json_that_all_read_alike_is_refused(wrapped: DpmMiddleware, body: bytes) -> None:
    assert post(wrapped, "/v1/completions", body).status_code == 400


def test_a_body_beyond_the_limit_is_refused_before_it_is_read_whole(little: LittleServer, tmp_path: Path) -> None:
    wrapped = DpmMiddleware(little, server_settings(tmp_path, KNOWN, max_body_bytes=1000))
    assert post(wrapped, "/v1/completions", {"prompt": [1] * 200}).status_code == 200
    assert post(wrapped, "/v1/completions", {"prompt": [1] * 2000}).status_code == 413


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


def test_the_identity_is_served_whole(wrapped: DpmMiddleware) -> None:
    answer = run(wrapped, lambda client: client.get("/dpm/identity")).json()
    assert answer == {"engine_identity": IDENTITY.digest, "identity": dict(IDENTITY.fields)}


def test_before_the_self_test_nobody_is_answered_and_the_server_is_not_ready(
    little: LittleServer, tmp_path: Path
) -> None:
    wrapped = DpmMiddleware(little, server_settings(tmp_path, None))

    async def talk(client: httpx.AsyncClient) -> list[Any]:
        ready = await client.get("/dpm/ready")
        refused = await client.post("/v1/completions", json={"prompt": [1]})
        degraded = await client.post("/v1/completions", json={"prompt": [1]}, headers=DEGRADED)
        return [ready, refused, degraded]

    ready, refused, degraded = run(wrapped, talk)
    assert (ready.status_code, refused.status_code, degraded.status_code) == (503, 503, 200)
    assert degraded.headers["x-dpm-determinism"] == "degraded"
    assert ready.json()["state"] == "SELF_TEST"


def test_the_self_test_runs_by_itself_alone_and_in_batches_and_then_the_server_is_ready(
    wrapped: DpmMiddleware, little: LittleServer
) -> None:
    async def talk(client: httpx.AsyncClient) -> httpx.Response:
        while (answer := await client.get("/dpm/ready")).status_code != 200:
            await asyncio.sleep(0)
        return answer

    assert run(wrapped, talk, is_started=False).json()["state"] == "APPROVED"
    assert little.max_running == len(KNOWN)


@pytest.mark.parametrize("circumstance", ["alone", "in a batch"])
def test_a_bit_that_moved_is_an_error_that_says_where_and_stays(
    wrapped: DpmMiddleware, little: LittleServer, circumstance: str
) -> None:
    if circumstance == "alone":
        little.drift_alone = 2.0**-40
    else:
        little.drift = 2.0**-40

    async def talk(client: httpx.AsyncClient) -> list[Any]:
        refused = await client.post("/v1/completions", json={"prompt": [1]})
        little.drift = little.drift_alone = 0.0
        again = await client.post("/dpm/selftest")
        degraded = await client.post("/v1/completions", json={"prompt": [1]}, headers=DEGRADED)
        return [refused, again, degraded, await client.get("/dpm/metrics")]

    refused, again, degraded, metrics = run(wrapped, talk)
    assert refused.status_code == again.status_code == 503
    assert circumstance in refused.json()["error"]["message"]
    assert again.json()["state"] == "ERROR"
    assert degraded.headers["x-dpm-determinism"] == "degraded"
    assert 'dpm_self_test_state{state="ERROR"} 1' in metrics.text


def test_a_server_that_fails_its_own_question_is_an_error(wrapped: DpmMiddleware, little: LittleServer) -> None:
    little.status = 500
    answer = run(wrapped, lambda client: client.get("/dpm/selftest"))
    assert answer.json()["state"] == "ERROR"
    assert "500" in answer.json()["reason"]


def test_a_self_test_with_nothing_to_compare_is_an_error(little: LittleServer, tmp_path: Path) -> None:
    wrapped = DpmMiddleware(little, server_settings(tmp_path, []))
    answer = run(wrapped, lambda client: client.get("/dpm/ready"))
    assert answer.status_code == 503
    assert "nothing to compare" in answer.json()["reason"]


def test_what_was_refused_is_counted(wrapped: DpmMiddleware) -> None:
    async def talk(client: httpx.AsyncClient) -> str:
        await client.post("/v1/completions", json={"prompt": [1], "n": 2})
        await client.post("/pause")
        return (await client.get("/dpm/metrics")).text

    text = run(wrapped, talk)
    assert 'dpm_refused_requests_total{what="n"} 1' in text
    assert 'dpm_refused_requests_total{what="route"} 1' in text
    assert f'dpm_engine_identity{{digest="{IDENTITY.digest}"}} 1' in text


def test_a_field_name_cannot_forge_a_metric(wrapped: DpmMiddleware) -> None:
    async def talk(client: httpx.AsyncClient) -> str:
        await client.post("/v1/completions", json={'x"} 1\ndpm_self_test_state{state="APPROVED': 2})
        return (await client.get("/dpm/metrics")).text

    assert 'dpm_refused_requests_total{what="body"} 1' in run(wrapped, talk)


def test_an_unknown_route_of_ours_is_404(wrapped: DpmMiddleware) -> None:
    assert run(wrapped, lambda client: client.get("/dpm/nothing")).status_code == 404


def test_an_enrolment_of_another_engine_a_changed_one_and_a_broken_one_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "enrolment.json"
    with pytest.raises(ConfigurationError, match="no known answers"):
        load_enrolment(path, IDENTITY.digest)
    save_enrolment(enrol(IDENTITY, KNOWN), path)
    assert load_enrolment(path, IDENTITY.digest).known_answers == tuple(KNOWN)
    with pytest.raises(ConfigurationError, match="was made for the engine"):
        load_enrolment(path, EngineIdentity({"kind": "other"}).digest)
    whole = path.read_text(encoding="utf-8")
    changed = Enrolment.model_validate_json(whole).model_copy(update={"known_answers": tuple(KNOWN[:1])})
    save_enrolment(changed, path)
    with pytest.raises(ConfigurationError, match="was changed"):
        load_enrolment(path, IDENTITY.digest)
    path.write_text(whole[:200], encoding="utf-8")
    with pytest.raises(ConfigurationError, match="not an enrolment"):
        load_enrolment(path, IDENTITY.digest)


def test_the_server_starts_only_with_the_launchers_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="dpm engine serve"):
        settings_from_environment({})
    path = tmp_path / "settings.json"
    path.write_text(server_settings(tmp_path, None).model_dump_json(), encoding="utf-8")
    assert settings_from_environment({SETTINGS_VARIABLE: str(path)}).engine_identity == IDENTITY.digest
    path.write_text('{"identity": {}}', encoding="utf-8")
    with pytest.raises(ConfigurationError, match="settings"):
        load_settings(path)
