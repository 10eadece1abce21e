"""Answers read back from rows score what they scored when they were made, and changed rows are found."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from baseline.architectures import ARCHITECTURES, load_architecture
from benchmarks.experiments.answers import plan_jobs
from benchmarks.experiments.kept import read_answers, rescore
from benchmarks.experiments.quality import run_quality
from benchmarks.experiments.rows import mean_score, read_results
from benchmarks.experiments.runner import QUALITY, SCALING, SCHEMA_VERSION, Setting
from inference.scripted_engine import ScriptedEngine
from projection.errors import NotFoundError, RequestError, VerificationError
from projection.view_grammar import Profile
from reporting.journal import FILE_NAME, read_journal
from tests.benchmarks.test_experiments import Quiet, cases

NAMES = [name for name in ARCHITECTURES if name != "retrieval_embeddings"]  # that one needs torch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rows of every architecture at three ratios; at the tightest some are refused."""
    ratios = [Fraction(ratio) for ratio in (1000, 5, 2)]
    jobs = plan_jobs(cases(2), [load_architecture(name) for name in NAMES], ratios)
    setting = Setting(ScriptedEngine(), Profile(2), tmp_path / "rows")
    run_quality(jobs, setting, Quiet(), concurrency=1)
    return setting.directory


def readers(folder: Path, tmp_path: Path) -> list[Callable[[], object]]:
    """A run that is continued, a report, and rows that are scored again."""
    return [
        lambda: run_quality([], Setting(ScriptedEngine(), Profile(2), folder), Quiet(), concurrency=1),
        lambda: read_results(folder, QUALITY),
        lambda: rescore(folder, QUALITY, cases(2), tmp_path / "again"),
    ]


def edit(folder: Path, old: str, new: str) -> None:
    path = folder / FILE_NAME
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_rows_of_every_architecture_score_again_what_they_scored(folder: Path, tmp_path: Path) -> None:
    found = rescore(folder, QUALITY, cases(2), tmp_path / "again")
    assert found.num_rows == len(NAMES) * 2 * 3
    assert set(found.num_changed.values()) == {0}
    one, other = (read_journal(place, schema=QUALITY, version=SCHEMA_VERSION) for place in (folder, tmp_path / "again"))
    assert (one.rows, one.parameters) == (other.rows, other.parameters)
    assert {row["status"] for row in one.rows.values()} == {"scored", "refused"}


def test_a_score_that_older_rows_lack_is_given_to_them(folder: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (folder / FILE_NAME).read_text().splitlines()]
    for line in lines[1:]:
        del line["row"]["scores"]["frp_memo"]
    (folder / FILE_NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert mean_score(read_results(folder, QUALITY).rows, "frp_memo") is None
    found = rescore(folder, QUALITY, cases(2), tmp_path / "again")
    assert {name for name, count in found.num_added.items() if count} == {"frp_memo"}
    assert set(found.num_changed.values()) == {0}
    assert mean_score(read_results(tmp_path / "again", QUALITY).rows, "frp_memo") is not None


def test_a_score_that_was_improved_by_hand_is_found(folder: Path, tmp_path: Path) -> None:
    edit(folder, '"eda": "0"', '"eda": "1"')
    assert rescore(folder, QUALITY, cases(2), tmp_path / "again").num_changed["eda"] > 0


def test_a_memory_that_was_changed_is_found(folder: Path) -> None:
    edit(folder, "- verified loss: ", "- verified loss:  ")
    with pytest.raises(VerificationError, match="its memory has another digest"):
        read_answers(folder, QUALITY, cases(2))


def test_a_row_of_a_case_that_is_not_there_is_refused(folder: Path) -> None:
    with pytest.raises(NotFoundError, match="name the data sets that the run was made on"):
        read_answers(folder, QUALITY, cases(1))


def test_rows_are_not_written_over_and_cut_cases_cannot_be_scored_again(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="another folder"):
        rescore(folder, QUALITY, cases(2), folder)
    with pytest.raises(RequestError, match="cannot be scored again"):
        rescore(folder, SCALING, cases(2), tmp_path / "again")


def test_a_row_of_another_engine_is_found_wherever_rows_are_read(folder: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (folder / FILE_NAME).read_text().splitlines()]
    lines[1]["row"]["engine_identity"] = "f" * 64
    (folder / FILE_NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    for read in readers(folder, tmp_path):
        with pytest.raises(RequestError, match="another engine identity") as caught:
            read()
        assert caught.value.fields["key"] == lines[1]["key"]


def test_answers_that_changed_places_are_found_wherever_rows_are_read(folder: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (folder / FILE_NAME).read_text().splitlines()]
    lines[1]["row"], lines[2]["row"] = lines[2]["row"], lines[1]["row"]
    (folder / FILE_NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    for read in readers(folder, tmp_path):
        with pytest.raises(RequestError, match="key of another answer"):
            read()


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("scores", {}),
        *(("scores", {"frp": value}) for value in (1, True, None, float("inf"), "-1", "3/2", "1e999", "1/0")),
        ("counts", {"num_calls": -1}),
        ("counts", {}),
        ("times", {"wall_s": float("nan")}),
        ("ratio", "1e999"),
        ("budget_chars", 0),
        ("status", "excellent"),
    ],
)
def test_a_row_that_nobody_writes_is_named_wherever_rows_are_read(
    folder: Path, tmp_path: Path, part: str, value: object
) -> None:
    lines = [json.loads(line) for line in (folder / FILE_NAME).read_text().splitlines()]
    row = lines[1]["row"]
    row[part] = {**row[part], **value} if isinstance(value, dict) and value and part in row else value
    (folder / FILE_NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    for read in readers(folder, tmp_path)[1:]:
        with pytest.raises(RequestError, match="is no row that this version writes") as caught:
            read()
        assert caught.value.fields["key"] == lines[1]["key"]


@pytest.mark.parametrize(("part", "value"), [("memory", None), ("memory_digest", 5), ("decision", {})])
def test_an_answer_without_its_texts_is_named(folder: Path, part: str, value: object) -> None:
    lines = [json.loads(line) for line in (folder / FILE_NAME).read_text().splitlines()]
    lines[1]["row"][part] = value
    (folder / FILE_NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(RequestError, match="is no row that this version writes") as caught:
        read_answers(folder, QUALITY, cases(2))
    assert caught.value.fields["key"] == lines[1]["key"]


def test_a_header_that_names_no_engine_is_refused(folder: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (folder / FILE_NAME).read_text().splitlines()]
    lines[0]["parameters"] = {}
    (folder / FILE_NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    for read in readers(folder, tmp_path):
        with pytest.raises(RequestError, match=r"is none that this version writes|another run"):
            read()
