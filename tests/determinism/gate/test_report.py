"""What leaves the gate: annotations that no text can break out of, and reports that say the same."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from determinism.gate.annotations import MAX_ANNOTATIONS, annotate
from determinism.gate.report import GateReport, junit, report_document, write_report
from determinism.gate.run import Finding
from determinism.verdict import VERDICTS
from inference.scripted_engine import ScriptedEngine
from projection.errors import RequestError, StorageError

HOSTILE = "a\n::error::forged\r##[error]x\u2028::set-output name=x::y\x1b[31m%0A,title=z"
EVERY = tuple(Finding(f"case-{verdict.lower()}", verdict, f"because of {verdict}") for verdict in VERDICTS)


def report(*findings: Finding, strict: bool = False) -> GateReport:
    return GateReport(findings, "R3", strict, ScriptedEngine().identity)


def test_each_finding_that_is_no_pass_has_one_annotation_and_failures_come_first() -> None:
    lines = annotate(EVERY, strict=False, file="goldens/cases.yaml")
    levels = [line.split(" ")[0] for line in lines]
    assert levels == ["::error"] * 3 + ["::warning"] * 3
    assert lines[0] == "::error file=goldens/cases.yaml,title=DRIFT case-drift::because of DRIFT"
    assert [line[:7] for line in annotate(EVERY, strict=True, file="x")] == ["::error"] * 6


def test_a_gate_that_passes_says_nothing() -> None:
    assert annotate([Finding("a", "PASS")], strict=True, file="x") == []


@pytest.mark.parametrize("num_findings", [8, 9, 10, 100])
def test_there_are_never_more_than_nine_and_the_last_counts_the_rest(num_findings: int) -> None:
    findings = [Finding(f"case-{number}", "MISSING", "none") for number in range(num_findings - 1)]
    lines = annotate([*findings, Finding("worst", "DRIFT", "bits")], strict=False, file="x")
    assert len(lines) == min(num_findings, MAX_ANNOTATIONS) <= 9
    assert "title=DRIFT worst" in lines[0]
    if num_findings > 9:
        assert lines[-1] == f"::warning file=x,title=dpm gate::{num_findings - 8} more findings are only in the report"


def test_hidden_failures_make_the_last_annotation_an_error() -> None:
    lines = annotate([Finding(f"case-{number}", "DRIFT", "bits") for number in range(20)], strict=False, file="x")
    assert lines[-1].startswith("::error ")


@pytest.mark.parametrize("place", ["reason", "case", "file"])
def test_hostile_text_stays_inside_its_annotation(place: str) -> None:
    finding = Finding(HOSTILE if place == "case" else "a", "DRIFT", HOSTILE if place == "reason" else "b")
    (line,) = annotate([finding], strict=False, file=HOSTILE if place == "file" else "c")
    assert len(line.splitlines()) == 1
    assert line.count("::") == 2
    assert line.startswith("::error file=")
    assert line.isprintable()
    assert "##[" not in line
    head, _, _ = line.removeprefix("::error ").partition("::")
    assert [part.partition("=")[0] for part in head.split(",")] == ["file", "title"]


def test_a_long_reason_is_cut_in_the_log_and_whole_in_the_report() -> None:
    finding = Finding("a", "DRIFT", "x" * 5_000)
    assert len(annotate([finding], strict=False, file="x")[0]) < 1_200
    assert report_document(report(finding))["findings"][0]["reason"] == finding.reason
    assert finding.reason in junit(report(finding))


@pytest.mark.parametrize("strict", [False, True])
def test_junit_counts_what_fails_errs_and_is_skipped(strict: bool) -> None:
    suite = ElementTree.fromstring(junit(report(*EVERY, strict=strict)))
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "7", "failures": "5" if strict else "2", "errors": "1", "skipped": "0" if strict else "3",
    }  # fmt: skip
    told = {case.get("name"): [child.tag for child in case] for case in suite}
    assert told["case-pass"] == []
    assert told["case-drift"] == ["failure"]
    assert told["case-error"] == ["error"]
    assert told["case-unused"] == (["failure"] if strict else ["skipped"])


def test_junit_holds_hostile_text_as_text() -> None:
    hostile = HOSTILE + "<failure/>]]>&amp;\x00\ufffe"
    suite = ElementTree.fromstring(junit(report(Finding("a", "DRIFT", hostile))))
    (failure,) = suite.iter("failure")
    assert "<failure/>]]>&amp;<U+0000><U+FFFE>" in str(failure.text)
    assert "<U+001B>" in str(failure.get("message"))


def test_the_document_names_engine_level_and_every_finding() -> None:
    document = report_document(report(*EVERY))
    assert document["schema_version"] == "dpm/gate-report/v1"
    assert document["engine_identity"] == ScriptedEngine().identity.digest
    assert document["engine_kind"] == "scripted"
    assert (document["level"], document["exit_code"]) == ("R3", 1)
    assert document["counts"] == dict.fromkeys(VERDICTS, 1)
    assert [finding["red"] for finding in document["findings"]] == [
        v in ("DRIFT", "INCOMPARABLE", "ERROR") for v in VERDICTS
    ]


def test_the_suffix_chooses_the_form_and_another_is_refused(tmp_path: Path) -> None:
    write_report(report(*EVERY), tmp_path / "new" / "gate.xml")
    write_report(report(*EVERY), tmp_path / "gate.json")
    assert ElementTree.parse(tmp_path / "new" / "gate.xml").getroot().tag == "testsuite"
    document = json.loads(json.dumps(report_document(report(*EVERY))))
    assert json.loads((tmp_path / "gate.json").read_text(encoding="utf-8")) == document
    with pytest.raises(RequestError, match=r"\.json, or \.xml"):
        write_report(report(*EVERY), tmp_path / "gate.txt")


def test_a_report_that_cannot_be_written_is_a_failure_of_the_storage(tmp_path: Path) -> None:
    (tmp_path / "gate.json").mkdir()
    with pytest.raises(StorageError, match="cannot be written"):
        write_report(report(*EVERY), tmp_path / "gate.json")
