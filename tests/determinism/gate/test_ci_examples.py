"""The ready CI files under docs/ci: they parse, their commands could be typed, and they guard what they should."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_readme_commands import check_command, make_targets

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "docs" / "ci").iterdir())

each_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)


def read(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return value


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    (job,) = workflow["jobs"].values()
    return list(job["steps"])


def script_lines(path: Path) -> list[str]:
    """Every line that a shell runs."""
    value = read(path)
    if "jobs" in value:
        return [line for step in steps(value) for line in step.get("run", "").splitlines()]
    (job,) = value.values()
    return [*job["before_script"], *job["script"]]


def commands(path: Path, program: str) -> Iterator[list[str]]:
    for line in script_lines(path):
        for part in re.split(r"\|\||&&", line.partition(" #")[0]):
            words = shlex.split(part)
            if words[:1] == [program]:
                yield words


def test_there_is_one_example_for_each_forge() -> None:
    assert [path.name for path in EXAMPLES] == ["github-actions.yml", "gitlab-ci.yml"]


@each_example
def test_every_dpm_command_could_be_typed_as_it_stands(path: Path) -> None:
    found = list(commands(path, "dpm"))
    for words in found:
        check_command(words)
    assert [words[1:3] for words in found] == [["weights", "pull"], ["weights", "verify"], ["determinism", "gate"]]


@each_example
def test_it_installs_with_a_target_that_the_makefile_has(path: Path) -> None:
    (install,) = commands(path, "make")
    assert install[-1] in make_targets()


@each_example
def test_the_gate_is_strict_and_its_report_is_kept_when_it_fails(path: Path) -> None:
    (gate,) = (words for words in commands(path, "dpm") if words[1] == "determinism")
    report = gate[gate.index("--report") + 1]
    assert "--strict" in gate
    value = read(path)
    if "jobs" in value:
        upload = steps(value)[-1]
        assert (upload["if"], upload["with"]["path"]) == ("always()", report)
    else:
        (job,) = value.values()
        assert (job["artifacts"]["when"], job["artifacts"]["reports"]["junit"]) == ("always", report)


def test_actions_are_pinned_by_major_version_and_may_only_read() -> None:
    workflow = read(ROOT / "docs" / "ci" / "github-actions.yml")
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert used
    assert all(re.fullmatch(r"actions/[a-z-]+@v[1-9][0-9]*", action) for action in used)
    assert workflow["permissions"] == {"contents": "read"}


@each_example
def test_no_host_is_named(path: Path) -> None:
    assert "://" not in path.read_text(encoding="utf-8")
