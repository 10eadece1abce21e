"""Before a wrapped server answers: the launcher's settings, the enrolment, and a self-test that holds to the bit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.enrolment import Enrolment, enrol, load_enrolment, save_enrolment
from inference.middleware import DpmMiddleware, Receive, Scope, Send, settings_from_environment
from inference.server_settings import SETTINGS_VARIABLE, load_settings
from projection.engine import EngineIdentity
from projection.errors import ConfigurationError
from tests.inference.wrapped_server import IDENTITY, KNOWN, LittleServer, run, server_settings

DEGRADED = {"x-dpm-accept": "degraded"}


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


@pytest.mark.parametrize("failure", [RuntimeError("out of memory"), KeyError("choices")], ids=repr)
def test_a_server_that_breaks_under_its_own_question_is_an_error(
    wrapped: DpmMiddleware, little: LittleServer, failure: Exception
) -> None:
    async def talk(client: httpx.AsyncClient) -> list[httpx.Response]:
        approved = await client.get("/dpm/ready")
        little.failure = failure
        return [approved, await client.post("/dpm/selftest")]

    approved, broken = run(wrapped, talk)
    assert (approved.status_code, broken.status_code) == (200, 503)
    assert broken.json()["state"] == "ERROR"
    assert repr(failure) in broken.json()["reason"]


def test_a_server_that_breaks_while_it_serves_is_found_by_the_test_that_is_held_again_and_again(
    little: LittleServer, tmp_path: Path
) -> None:
    wrapped = DpmMiddleware(little, server_settings(tmp_path, KNOWN, self_test_interval_s=1e-6))

    async def talk(client: httpx.AsyncClient) -> httpx.Response:
        while (await client.get("/dpm/ready")).status_code != 200:
            await asyncio.sleep(0)
        little.failure = RuntimeError("out of memory")
        async with asyncio.timeout(60):
            while (answer := await client.get("/dpm/ready")).status_code == 200:
                await asyncio.sleep(0)
        return answer

    assert "out of memory" in run(wrapped, talk, is_started=False).json()["reason"]


def test_a_self_test_with_nothing_to_compare_is_an_error(little: LittleServer, tmp_path: Path) -> None:
    wrapped = DpmMiddleware(little, server_settings(tmp_path, []))
    answer = run(wrapped, lambda client: client.get("/dpm/ready"))
    assert answer.status_code == 503
    assert "nothing to compare" in answer.json()["reason"]


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


def test_the_self_test_sends_the_servers_own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    sent: list[dict[bytes, bytes]] = []

    class LockedServer(LittleServer):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                sent.append(dict(scope["headers"]))
            await super().__call__(scope, receive, send)

    async def talk(client: httpx.AsyncClient) -> httpx.Response:
        return await client.get("/dpm/ready")

    assert run(DpmMiddleware(LockedServer(), server_settings(tmp_path, KNOWN)), talk).status_code == 200
    assert {headers[b"authorization"] for headers in sent} == {b"Bearer secret"}
