"""The report: every table and figure there, the paper's numbers beside ours, nothing hidden, nothing executable."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from baseline.architectures import load_architecture
from benchmarks.experiments.answers import plan_jobs
from benchmarks.experiments.cost import Price, run_cost
from benchmarks.experiments.judging import plan_judging, run_judging
from benchmarks.experiments.kept import read_answers
from benchmarks.experiments.quality import run_quality
from benchmarks.experiments.runner import QUALITY, Setting
from benchmarks.experiments.scaling import cut_cases, run_scaling
from benchmarks.failures.demonstrations import plan_pinned, run_demonstrations, run_parameters
from benchmarks.report.evidence import Evidence, build_document, collect_evidence, report_json, write_report
from inference.scripted_engine import ScriptedEngine
from projection.errors import NotFoundError, RequestError
from projection.view_grammar import Profile
from reporting.document import Document, Table
from reporting.page import render_page
from tests.benchmarks.test_experiments import NAMES, Quiet, cases

COMMAND = "dpm bench report --results <here>"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A quality, a cost and a scaling run of the scripted engine, its judgements and its demonstrations of failure."""
    root = tmp_path_factory.mktemp("results")
    architectures = [load_architecture(name) for name in NAMES]
    ratios = [Fraction(ratio) for ratio in (1000, 20, 3)]
    names = ("quality", "cost", "scaling")
    quality, cost, scaling = (Setting(ScriptedEngine(), Profile(2), root / name) for name in names)
    run_quality(plan_jobs(cases(3), architectures, ratios), quality, Quiet(), concurrency=2)
    run_cost(plan_jobs(cases(2), architectures, ratios[2:]), cost, Quiet())
    run_scaling(plan_jobs(cut_cases(cases(1), [1, 2, 4]), architectures, ratios[2:]), scaling, Quiet())
    recorded, kept = read_answers(quality.directory, QUALITY, cases(3))
    judge = root / "judge"
    run_judging(plan_judging(kept), ScriptedEngine(), judge, recorded.parameters, Quiet(), concurrency=1)
    planned = plan_pinned([architectures[0], architectures[1]], ScriptedEngine(), Profile(2), num_control_replays=8)
    parameters = run_parameters(ScriptedEngine().identity, Profile(2))
    run_demonstrations(planned, ScriptedEngine(), parameters, root / "failures", lambda _: None)
    return [quality.directory, cost.directory, scaling.directory, judge, root / "failures"]


@pytest.fixture(scope="module")
def evidence(folders: list[Path]) -> Evidence:
    return collect_evidence(folders, Price())


@pytest.fixture(scope="module")
def document(evidence: Evidence) -> Document:
    return build_document(evidence, COMMAND)


def tables(document: Document) -> dict[str, Table]:
    return {block.title: block for section in document.sections for block in section.blocks if isinstance(block, Table)}


def test_every_table_and_figure_of_the_paper_has_its_place(document: Document) -> None:
    titles = [section.title for section in document.sections]
    for name in ("Table 1", "Figure 4", "TAMS", "Table 2", "Table 4", "trajectory length", "judge", "section 10"):
        assert any(name in title for title in titles), name


def test_what_an_answer_costs_is_told_in_seconds_tokens_calls_bytes_and_dollars(document: Document) -> None:
    table = tables(document)["Means for one answer, small cases"]
    titles = [column.title for column in table.columns]
    for name in ("wall s", "engine s", "calls", "tokens read", "cached", "tokens written", "bytes", "US$"):
        assert name in titles, name
    row = dict(zip(titles, table.rows[0], strict=True))
    assert (row["architecture"], row["calls"]) == ("dpm", "2.0")
    assert int(str(row["bytes"]).replace(",", "")) > 1000


def test_a_summarys_replay_makes_every_call_again_and_the_control_drifts(document: Document) -> None:
    replays = [list(row) for row in tables(document)["A case recorded, and replayed in full (R3)"].rows]
    assert [(row[0], row[1], row[2], row[5]) for row in replays] == [
        ("dpm", "3", "2", "PASS"), ("summarize_every_event", "3", "4", "PASS"),
        ("dpm", "6", "2", "PASS"), ("summarize_every_event", "6", "7", "PASS"),
    ]  # fmt: skip
    survived = {(row[0], row[1]): row for row in tables(document)["Replays of one memory that came out the same"].rows}
    assert survived["summarize_every_event", "scripted"][4:7] == ["3", "3", "0.0000"]
    assert survived["summarize_every_event", "control"][6] != "0.0000"


def test_the_judges_scores_stand_beside_the_rules_with_the_controls_first(document: Document) -> None:
    rows = tables(document)["Mean reasoning coherence, by rule and by judge"].rows
    assert rows[0][0] == "control"
    assert rows[0][5] == "0.000"


def test_the_papers_numbers_stand_beside_ours_at_its_ratios_only(document: Document) -> None:
    rows = {str(row[0]): row for row in tables(document)["DPM minus summarize_every_event"].rows}
    assert rows["20x FRP"][-3:] == ["0.907, 0.392", "+0.515", "0.001"]
    assert rows["3x FRP"][-3:] == ["-", "-", "-"]


def test_refusals_are_told_before_the_scores(document: Document) -> None:
    page = render_page(document)
    assert page.index("were refused") < page.index("Mean scores over cases")
    assert "BudgetTooSmallError" in page
    assert "no model was asked" in page


def test_equal_rows_give_equal_bytes_and_the_page_runs_nothing(evidence: Evidence, tmp_path: Path) -> None:
    one = write_report(evidence, tmp_path / "one", COMMAND)
    two = write_report(evidence, tmp_path / "two", COMMAND)
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]
    page = one[0].read_text()
    assert page.count("<svg") == 7
    assert "<script" not in page and "&lt;here&gt;" in page


def test_the_json_holds_every_table_and_can_be_read_back(evidence: Evidence) -> None:
    document = report_json(evidence, COMMAND)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert len(document["comparisons"]) == 3 * 3 * 4
    assert document["published"]["exact_p_values_tight"]["FRP"] == 0.001953


def test_the_page_and_the_json_count_the_same_answers_for_table_4(evidence: Evidence, document: Document) -> None:
    table = tables(document)["Model calls whose input and output must be kept for one decision"]
    page = [(row[0], row[2]) for row in table.rows if not str(row[0]).startswith("paper")]
    surfaces = report_json(evidence, COMMAND)["audit_surface"]
    assert page == [(line["architecture"], str(line["num_answers"])) for line in surfaces]
    assert {name for name, _ in page} == set(NAMES)


def test_a_folder_named_twice_counts_once(folders: list[Path]) -> None:
    assert len(collect_evidence([folders[1], folders[1]], Price()).cost) == 2 * len(NAMES)


def test_text_of_a_reason_is_shown_and_never_read(evidence: Evidence) -> None:
    evil = replace(evidence.quality[0], status="failed", reason="X: <img src=x onerror=alert(1)>")
    page = render_page(build_document(replace(evidence, quality=(evil, *evidence.quality[1:])), COMMAND))
    assert "<img" not in page and "&lt;img" in page


def test_nothing_to_report_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        collect_evidence([tmp_path], Price())
    run_quality([], Setting(ScriptedEngine(), Profile(2), tmp_path), Quiet(), concurrency=1)
    with pytest.raises(RequestError, match="no rows"):
        collect_evidence([tmp_path], Price())
