"""`dpm determinism run` without a model: what is said, written and answered, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from determinism.suite.results import open_results, read_results
from tests.service.conftest import Dpm, dpm

__all__ = ["dpm"]

RUN = ("determinism", "run", "--engine", "scripted", "--quick")


def test_a_run_prints_one_document_and_leaves_a_report(dpm: Dpm, tmp_path: Path) -> None:
    found = dpm(*RUN, "--out", tmp_path / "out", "--json")
    assert found.code == 0, found.stderr
    assert found.document["exit_code"] == found.document["num_missing"] == 0
    assert {cell["check"] for cell in found.document["cells"] if cell["verdict"] == "PASS"} == {
        "run_to_run",
        "prefill_vs_decode",
        "restart",
    }
    assert json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))["cells"]
    num_cells = len(found.document["cells"])
    assert f"{num_cells} of {num_cells}, about 0 s left" in found.stderr


def test_a_person_reads_verdicts_controls_and_what_was_skipped(dpm: Dpm, tmp_path: Path) -> None:
    found = dpm(*RUN, "--out", tmp_path / "out")
    assert "run_to_run         PASS 2  6 comparisons; 1 of 1 controls failed as they must" in found.stdout
    assert "cells were skipped" in found.stdout
    assert "verdict PASS" in found.stdout


def test_a_finished_run_is_shown_again_and_not_held_again(dpm: Dpm, tmp_path: Path) -> None:
    dpm(*RUN, "--check", "run_to_run", "--out", tmp_path / "out")
    rows = (tmp_path / "out" / "rows.jsonl").read_bytes()
    again = dpm(*RUN, "--check", "run_to_run", "--out", tmp_path / "out")
    assert "3 of 3 cells are there" in again.stderr
    assert (again.code, (tmp_path / "out" / "rows.jsonl").read_bytes()) == (0, rows)


def test_each_run_has_a_folder_of_its_own_unless_one_is_named(dpm: Dpm, tmp_path: Path) -> None:
    assert dpm(*RUN, "--check", "run_to_run").code == 0
    (folder,) = (tmp_path / "home" / "determinism").iterdir()
    _, cells = read_results(folder)
    assert {cell.check for cell in cells} == {"run_to_run"}


def test_checks_and_workloads_can_be_chosen(dpm: Dpm, tmp_path: Path) -> None:
    chosen = ("--check", "run_to_run", "--check", "restart", "--workload", "claim-decision-short")
    dpm(*RUN, *chosen, "--out", tmp_path / "out")
    _, cells = read_results(tmp_path / "out")
    assert {(cell.check, cell.workload) for cell in cells} == {
        ("run_to_run", "claim-decision-short"),
        ("restart", "claim-decision-short"),
    }


def test_power_counts_comparisons(dpm: Dpm, tmp_path: Path) -> None:
    found = dpm("determinism", "run", "--engine", "scripted", "--power", 50, "--check", "run_to_run", "--out", tmp_path)
    assert found.code == 0, found.stderr
    _, cells = read_results(tmp_path)
    assert sum(cell.num_comparisons for cell in cells if cell.control is None) >= 50


@pytest.mark.parametrize(
    "arguments",
    [
        ("--check", "no_such_check"),
        ("--workload", "no-such-workload"),
        ("--lane", "no-such-lane"),
        ("--power", "10"),
        ("--power", "0"),
    ],
)
def test_wrong_use_is_refused_before_anything_runs(dpm: Dpm, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    found = dpm(*RUN, *arguments, "--out", tmp_path / "out")
    assert found.code == 2
    assert not (tmp_path / "out" / "rows.jsonl").exists()


def test_nothing_chosen_is_exit_5(dpm: Dpm, tmp_path: Path) -> None:
    found = dpm(*RUN, "--lane", "tiny", "--out", tmp_path / "out")
    assert found.code == 5
    assert "nothing was chosen" in found.stderr


def test_only_what_is_skipped_is_exit_5_too(dpm: Dpm, tmp_path: Path) -> None:
    assert dpm(*RUN, "--check", "preemption", "--out", tmp_path / "out").code == 5


def test_two_suites_do_not_write_one_folder(dpm: Dpm, tmp_path: Path) -> None:
    with open_results(tmp_path, {"a": "run"}):
        found = dpm(*RUN, "--out", tmp_path, "--json")
    assert found.code == 2
    assert (found.error["type"], found.error["fields"]["cause"]) == ("JournalError", "in_use")


def test_another_run_is_not_continued(dpm: Dpm, tmp_path: Path) -> None:
    dpm(*RUN, "--check", "run_to_run", "--out", tmp_path)
    found = dpm(*RUN, "--out", tmp_path, "--json")
    assert (found.code, found.error["fields"]["cause"]) == (2, "other_parameters")


def test_an_engine_that_does_not_exist_is_refused_and_leaves_the_folder_to_the_right_one(
    dpm: Dpm, tmp_path: Path
) -> None:
    assert dpm("determinism", "run", "--engine", "no-such-engine", "--out", tmp_path / "out").code == 2
    assert not (tmp_path / "out").exists()


KEY = "scripted | run_to_run | claim-projection-short-free"
DAMAGE: dict[str, tuple[dict[str, Any], str]] = {
    "a verdict that its surfaces do not give": ({"verdict": "DRIFT"}, "the verdict is DRIFT, and there are 1"),
    "the content of another key": ({"workload": "claim-decision-short"}, "its content is of the cell"),
    "another identity": ({"engine_identity": "0" * 64}, "another identity of 'scripted'"),
    "a time before it began": ({"wall_s": -5}, "wall_s: Input should be greater than or equal to 0"),
    "a time that is no number": ({"wall_s": math.nan}, "wall_s: Input should be a finite number"),
    "fewer turns than none": ({"evidence": {"num_turns": -3}}, "a number that is negative"),
    "endless evidence": ({"evidence": {"batch of 8": {"n": [math.inf]}}}, "or not finite"),
}


@pytest.mark.parametrize(("change", "said"), DAMAGE.values(), ids=DAMAGE.keys())
def test_a_row_that_was_changed_is_refused_with_file_and_key(
    dpm: Dpm, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    run = (*RUN, "--check", "run_to_run", "--out", tmp_path / "out")
    assert dpm(*run).code == 0
    change_row(tmp_path / "out" / "rows.jsonl", KEY, lambda line: line["row"].update(change))
    found = dpm(*run, "--json")
    assert (found.code, found.error["fields"]["key"]) == (2, KEY)
    assert found.error["message"].startswith(f"{tmp_path}/out/rows.jsonl, row {KEY!r}: ")
    assert said in found.error["message"]


def test_a_row_of_a_check_that_the_run_does_not_hold_is_refused(dpm: Dpm, tmp_path: Path) -> None:
    run = (*RUN, "--check", "run_to_run", "--out", tmp_path / "out")
    dpm(*run)
    other = KEY.replace("run_to_run", "no_such_check")

    def rename(line: dict[str, Any]) -> None:
        line["key"], line["row"]["check"] = other, "no_such_check"

    change_row(tmp_path / "out" / "rows.jsonl", KEY, rename)
    found = dpm(*run, "--json")
    assert (found.code, found.error["fields"]["key"]) == (2, other)
    assert "holds no such cell" in found.error["message"]


def change_row(path: Path, key: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change one line of a journal as a person with an editor could."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    (line,) = [line for line in lines if line.get("key") == key]
    change(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
