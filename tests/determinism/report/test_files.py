"""A suite's report: what it concludes, and that its four files say so whatever a model wrote."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from determinism.cell import Cell
from determinism.report import files, summary
from determinism.report.document import build_document
from determinism.report.junit import junit
from determinism.report.table3 import at_most, table_3
from determinism.statistics import upper_bound
from determinism.suite.results import open_results, row_key
from projection.errors import NotFoundError, StorageError
from reporting.document import Document
from reporting.journal import FILE_NAME, JournalError
from reporting.markdown import render_markdown
from reporting.page import render_page
from tests.determinism.cell_samples import VIEW, cell, whole_suite

ROOT = Path(__file__).parents[3]
HTML_ONLY = re.compile("<svg.*?</svg>", re.DOTALL)
"""What to leave out of a page to compare its elements: a plot has as many as its labels need."""
FILES = ("report.json", "junit.xml", "report.md", "report.html")
HOSTILE = '<script>alert(1)</script>|`**x**\x00\x1b[31m\u202e\ufffe ]]> & "quoted"\nnext 😀'


def keep(folder: Path, cells: Iterable[Cell]) -> Path:
    with open_results(folder, {"max_tokens": 160, "command": "dpm determinism run --quick"}) as journal:
        for one in cells:
            journal.append(row_key(one.key), one.to_value())
    return folder


def summarise(*cells: Cell) -> summary.Report:
    return summary.summarise({}, cells)


def document_of(*cells: Cell) -> Document:
    return build_document(summarise(*cells))


def texts_of(document: Document) -> str:
    return render_markdown(document).replace("\\", "")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = keep(tmp_path_factory.mktemp("suite"), whole_suite())
    files.write(folder)
    return folder


def test_four_files_are_written_and_the_rows_stay(written: Path) -> None:
    assert {path.name for path in written.iterdir()} == {*FILES, FILE_NAME}


def test_equal_results_give_equal_bytes_in_another_process(written: Path) -> None:
    before = {name: (written / name).read_bytes() for name in FILES}
    program = "import sys; from determinism.report import files; files.write(sys.argv[1])"
    command = [sys.executable, "-c", program, str(written)]
    subprocess.run(command, cwd=ROOT, env={"PYTHONHASHSEED": "3", "LC_ALL": "C"}, check=True)
    assert {name: (written / name).read_bytes() for name in FILES} == before


def test_the_json_names_its_schema_and_holds_the_numbers(written: Path) -> None:
    document = json.loads((written / "report.json").read_text("utf-8"))
    assert (document["schema"], document["schema_version"]) == ("dpm/determinism-report", 1)
    assert document["exit_code"] == 0
    assert document["parameters"]["max_tokens"] == 160
    first = document["cells"][0]
    assert (first["check"], first["verdict"], first["holds"]) == ("run_to_run", "PASS", True)
    assert first["statistics"]["max_drift_rate"] == upper_bound(0, 7)
    assert first["statistics"]["num_unique_surfaces"] == len(first["surfaces"]) == 1
    skipped = next(one for one in document["cells"] if one["verdict"] == "SKIPPED")
    assert skipped["statistics"] is None
    drifted = next(one for one in document["cells"] if one["control"])
    assert drifted["first_difference"]["index"] == drifted["statistics"]["first_differing_token"] == 300


def test_a_suite_whose_checks_hold_and_whose_controls_found_their_faults_holds(written: Path) -> None:
    page = (written / "report.html").read_text("utf-8")
    assert '<span class="badge good">HOLDS</span>' in page
    assert "none drifted" in page
    num_controls = sum(one.control is not None for one in whole_suite())
    assert f"Controls that found their fault: all of {num_controls}." in page


def test_a_drift_is_named_with_its_place() -> None:
    drifted = VIEW[:300] + "X" + VIEW[301:]
    found = summarise(cell([VIEW, VIEW, drifted]), cell([VIEW, drifted], control="one ULP"))
    assert found.exit_code == 1
    shown = texts_of(build_document(found))
    assert "DOES NOT HOLD" in shown
    assert "1 cell did not come out as expected." in shown
    assert f"token_ids differ at token 300: {ord(VIEW[300])}, then {ord('X')}" in shown


def test_a_control_that_finds_nothing_is_no_success() -> None:
    found = summarise(cell(["a", "a"]), cell(["a", "a"], control="one ULP"))
    assert found.exit_code == 1
    shown = texts_of(build_document(found))
    assert "NOT FOUND" in shown
    assert "Controls that found their fault: 0 of 1." in shown
    failure = ElementTree.fromstring(junit(found)).find("testsuite/testcase/failure")
    assert failure is not None
    assert "'one ULP' should be DRIFT, and is PASS" in failure.attrib["message"]


def test_a_check_without_a_control_that_found_its_fault_is_named() -> None:
    assert "nothing shows that these checks can fail" in texts_of(document_of(cell(["a", "a"])))
    no_memory = cell([], check="route", control="one ULP", verdict="SKIPPED", reason="no memory")
    found = document_of(
        cell(["a", "a"]), cell(["a", "a"], check="route"), no_memory, cell(["a", "b"], control="one byte")
    )
    assert "nothing shows that the check can fail: route on vllm smollm2-135m-instruct." in texts_of(found)
    assert found.lead.endswith("Controls that found their fault: all of 1. 1 cell could not be held here.")


def test_nothing_but_skipped_cells_is_no_success() -> None:
    found = summarise(cell([], verdict="SKIPPED", reason="no second server"))
    assert found.exit_code == 5
    shown = texts_of(build_document(found))
    assert "NOTHING RAN" in shown
    assert "No check compared anything." in shown
    assert "no second server" in shown


def test_a_report_on_no_cells_can_be_written(tmp_path: Path) -> None:
    assert files.write(keep(tmp_path, [])).exit_code == 5
    assert "NOTHING RAN" in (tmp_path / "report.html").read_text("utf-8")


def test_an_unfinished_run_does_not_look_finished() -> None:
    found = summary.summarise({"num_cells": 3}, [cell(["a", "a"])])
    assert (found.num_missing, files.report_document(found)["num_missing"]) == (2, 2)
    shown = texts_of(build_document(found))
    assert "NOT FINISHED" in shown
    assert "Missing cells: 2." in shown
    error = ElementTree.fromstring(junit(found)).find("testsuite/testcase[@name='is finished']/error")
    assert error is not None
    finished = summary.summarise({"num_cells": 1}, [cell(["a", "a"])])
    assert "NOT FINISHED" not in texts_of(build_document(finished))
    assert "is finished" not in junit(finished)


def test_engines_are_never_pooled() -> None:
    found = summarise(cell([VIEW] * 10), cell([VIEW, VIEW + "x", VIEW], engine="stock server"))
    assert [(lane.engine, lane.drift.num_comparisons, lane.drift.num_drifted) for lane in found.lanes] == [
        ("vllm smollm2-135m-instruct", 9, 0),
        ("stock server", 2, 1),
    ]
    lead = build_document(found).lead
    assert "vllm smollm2-135m-instruct, 1 check on 1 workload: of 9 comparisons none drifted" in lead
    assert "stock server, 1 check on 1 workload: of 2 comparisons 1 drifted (50.00%)" in lead
    assert len(found.of_engine("stock server").cells) == len(found.of_engine("stock server").answers) == 1


def test_a_failed_cell_is_counted_in_no_rate() -> None:
    failed = cell([VIEW, VIEW, VIEW], check="preemption", verdict="ERROR", reason="the check was vacuous")
    found = summarise(cell([VIEW, VIEW]), failed)
    (lane,) = found.lanes
    assert (lane.drift.num_comparisons, found.exit_code) == (1, 4)


def test_scores_are_no_answers() -> None:
    scores = cell(["", ""], check="prefill_vs_decode")
    found = summarise(cell([VIEW, VIEW, VIEW]), scores)
    assert [one.cell.num_replays for one in found.answers] == [3]
    assert found.lanes[0].drift.num_comparisons == 2


def test_answers_of_all_checks_share_one_reference() -> None:
    found = summarise(cell([VIEW] * 3), cell([VIEW, VIEW, VIEW + "x"], check="batch_size"))
    (answers,) = found.answers
    assert [replay.label for replay in answers.cell.replays] == [
        "run_to_run: replay 1",
        "run_to_run: replay 2",
        "run_to_run: replay 3",
        "batch_size: replay 2",
        "batch_size: replay 3",
    ]
    assert (answers.cell.num_comparisons, answers.cell.num_drifted) == (4, 1)


def test_another_reference_is_one_more_answer_and_not_forgotten() -> None:
    found = summarise(cell(["a", "a"]), cell(["b", "b"], check="batch_size"))
    (answers,) = found.answers
    assert (answers.cell.num_comparisons, answers.cell.num_drifted) == (3, 2)


def test_two_calls_are_held_against_the_prediction() -> None:
    projection = cell(["a", "a", "b", "a", "a"], workload="mortgage-projection-long")
    decision = cell(["x", "x", "x", "y", "x"], workload="mortgage-decision-long")
    (lane,) = summarise(projection, decision).lanes
    assert lane.drift.rate == 0.25
    assert lane.predicted_survival == 0.75**2
    assert (lane.num_identical, lane.num_pairs, lane.measured_survival) == (2, 4, 0.5)
    (alone,) = summarise(projection).lanes
    assert alone.measured_survival is None


def test_table_3_has_the_published_rows_and_ours() -> None:
    table = table_3(summarise(cell([VIEW] * 10)).whole_answers)
    assert len(table.rows) == 8
    assert table.rows[0][:6] == ["loan_L01", "DPM, published", "10", "10/10", "–", "≥ 9 of 9"]
    ours = table.rows[-1]
    assert ours[2:7] == ["10", "1/10", "1/10", "0 of 9", at_most(upper_bound(0, 9))]


def test_a_fault_under_one_circumstance_is_no_row_of_table_3() -> None:
    drifted = [VIEW, VIEW + "x"]
    found = summarise(cell(drifted, control="one ULP, when late"), cell(drifted, control="stock settings"))
    assert [row[1] for row in table_3(found.whole_answers).rows][7:] == ["vllm smollm2-135m-instruct, stock settings"]


def test_a_bound_is_rounded_up() -> None:
    assert at_most(0.25001) == "25.01%"
    assert at_most(0.25) == "25.00%"
    assert at_most(1.0) == "100.00%"


def junit_counts(element: ElementTree.Element) -> dict[str, int]:
    children = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    return {name: len(element.findall(f"testcase/{tag}")) for name, tag in children.items()} | {
        "tests": len(element.findall("testcase"))
    }


def test_junit_counts_what_it_lists() -> None:
    cells = [
        cell(["a", "a"]),
        cell(["a", "b"], check="batch_size"),
        cell([], check="preemption", verdict="ERROR", reason="the engine died"),
        cell([], check="second_server", verdict="SKIPPED", reason="no memory"),
        cell(["a"], check="route", verdict="INCOMPARABLE", reason="another identity"),
        cell(["a", "b"], control="one ULP"),
        cell(["a", "a"], control="one weight byte"),
    ]
    checks, controls = ElementTree.fromstring(junit(summarise(*cells))).findall("testsuite")
    assert junit_counts(checks) == {"tests": 5, "failures": 2, "errors": 1, "skipped": 1}
    assert junit_counts(controls) == {"tests": 2, "failures": 1, "errors": 0, "skipped": 0}
    for suite in (checks, controls):
        assert {name: int(suite.attrib[name]) for name in junit_counts(suite)} == junit_counts(suite)
        assert re.fullmatch(r"\d+\.\d{3}", suite.attrib["time"])


def test_junit_has_the_order_of_elements_that_its_readers_want(written: Path) -> None:
    """As in the schema of Jenkins: within a test case the outcome comes before system-out, and at most one outcome."""
    root = ElementTree.fromstring((written / "junit.xml").read_bytes())
    assert root.tag == "testsuites"
    for case in root.iter("testcase"):
        assert {"name", "classname", "time"} <= set(case.attrib)
        tags = [child.tag for child in case]
        assert tags in ([], ["skipped"], ["failure"], ["error"], ["system-out"], ["failure", "system-out"])


def cells_with(text: str) -> list[Cell]:
    """The text everywhere in a suite's cells."""
    evidence: dict[str, Any] = {text: {text: text}}
    return [
        cell([VIEW, VIEW], evidence=evidence),
        cell([VIEW, text], check="batch_size", reason=text),
        cell([], check=text, workload=text, verdict="ERROR", reason=text),
        cell([], check="route", verdict="SKIPPED", reason=text),
        cell(["a", "b"], control=text, engine=text),
    ]


def test_what_a_model_wrote_is_well_formed_xml() -> None:
    """XML 1.0 has no place for most control characters, even escaped."""
    written = junit(summarise(*cells_with(HOSTILE)))
    root = ElementTree.fromstring(written)
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\u202e]|&#(x0*1b|0*27);", written)
    message = next(root.iter("skipped")).attrib["message"]
    assert message.startswith('<script>alert(1)</script>|`**x**<U+0000><U+001B>[31m<U+202E><U+FFFE> ]]> & "quoted"')
    assert "<script" not in written


def test_what_a_model_wrote_is_no_markup_in_page_or_markdown() -> None:
    document = document_of(*cells_with(HOSTILE))
    page, markdown = render_page(document), render_markdown(document)
    for shown in (page, MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown)):
        assert "<script" not in shown
        assert "\x00" not in shown
        assert "\u202e" not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\\*\\*x\\*\\*" in markdown
    plain = render_page(document_of(*cells_with("plain")))
    assert re.findall("</?[a-z0-9]+", HTML_ONLY.sub("", page)) == re.findall("</?[a-z0-9]+", HTML_ONLY.sub("", plain))


def test_missing_and_damaged_results_are_typed_errors(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        files.write(tmp_path / "none")
    folder = keep(tmp_path / "some", [cell([VIEW, VIEW])])
    rows = (folder / FILE_NAME).read_text("utf-8")
    (folder / FILE_NAME).write_text(rows.replace("LN-2026-0417", "LN-2026-0418"), "utf-8")
    with pytest.raises(JournalError, match="does not have its digest"):
        files.write(folder)


def test_a_file_that_cannot_be_written_is_a_typed_error(tmp_path: Path) -> None:
    folder = keep(tmp_path, [cell([VIEW, VIEW])])
    (folder / "report.json").mkdir()
    with pytest.raises(StorageError, match="cannot be written"):
        files.write(folder)
