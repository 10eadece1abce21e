"""The mutation job, fast: change one flag, weight byte, prompt byte or event, and the gate must turn red and say which.

`test_mutations_real.py` does the same to a real model on vLLM.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from determinism.gate.cases import read_cases
from determinism.gate.run import Finding, Gate, gate_exit_code, run_gate
from determinism.gate.store import read_goldens
from projection.errors import WeightsError
from tests.determinism.gate.folder import PROFILE, approve_all, write_cases
from tests.determinism.gate.pinned_script import PinnedScript, flip_weight_byte, pin_again, write_weights


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return write_weights(tmp_path / "weights")


@pytest.fixture
def goldens(tmp_path: Path, weights: Path) -> Path:
    """Two cases, approved on the engine of these weights."""
    folder = write_cases(tmp_path)
    approve_all(folder, PinnedScript(weights))
    return folder


def findings_of(goldens: Path, engine: PinnedScript) -> tuple[Finding, ...]:
    gate = Gate(read_goldens(goldens), lambda: engine, PROFILE)
    return run_gate(gate, read_cases(goldens), None, lambda _: None)


def assert_red(findings: tuple[Finding, ...], verdict: str, exit_code: int, *named: str) -> None:
    """Every case has the verdict and names the cause."""
    assert [finding.verdict for finding in findings] == [verdict] * 2
    assert gate_exit_code(findings, strict=False) == gate_exit_code(findings, strict=True) == exit_code
    for finding in findings:
        assert all(word in finding.reason for word in named), finding.reason


def flip_byte(path: Path, old: bytes, new: bytes) -> None:
    """Change one byte of a file, where `old` stands."""
    data = path.read_bytes()
    assert data.count(old) == 1
    assert sum(a != b for a, b in zip(old, new, strict=True)) == 1
    path.write_bytes(data.replace(old, new))


def test_nothing_changed_is_green(goldens: Path, weights: Path) -> None:
    """The control: what the mutations below start from."""
    findings = findings_of(goldens, PinnedScript(weights))
    assert [finding.verdict for finding in findings] == ["PASS", "PASS"]
    assert gate_exit_code(findings, strict=True) == 0


def test_an_engine_flag(goldens: Path, weights: Path) -> None:
    findings = findings_of(goldens, PinnedScript(weights, max_model_len=8191))
    assert_red(findings, "INCOMPARABLE", 3, "differs in flags.max_model_len")
    assert findings[0].differing_fields == ("flags.max_model_len",)


def test_a_weight_byte(goldens: Path, weights: Path) -> None:
    """The engine does not start, and the error names the file."""
    flip_weight_byte(weights)
    with pytest.raises(WeightsError, match=r"changed: model\.safetensors"):
        PinnedScript(weights)


def test_a_weight_byte_that_was_pinned_again(goldens: Path, weights: Path) -> None:
    flip_weight_byte(weights)
    pin_again(weights)
    findings = findings_of(goldens, PinnedScript(weights))
    assert_red(findings, "INCOMPARABLE", 3, "differs in weights.manifest_digest")
    assert findings[0].differing_fields == ("weights.manifest_digest",)


def test_a_weight_byte_of_an_engine_that_claims_the_old_identity(goldens: Path, weights: Path) -> None:
    claimed = PinnedScript(weights).identity
    flip_weight_byte(weights)
    assert_red(findings_of(goldens, PinnedScript(weights, claimed=claimed)), "DRIFT", 1, "projection token_ids at ")


def test_a_prompt_byte_of_the_task(goldens: Path, weights: Path, tmp_path: Path) -> None:
    flip_byte(tmp_path / "task.yaml", b"Decide application LN-7.", b"Decide application LN-8.")
    findings = findings_of(goldens, PinnedScript(weights))
    assert_red(findings, "DRIFT", 1, "R1: task question changed; projection prompt_token_ids at ")
    assert "recorded '7' (token 55), found '8' (token 56)" in findings[0].reason


@pytest.mark.parametrize(
    ("constant", "change", "cause"),
    [
        (
            "PROJECTION_SYSTEM",
            lambda text: text.replace("You are", "You Are"),
            "the words of the prompt template changed",
        ),
        ("DECISION_SYSTEM", lambda text: text.replace("You decide", "You Decide"), "the words of the prompt template"),
    ],
)
def test_a_prompt_byte_of_the_template(
    goldens: Path,
    weights: Path,
    monkeypatch: pytest.MonkeyPatch,
    constant: str,
    change: Callable[[str], str],
    cause: str,
) -> None:
    import projection.prompt

    monkeypatch.setattr(projection.prompt, constant, change(getattr(projection.prompt, constant)))
    assert_red(findings_of(goldens, PinnedScript(weights)), "DRIFT", 1, cause)


def test_a_prompt_byte_of_the_layout(goldens: Path, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that no digest of an input covers: the prompt's own tokens show it."""
    monkeypatch.setattr("projection.prompt.fenced", lambda text: f"|  {text}")
    findings = findings_of(goldens, PinnedScript(weights))
    assert_red(findings, "DRIFT", 1, "R1: projection prompt_token_ids at ")
    assert findings[0].divergence is not None
    assert findings[0].divergence.cause == ""


def test_an_event_of_the_log(goldens: Path, weights: Path, tmp_path: Path) -> None:
    flip_byte(tmp_path / "small.jsonl", b"$6,100.00/mo", b"$6,101.00/mo")
    findings = findings_of(goldens, PinnedScript(weights))
    assert_red(findings, "DRIFT", 1, "R1: event 2 changed; projection prompt_token_ids at ")
    assert "recorded '0' (token 48), found '1' (token 49)" in findings[0].reason
