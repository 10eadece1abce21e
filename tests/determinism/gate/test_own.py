"""The project's own gate, part of every test run: prompts, grammars and templates give the approved bytes again.

The goldens are the scripted engine's, whose every token hangs on every byte of prompt and grammar. A change of ours
that moves one of them is seen here, and approved with a reason or mended.
"""

from __future__ import annotations

from pathlib import Path

from determinism.gate.cases import read_cases
from determinism.gate.run import Gate, gate_exit_code, run_gate
from determinism.gate.store import read_approvals, read_goldens
from inference.engines import profile_of, read_config
from inference.scripted_engine import ScriptedEngine

GOLDENS = Path(__file__).parents[2] / "data" / "goldens"


def test_the_examples_say_what_was_approved() -> None:
    gate = Gate(read_goldens(GOLDENS), ScriptedEngine, profile_of(read_config()))
    findings = run_gate(gate, read_cases(GOLDENS), None, lambda _: None)
    assert {finding.case: finding.reason for finding in findings} == {"mortgage": "", "claim": "", "claim-tight": ""}
    assert gate_exit_code(findings, strict=True) == 0


def test_every_golden_of_ours_was_approved_with_a_reason() -> None:
    approvals = read_approvals(GOLDENS)
    assert {entry.case for entry in approvals} == {"mortgage", "claim", "claim-tight"}
    assert all(len(entry.reason) > 20 for entry in approvals)
