"""A request through the server's wrapper: what is written in, what is refused by name, and what is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.middleware import DpmMiddleware
from tests.inference.wrapped_server import IDENTITY, KNOWN, LittleServer, run, server_settings

GENERATING = ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses")
PROMPTS: dict[str, dict[str, Any]] = {"/v1/completions": {"prompt": [1, 2]}, "/v1/responses": {"input": "x"}}


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
