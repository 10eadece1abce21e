"""`dpm determinism compare` as a command: what it prints, what it writes, what it refuses, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from projection.errors import ConfigurationError, DpmError, RequestError
from service.compare_commands import compare
from tests.inference.live_server import LiveServer, Said, live_server, message

KEY = "sk-live-7f3a9c55e1"
SCRIPTED = ("--engine", "scripted", "--dtypes", "", "--lengths", "20", "--replays", "2", "--strangers", "0")
LIVE = ("--no-pinned", "--dtypes", "", "--lengths", "20", "--replays", "2", "--live", "anthropic:claude-haiku-4-5")

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(compare)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    return tmp_path / "home"


@pytest.fixture
def server() -> Iterator[LiveServer]:
    with live_server() as script:
        yield script


def dpm(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refusal(*arguments: object) -> DpmError:
    result = dpm(*arguments)
    assert isinstance(result.exception, DpmError), result.output
    assert result.stdout == ""
    return result.exception


def test_a_pinned_lane_that_holds_ends_with_0_and_one_json_document() -> None:
    result = dpm(*SCRIPTED, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["is_complete"]
    assert [row["num_drifted"] for row in document["rows"]] == [0]
    assert document["published"]["rows"]
    assert "about 0 min left" in result.stderr


def test_reports_are_written_in_three_forms(tmp_path: Path) -> None:
    paths = [tmp_path / f"comparison{suffix}" for suffix in (".json", ".md", ".html")]
    result = dpm(*SCRIPTED, *(argument for path in paths for argument in ("--report", path)))
    assert result.exit_code == 0, result.output
    assert json.loads(paths[0].read_text(encoding="utf-8"))["schema_version"] == "dpm/comparison/v1"
    assert paths[1].read_text(encoding="utf-8") == result.stdout
    assert paths[2].read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_a_second_run_asks_nothing_again_and_says_the_same() -> None:
    first, second = (json.loads(dpm(*SCRIPTED, "--json").stdout) for _ in range(2))
    assert first["cells"] == second["cells"]


def test_a_live_lane_costs_what_was_stated(server: LiveServer) -> None:
    server.say(Said(message("FACTS\n", "claude-haiku-4-5")))
    prices = ("--price-in", "1", "--price-out", "5")
    result = dpm(*LIVE, "--live-url", server.url, *prices, "--json")
    assert result.exit_code == 0, result.output
    cost = json.loads(result.stdout)["cost"]
    assert cost == {"price_per_million_input": "1", "price_per_million_output": "5", "total": "0.000288"}
    assert "temperature: sent: 0" in result.stderr
    assert KEY not in result.output


def test_a_run_that_reached_its_limit_prints_what_it_has_and_ends_with_2(server: LiveServer) -> None:
    server.say(Said(message("FACTS\n", "claude-haiku-4-5")))
    result = dpm(*LIVE, "--live-url", server.url, "--max-calls", 4, "--json")
    assert result.exit_code == 2, result.output
    assert not json.loads(result.stdout)["is_complete"]
    assert "--max-calls" in result.stderr


def test_a_run_in_which_nothing_could_be_compared_ends_with_5(server: LiveServer) -> None:
    server.say(Said(message("FACTS\n", "claude-haiku-4-5")))
    assert dpm(*LIVE, "--live-url", server.url, "--max-calls", 1).exit_code == 5


def test_a_missing_key_is_refused_before_anything_starts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    error = refusal(*LIVE)
    assert isinstance(error, ConfigurationError)
    assert error.fields["variable"] == "ANTHROPIC_API_KEY"
    assert not home.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--no-pinned", "--dtypes", ""), "nothing to compare"),
        (("--lengths", "many"), "--lengths"),
        (("--lengths", ""), "lengths"),
        (("--cases", "nothing"), "nothing"),
        (("--dtypes", "float16"), "--dtypes"),
        (("--routes", "completions"), "--routes"),
        (("--live", "somebody"), "provider:model"),
        (("--live", "somebody:model"), "provider:model"),
        (("--live-url", "http://127.0.0.1:1"), "--live"),
        (("--price-in", "1"), "go together"),
        (("--price-in", "-1", "--price-out", "5"), "--price-in"),
        (("--price-in", "1", "--price-out", "nan"), "--price-out"),
        (("--report", "results.pdf"), "--report"),
        (("--report", "no/such/folder/results.md"), "--report"),
    ],
)
def test_wrong_use_is_refused_before_anything_starts(home: Path, arguments: tuple[str, ...], words: str) -> None:
    error = refusal(*arguments)
    assert isinstance(error, RequestError)
    assert words in error.message
    assert not home.exists()
