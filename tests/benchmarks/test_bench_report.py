"""The report: every table and figure there, the paper's numbers beside ours, nothing hidden, nothing executable."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from baseline.architectures import load_architecture
from benchmarks.bench_report import Evidence, build_document, collect_evidence, report_json, write_report
from benchmarks.cost import Price, run_cost
from benchmarks.experiments import plan_jobs
from benchmarks.experiments_runner import Setting
from benchmarks.quality import run_quality
from benchmarks.scaling import cut_cases, run_scaling
from inference.scripted_engine import ScriptedEngine
from projection.errors import NotFoundError, RequestError
from projection.view_grammar import Profile
from reporting.document import Document, Table
from reporting.page import render_page
from tests.benchmarks.test_experiments import NAMES, Quiet, cases

COMMAND = "dpm bench report --results <here>"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A quality, a cost and a scaling run of the scripted engine."""
    root = tmp_path_factory.mktemp("results")
    architectures = [load_architecture(name) for name in NAMES]
    ratios = [Fraction(ratio) for ratio in (1000, 20, 3)]
    names = ("quality", "cost", "scaling")
    quality, cost, scaling = (Setting(ScriptedEngine(), Profile(2), root / name) for name in names)
    run_quality(plan_jobs(cases(3), architectures, ratios), quality, Quiet(), concurrency=2)
    run_cost(plan_jobs(cases(2), architectures, ratios[2:]), cost, Quiet())
    run_scaling(plan_jobs(cut_cases(cases(1), [1, 2, 4]), architectures, ratios[2:]), scaling, Quiet())
    return [quality.directory, cost.directory, scaling.directory]


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
    for name in ("Table 1", "Figure 4", "TAMS", "Table 2", "Table 4", "trajectory length"):
        assert any(name in title for title in titles), name


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
    assert page.count("<svg") == 6
    assert "<script" not in page and "&lt;here&gt;" in page


def test_the_json_holds_every_table_and_can_be_read_back(evidence: Evidence) -> None:
    document = report_json(evidence, COMMAND)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert len(document["comparisons"]) == 3 * 3 * 4
    assert {line["architecture"] for line in document["audit_surface"]} == set(NAMES)
    assert document["published"]["exact_p_values_tight"]["FRP"] == 0.001953


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
