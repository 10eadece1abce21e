"""`dpm determinism gate` and `approve` on the scripted engine: documents, exit codes, and what stands on a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from determinism.gate.store import read_approvals
from inference.scripted_engine import ScriptedEngine
from tests.determinism.gate.folder import approve_all, write_cases
from tests.service.conftest import Dpm, Result

Run = Callable[..., Result]


@pytest.fixture
def goldens(tmp_path: Path) -> Path:
    return write_cases(tmp_path)


@pytest.fixture
def gate(dpm: Dpm, goldens: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    return lambda *args: dpm("determinism", "gate", "--goldens", "goldens", "--engine", "scripted", *args)


@pytest.fixture
def approve(dpm: Dpm, goldens: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("USER", "ann")
    return lambda *args: dpm("determinism", "approve", "--goldens", "goldens", "--engine", "scripted", *args)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_from_nothing_to_a_green_gate(gate: Run, approve: Run, goldens: Path) -> None:
    before = gate("--json")
    assert (before.code, before.document["counts"]) == (5, {"MISSING": 2})
    approved = approve("--reason", "reviewed by two people", "--json")
    assert approved.code == 0
    (small, _) = approved.document["approvals"]
    assert (small["case"], small["old_digest"], small["by"], small["change"]) == ("small", None, "ann", None)
    assert small["reason"] == "reviewed by two people"
    after = gate("--json")
    assert (after.code, after.document["counts"]) == (0, {"PASS": 2})
    assert after.document["engine_identity"] == ScriptedEngine().identity.digest
    assert {entry.case for entry in read_approvals(goldens)} == {"small", "tight"}


def test_a_changed_event_turns_the_gate_red_and_names_it(gate: Run, approve: Run, tmp_path: Path) -> None:
    approve("--reason", "first")
    edit(tmp_path / "small.jsonl", "46.2%", "46.3%")
    result = gate()
    assert result.code == 1
    lines = result.stdout.splitlines()
    assert re.fullmatch(
        r"DRIFT +small  R1: event 3 changed; projection prompt_token_ids at \d+: "
        r"recorded '2' \(token 50\), found '3' \(token 51\)",
        lines[0],
    )
    assert "The scripted engine was asked: no model was." in lines
    assert lines[-1].startswith("2 DRIFT  level R3  engine ")


def test_an_approval_says_what_it_changes(approve: Run, gate: Run, tmp_path: Path) -> None:
    approve("--reason", "first")
    edit(tmp_path / "small.jsonl", "46.2%", "46.3%")
    result = approve("--reason", "the ratio was corrected", "--case", "small")
    assert result.code == 0
    assert re.search(r"^CHANGED +small  R1: event 3 changed; ", result.stdout, re.MULTILINE)
    assert "1 approved, 0 were approved already" in result.stdout
    findings = {finding["case"]: finding["verdict"] for finding in gate("--json").document["findings"]}
    assert findings == {"small": "PASS", "tight": "DRIFT"}


def test_approving_again_changes_nothing(approve: Run, goldens: Path) -> None:
    approve("--reason", "first")
    log = (goldens / "approvals.jsonl").read_bytes()
    result = approve("--reason", "again")
    assert "0 approved, 2 were approved already" in result.stdout
    assert (goldens / "approvals.jsonl").read_bytes() == log


def test_an_approval_that_fails_half_way_writes_nothing(approve: Run, goldens: Path) -> None:
    edit(goldens / "cases.yaml", "budget_chars: 900", "budget_chars: 9")
    result = approve("--reason", "first", "--json")
    assert (result.code, result.error["type"]) == (2, "BudgetTooSmallError")
    assert sorted(path.name for path in goldens.iterdir()) == ["cases.yaml"]


@pytest.mark.parametrize("user", ["", None])
def test_an_approval_needs_a_name(approve: Run, monkeypatch: pytest.MonkeyPatch, user: str | None) -> None:
    for name in ("USER", "LOGNAME"):
        monkeypatch.delenv(name, raising=False)
    if user is not None:
        monkeypatch.setenv("USER", user)
    assert "needs a name" in approve("--reason", "first").stderr
    assert approve("--reason", "first", "--by", "bob").code == 0


def test_an_approval_needs_a_reason(approve: Run) -> None:
    assert approve().code == 2
    result = approve("--reason", " ", "--json")
    assert (result.code, result.error["type"]) == (2, "RequestError")


def test_unused_goldens_are_pruned_with_a_reason(approve: Run, gate: Run, goldens: Path) -> None:
    approve("--reason", "first")
    edit(goldens / "cases.yaml", "name: tight", "name: other")
    assert gate("--json").document["counts"] == {"PASS": 1, "MISSING": 1, "UNUSED": 1}
    result = approve("--prune", "--reason", "withdrawn")
    assert (result.code, result.stdout.splitlines()[0]) == (0, "REMOVED   tight")
    assert gate("--json").document["counts"] == {"PASS": 1, "MISSING": 1}
    assert approve("--prune", "--reason", "withdrawn").code == 5


def test_pruning_takes_no_case(approve: Run, goldens: Path) -> None:
    approve("--reason", "first")
    edit(goldens / "cases.yaml", "name: tight", "name: other")
    before = read_approvals(goldens)
    result = approve("--prune", "--case", "small", "--reason", "withdrawn", "--json")
    assert (result.code, "leave --case out" in result.error["message"]) == (2, True)
    assert read_approvals(goldens) == before


@pytest.mark.parametrize(("more", "code"), [((), 0), (("--strict",), 1)])
def test_strict_fails_on_what_was_not_compared(
    gate: Run, approve: Run, goldens: Path, more: tuple[str, ...], code: int
) -> None:
    approve("--reason", "first", "--case", "small")
    assert gate(*more).code == code


def test_no_cases_is_exit_code_five_and_starts_no_engine(gate: Run, approve: Run, goldens: Path) -> None:
    (goldens / "cases.yaml").write_text("cases: []", encoding="utf-8")
    for result in (gate(), approve("--reason", "first")):
        assert result.code == 5
        assert "starting engine" not in result.stderr


def test_another_engine_is_exit_code_three(gate: Run, goldens: Path, tmp_path: Path) -> None:
    from tests.determinism.gate.folder import AlteredEngine

    approve_all(goldens, AlteredEngine({"weights": {"manifest_digest": "0" * 64}}))
    result = gate()
    assert result.code == 3
    assert "INCOMPARABLE  small  approved on another engine; the nearest differs in weights" in result.stdout


def test_wrong_use_is_exit_code_two_and_says_what_is_right(gate: Run, dpm: Dpm, goldens: Path) -> None:
    assert "choose R1, R2, R3" in gate("--level", "R0").stderr
    assert gate("--level", "R0").code == 2
    named = gate("--case", "nobody")
    assert (named.code, "there is no case 'nobody'; cases.yaml lists small, tight" in named.stderr) == (2, True)
    assert gate("--report", "gate.txt").code == 2
    elsewhere = dpm("determinism", "gate", "--goldens", "nowhere", "--engine", "scripted")
    assert (elsewhere.code, "no such file" in elsewhere.stderr) == (2, True)


def test_a_damaged_approvals_log_is_exit_code_four(gate: Run, approve: Run, goldens: Path) -> None:
    approve("--reason", "first")
    with (goldens / "approvals.jsonl").open("ab") as log:
        log.write(b"{}\n")
    assert (gate("--json").code, approve("--reason", "again").code) == (4, 4)


def test_a_corrupt_golden_is_exit_code_four(gate: Run, approve: Run, goldens: Path) -> None:
    approve("--reason", "first")
    (path,) = (goldens / "small").iterdir()
    path.write_bytes(b"{")
    result = gate()
    assert result.code == 4
    assert re.search(r"^ERROR +small  goldens/small/[0-9a-f]{64}\.json: ", result.stdout, re.MULTILINE)


def test_the_report_is_written_whatever_the_verdict(gate: Run, approve: Run, tmp_path: Path) -> None:
    approve("--reason", "first")
    edit(tmp_path / "small.jsonl", "46.2%", "46.3%")
    assert gate("--report", "out/gate.xml").code == 1
    suite = ElementTree.parse(tmp_path / "out" / "gate.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "2")
    printed = gate("--report", "gate.json", "--json").document
    written = json.loads((tmp_path / "gate.json").read_text(encoding="utf-8"))
    for document in (written, printed):
        for finding in document["findings"]:
            del finding["wall_s"]
    assert written == printed


def test_annotations_go_to_the_log_of_github_only(
    gate: Run, approve: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    approve("--reason", "first")
    edit(tmp_path / "small.jsonl", "46.2%", "46.3%")
    assert "::error" not in gate().stderr
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    result = gate("--json")
    assert json.loads(result.stdout)["counts"] == {"DRIFT": 2}
    annotations = [line for line in result.stderr.splitlines() if line.startswith("::")]
    assert len(annotations) == 2
    assert annotations[0].startswith("::error file=goldens/cases.yaml,title=DRIFT small::R1: event 3 changed; ")


def test_text_of_a_case_never_begins_a_line_of_the_terminal(gate: Run, approve: Run, tmp_path: Path) -> None:
    approve("--reason", "first")
    edit(tmp_path / "small.jsonl", "Stated monthly", "\\n::error::forged\\u2028::x Stated monthly")
    for result in (gate(), approve("--reason", "second")):
        told = (result.stdout + result.stderr).splitlines()
        assert not [line for line in told if line.startswith("::") or "forged" in line[:20]]


def test_progress_names_each_case(gate: Run, approve: Run) -> None:
    approve("--reason", "first")
    said = gate().stderr
    assert "case 1 of 2: small" in said
    assert re.search(r"case 2 of 2: tight, about \d+ s left", said)
