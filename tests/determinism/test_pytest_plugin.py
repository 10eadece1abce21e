"""The pytest plugin in a project of its own: verdicts as test outcomes, goldens by approval, alone and under xdist."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from determinism.gate.store import read_approvals, read_goldens
from tests.determinism.gate.folder import write_cases

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
PLUGIN = ("-p", "no:dpm_determinism", "-p", "determinism.pytest_plugin")  # the same, whether it is installed or not
UPDATE = ("--det-update", "--det-reason", "reviewed by two people", "--det-by", "ann")
TESTS = """
import pytest

def test_small(dpm_gate):
    dpm_gate("small", events="small.jsonl", task="task.yaml")

def test_tight(dpm_gate):
    dpm_gate("tight")

def test_of_something_else():
    pass
"""

Run = Callable[..., pytest.RunResult]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours is found by every process, and none of them believes that it is CI."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """pytest on the user's project."""
    write_cases(pytester.path)
    pytester.makepyfile(test_cases=TESTS)
    return lambda *args: pytester.runpytest(*PLUGIN, "--det-engine", "scripted", *args)


in_one_process_and_in_two_workers = pytest.mark.parametrize("how", [(), ("-n", "2")], ids=["alone", "xdist"])


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def said(result: pytest.RunResult, line: str) -> bool:
    return any(line in found for found in result.outlines)


@in_one_process_and_in_two_workers
def test_from_nothing_to_green_tests(run: Run, pytester: pytest.Pytester, how: tuple[str, ...]) -> None:
    missing = run(*how)
    missing.assert_outcomes(failed=2, passed=1)
    assert said(missing, "MISSING small: no golden was approved")
    approved = run(*UPDATE, *how)
    approved.assert_outcomes(passed=3)
    assert said(approved, "2 cases observed, 2 goldens written")
    goldens = pytester.path / "goldens"
    assert [(entry.case, entry.by, entry.reason) for entry in read_approvals(goldens)] == [
        ("small", "ann", "reviewed by two people"), ("tight", "ann", "reviewed by two people")
    ]  # fmt: skip
    assert read_goldens(goldens).faults == {}
    green = run(*how)
    green.assert_outcomes(passed=3)
    assert said(green, "2 PASS")
    assert said(run(*UPDATE, *how), "2 cases observed, 0 goldens written")
    assert len(read_approvals(goldens)) == 2


@in_one_process_and_in_two_workers
def test_a_changed_event_fails_the_test_of_its_case_and_names_it(
    run: Run, pytester: pytest.Pytester, how: tuple[str, ...]
) -> None:
    run(*UPDATE)
    edit(pytester.path / "small.jsonl", "46.2%", "46.3%")
    result = run("--det-report", "gate.json", *how)
    result.assert_outcomes(failed=2, passed=1)
    assert said(result, "DRIFT small: R1: event 3 changed; projection prompt_token_ids at ")
    assert said(result, "2 DRIFT")
    document = json.loads((pytester.path / "gate.json").read_text(encoding="utf-8"))
    assert document["counts"] == {"DRIFT": 2}
    assert document["engine_kind"] == "scripted"
    assert {finding["divergence"]["cause"] for finding in document["findings"]} == {"event 3 changed"}


def test_a_report_names_every_case_once(run: Run, pytester: pytest.Pytester) -> None:
    run(*UPDATE)
    run("--det-report", "gate.xml").assert_outcomes(passed=3)
    text = (pytester.path / "gate.xml").read_text(encoding="utf-8")
    assert text.count('name="small"') == text.count('name="tight"') == 1
    assert 'tests="2" failures="0"' in text


def test_what_was_not_asked_for_is_named_and_fails_nothing(run: Run) -> None:
    run(*UPDATE)
    result = run("-k", "small")
    result.assert_outcomes(passed=1, deselected=2)
    assert said(result, "UNUSED by the tests of this run: tight")


def test_a_golden_is_only_approved_by_a_test_that_passes(run: Run, pytester: pytest.Pytester) -> None:
    edit(pytester.path / "test_cases.py", 'dpm_gate("tight")', 'dpm_gate("tight"); assert 1 == 2')
    run(*UPDATE).assert_outcomes(passed=2, failed=1)
    assert [entry.case for entry in read_approvals(pytester.path / "goldens")] == ["small"]


@in_one_process_and_in_two_workers
def test_two_tests_that_give_one_case_different_answers_approve_nothing(
    run: Run, pytester: pytest.Pytester, how: tuple[str, ...]
) -> None:
    edit(
        pytester.path / "test_cases.py",
        'dpm_gate("tight")',
        'dpm_gate("small", events="small.jsonl", task="task.yaml", budget_chars=900)',
    )
    result = run(*UPDATE, *how)
    result.assert_outcomes(passed=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert said(result, "error: one case was observed with different answers")
    assert read_approvals(pytester.path / "goldens") == ()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--det-update", "--det-by", "ann"), "an approval needs a reason"),
        (("--det-update", "--det-reason", " ", "--det-by", "ann"), "an approval needs a reason"),
        (("--det-update", "--det-reason", "x"), "an approval needs a name"),
        (("--det-report", "gate.txt"), "name the report .json"),
    ],
)
def test_wrong_options_end_the_run_before_any_test(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], problem: str
) -> None:
    monkeypatch.delenv("USER", raising=False)
    monkeypatch.delenv("LOGNAME", raising=False)
    result = run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert any(problem in line for line in result.errlines)


def test_a_case_that_the_list_skips_is_a_skipped_test(run: Run, pytester: pytest.Pytester) -> None:
    run(*UPDATE)
    edit(pytester.path / "goldens" / "cases.yaml", "budget_chars: 900", "skip: waits for the form")
    result = run("-rs")
    result.assert_outcomes(passed=2, skipped=1)
    assert said(result, "waits for the form")


def test_half_a_case_is_refused(run: Run, pytester: pytest.Pytester) -> None:
    edit(pytester.path / "test_cases.py", 'dpm_gate("tight")', 'dpm_gate("tight", events="small.jsonl")')
    result = run()
    result.assert_outcomes(passed=1, failed=2)
    assert said(result, "name both files of a case, or neither")


def test_a_damaged_approvals_log_fails_every_test_that_needs_it(run: Run, pytester: pytest.Pytester) -> None:
    run(*UPDATE)
    with (pytester.path / "goldens" / "approvals.jsonl").open("ab") as log:
        log.write(b"{}\n")
    result = run()
    result.assert_outcomes(passed=1, failed=2)
    assert said(result, "no approval of format 1")


def test_annotations_appear_in_githubs_log_only(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not said(run(), "::error")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert len([line for line in run().outlines if line.startswith("::error file=goldens,title=MISSING ")]) == 2


MARKED = """
import pytest

@pytest.mark.dpm_replays({arguments})
def test_small(dpm_gate):
    assert dpm_gate("small").num_replays == 3
"""


@pytest.mark.parametrize(
    ("arguments", "outcome", "line"),
    [
        ("3", "passed", "1 PASS"),
        ("3, perturbations=['run_to_run']", "passed", "1 PASS"),
        ("3, perturbations=['strangers']", "failed", "VacuousError"),
        ("3, perturbations=['moonlight']", "failed", "there is no perturbation 'moonlight'"),
        ("0", "failed", "with n from 1 on"),
        ("3, other=1", "failed", "with n from 1 on"),
    ],
)
def test_the_marker_asks_several_times_and_under_circumstances(
    run: Run, pytester: pytest.Pytester, arguments: str, outcome: str, line: str
) -> None:
    """The scripted engine counts nothing, so that a circumstance cannot be shown: an error, never a pass."""
    run(*UPDATE)
    pytester.makepyfile(test_cases=MARKED.format(arguments=arguments))
    result = run("--strict-markers")
    result.assert_outcomes(**{outcome: 1})
    assert said(result, line)


def test_one_engine_serves_the_whole_session(pytester: pytest.Pytester) -> None:
    write_cases(pytester.path)
    pytester.makepyfile(test_cases=TESTS)
    pytester.makeconftest(
        """
import pytest
from inference import engines, scripted_engine

opened = []

class Counted(scripted_engine.ScriptedEngine):
    def __init__(self):
        super().__init__()
        opened.append(self)

    def close(self):
        print(f"engines opened: {len(opened)}")

scripted_engine.ScriptedEngine = Counted
"""
    )
    pytester.runpytest_subprocess(*PLUGIN, "--det-engine", "scripted", *UPDATE)
    result = pytester.runpytest_subprocess(*PLUGIN, "--det-engine", "scripted", "-s")
    result.assert_outcomes(passed=3)
    assert said(result, "engines opened: 1")


def test_a_run_that_uses_nothing_loads_nothing_and_prints_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
import sys

def test_nothing_of_ours_was_loaded():
    ours = {"projection", "inference", "service", "baseline", "reporting"}
    assert not [name for name in sys.modules if name.partition(".")[0] in ours]
    suite = [name for name in sys.modules if name.startswith("determinism")]
    assert suite == ["determinism", "determinism.pytest_plugin"]
"""
    )
    result = pytester.runpytest_subprocess(*PLUGIN)
    result.assert_outcomes(passed=1)
    assert not said(result, "dpm")


def test_the_plugin_is_declared_as_an_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"dpm_determinism": "determinism.pytest_plugin"}


def test_its_options_and_marker_are_shown_by_pytest(pytester: pytest.Pytester) -> None:
    options = pytester.runpytest(*PLUGIN, "--help")
    for name in ("goldens", "update", "reason", "by", "report", "engine", "config"):
        assert said(options, f"--det-{name}")
    assert said(pytester.runpytest(*PLUGIN, "--markers"), "@pytest.mark.dpm_replays(n, perturbations=[])")
