"""Wrong use is exit 2, says why, and writes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.conftest import DECIDE, ROOT, Dpm, log_state


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["decide"], "Missing argument"),
        (["decide", "events.jsonl"], "--task"),
        (["fly"], "No such command"),
        (["log", "fly"], "No such command"),
        ([*DECIDE, "--budget", "0"], "--budget"),
        ([*DECIDE, "--budget", "many"], "--budget"),
        ([*DECIDE, "--temperature", "1"], "No such option"),
    ],
    ids=str,
)
def test_a_command_that_cannot_be_read_is_exit_2(dpm: Dpm, case: Path, args: list[str], why: str) -> None:
    result = dpm(*args)
    assert result.code == 2
    assert why in result.stderr
    if "--json" in args:
        assert why.removeprefix("--") in result.error["message"]
    else:
        assert result.stdout == ""
    assert log_state(case / "dpm.sqlite") == []


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["decide", "missing.jsonl", "--task", "task.yaml", "--json"], "missing.jsonl: no such file"),
        (["decide", ".", "--task", "task.yaml", "--json"], "cannot be read"),
        (["decide", "events.jsonl", "--task", "missing.yaml", "--json"], "missing.yaml: no such file"),
        ([*DECIDE, "--config", "missing.yaml"], "missing.yaml"),
        ([*DECIDE, "--tenant", ""], "tenant id"),
        ([*DECIDE, "--tenant", "a\nb"], "tenant id"),
        ([*DECIDE, "--case", "audit"], "audit"),
        (["log", "append", "events.jsonl", "--case", "audit", "--json"], "audit"),
        (["log", "verify", "--json"], "no log dpm.sqlite"),
        (["log", "show", "--json"], "no log dpm.sqlite"),
        (["log", "head", "--json"], "no log dpm.sqlite"),
        (["replay", "0123abcd", "--json"], "no log dpm.sqlite"),
    ],
    ids=str,
)
def test_a_request_that_cannot_be_met_is_exit_2_and_writes_nothing(
    dpm: Dpm, case: Path, args: list[str], why: str
) -> None:
    result = dpm(*args)
    assert result.code == 2
    assert why in result.error["message"]
    assert f"error: {result.error['message']}" in result.stderr
    assert log_state(case / "dpm.sqlite") == []


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["replay", "0123456789abcdef", "--json"], "no record has an id that starts with 0123456789abcdef"),
        (["replay", "LN-7", "--json"], "hex digits"),
        (["replay", "abc", "--json"], "hex digits"),
        (["log", "verify", "--case", "LN-9", "--json"], "no stream of tenant any, case LN-9"),
        (["log", "verify", "--expected-head", "head", "--json"], "64 hex digits"),
        (["log", "show", "--json"], "several streams"),
    ],
    ids=str,
)
def test_what_is_not_in_the_log_is_exit_2(dpm: Dpm, decided: Path, args: list[str], why: str) -> None:
    result = dpm(*args)
    assert result.code == 2
    assert why in result.error["message"]


def test_an_unknown_level_or_engine_is_exit_2(dpm: Dpm, decided: Path, record_id: str) -> None:
    assert "R0, R1, R2, R3" in dpm("replay", record_id, "--level", "R4", "--json").error["message"]
    result = dpm("replay", record_id, "--engine", "gpt", "--json")
    assert (result.code, result.error["type"]) == (2, "ConfigurationError")
    assert "vllm, transformers, scripted" in result.error["message"]


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_a_model_that_was_not_fetched_says_how_to_fetch_it(dpm: Dpm, case: Path, engine: str) -> None:
    result = dpm(*DECIDE[:4], "--engine", engine, "--json")
    assert (result.code, result.error["type"]) == (2, "NotFoundError")
    assert "dpm weights pull smollm2-135m-instruct" in result.error["message"]


def test_a_configuration_with_an_unknown_key_is_exit_2_with_its_line(dpm: Dpm, case: Path) -> None:
    text = (ROOT / "gpu_configs" / "cpu.yaml").read_text(encoding="utf-8")
    (case / "gpu.yaml").write_text(text + "temperature: 1.0\n", encoding="utf-8")
    result = dpm(*DECIDE, "--config", "gpu.yaml")
    assert (result.code, result.error["fields"]["line"]) == (2, text.count("\n") + 1)
    assert "temperature" in result.error["message"]
    assert log_state(case / "dpm.sqlite") == []
