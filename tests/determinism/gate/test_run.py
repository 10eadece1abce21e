"""The gate: each verdict for its own reason, the first divergence in words, and the exit code that follows."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from determinism.gate.cases import read_cases
from determinism.gate.compare import GATE_LEVELS, GateLevel
from determinism.gate.run import Finding, Gate, check_case, gate_exit_code, is_red, run_gate
from determinism.gate.store import golden_path, read_goldens
from determinism.verdict import VERDICTS, Verdict
from inference.scripted_engine import ScriptedEngine
from projection.engine import Engine, Score
from projection.errors import EngineError
from projection.grammar import Grammar
from tests.determinism.gate.folder import PROFILE, AlteredEngine, approve_all, run, write_cases


@pytest.fixture
def goldens(tmp_path: Path) -> Path:
    """Two approved cases."""
    folder = write_cases(tmp_path)
    approve_all(folder)
    return folder


def verdicts(findings: dict[str, Finding]) -> dict[str, Verdict]:
    return {name: finding.verdict for name, finding in findings.items()}


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def other_token(at: int) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """The same tokens, but for one."""
    return lambda ids: (*ids[:at], ids[at] ^ 1, *ids[at + 1 :])


@pytest.mark.parametrize("level", GATE_LEVELS)
def test_what_was_approved_passes_at_every_level(goldens: Path, level: GateLevel) -> None:
    findings = run(goldens, level=level)
    assert verdicts(findings) == {"small": "PASS", "tight": "PASS"}
    assert all(finding.reason == "" and finding.golden_digest for finding in findings.values())
    assert {finding.num_replays for finding in findings.values()} == {1 if level == "R3" else 0}


def test_a_case_without_a_golden_is_missing_and_starts_no_engine(tmp_path: Path) -> None:
    folder = write_cases(tmp_path)

    def never() -> Engine:
        raise AssertionError("the engine was started for nothing")

    gate = Gate(read_goldens(folder), never, PROFILE)
    found = run_gate(gate, read_cases(folder), None, lambda _: None)
    assert [(finding.verdict, finding.num_replays) for finding in found] == [("MISSING", 0), ("MISSING", 0)]


def test_another_token_is_a_drift_that_names_call_index_and_both_tokens(goldens: Path) -> None:
    finding = run(goldens, AlteredEngine(token_ids=other_token(6)))["small"]
    assert finding.verdict == "DRIFT"
    assert finding.divergence is not None
    assert (finding.divergence.level, finding.divergence.call) == ("R3", "projection")
    assert (finding.divergence.what, finding.divergence.index) == ("token_ids", 6)
    assert finding.reason == "R3: projection token_ids at 6: recorded '-' (token 45), found ',' (token 44)"


def test_one_bit_of_one_log_probability_is_a_drift(goldens: Path) -> None:
    smallest = 5e-324
    finding = run(goldens, AlteredEngine(logprobs=lambda values: (*values[:3], -smallest, *values[4:])))["small"]
    assert (finding.verdict, finding.divergence and finding.divergence.index) == ("DRIFT", 3)
    assert "logprobs at 3: recorded 0x0.0p+0" in finding.reason
    assert "found -0x0.0000000000001p-1022" in finding.reason


def test_the_sign_of_a_zero_is_a_bit_too(goldens: Path) -> None:
    finding = run(goldens, AlteredEngine(logprobs=lambda values: (-0.0, *values[1:])))["small"]
    assert finding.verdict == "DRIFT"
    assert "found -0x0.0p+0" in finding.reason


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"margins": lambda values: (0.5, *values[1:])}, "margins"),
        ({"text": lambda text: text + "x"}, "text"),
        ({"finish_reason": lambda _: "length"}, "finish_reason"),
        ({"token_ids": lambda ids: ids[:-1]}, "token_ids"),
        ({"token_ids": lambda ids: (*ids, 256)}, "token_ids"),
    ],
)
def test_every_other_part_of_an_answer_is_compared(goldens: Path, changes: dict[str, Any], what: str) -> None:
    finding = run(goldens, AlteredEngine(**changes))["small"]
    assert (finding.verdict, finding.divergence and finding.divergence.what) == ("DRIFT", what)


def test_r2_finds_what_only_one_forward_pass_shows_and_r1_does_not_ask(goldens: Path) -> None:
    class Doubtful(ScriptedEngine):
        def score(
            self, prompt_token_ids: Sequence[int], completion_token_ids: Sequence[int], grammar: Grammar | None
        ) -> Score:
            return super().score([*prompt_token_ids, 1], completion_token_ids, grammar)

    assert run(goldens, Doubtful(), level="R1")["small"].verdict == "PASS"
    for level in ("R2", "R3"):
        finding = run(goldens, Doubtful(), level=level)["small"]
        assert (finding.verdict, finding.divergence and finding.divergence.level) == ("DRIFT", "R2")


def test_r2_does_not_generate(goldens: Path) -> None:
    assert run(goldens, AlteredEngine(token_ids=other_token(6)), level="R2")["small"].verdict == "PASS"


# Inputs: the cause is named


def test_a_changed_event_is_named_by_its_position_with_the_first_prompt_token(goldens: Path, tmp_path: Path) -> None:
    edit(tmp_path / "small.jsonl", "Verified monthly income $6,100.00/mo", "Verified monthly income $6,200.00/mo")
    finding = run(goldens)["small"]
    assert finding.verdict == "DRIFT"
    assert finding.divergence is not None
    assert (finding.divergence.level, finding.divergence.cause) == ("R1", "event 2 changed")
    assert re.search(r"prompt_token_ids at \d+: recorded '1' \(token 49\), found '2' \(token 50\)", finding.reason)


@pytest.mark.parametrize(
    ("keep", "cause"), [(slice(0, 2), "event 3 is gone"), (slice(1, 3), "event 1 changed"), (None, "event 4 was added")]
)
def test_a_lost_or_added_event_is_named(goldens: Path, tmp_path: Path, keep: slice | None, cause: str) -> None:
    path = tmp_path / "small.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    changed = lines[keep] if keep else [*lines, lines[0].replace('"e1"', '"e9"')]
    path.write_text("".join(changed), encoding="utf-8")
    finding = run(goldens)["small"]
    assert (finding.verdict, finding.divergence and finding.divergence.cause) == ("DRIFT", cause)


def test_an_event_that_changes_no_prompt_token_is_still_a_drift(goldens: Path, tmp_path: Path) -> None:
    edit(
        tmp_path / "small.jsonl",
        '2026-03-05T10:00:00Z", "data": {"text": "Stated',
        '2026-03-05T10:00:01Z", "data": {"text": "Stated',
    )
    finding = run(goldens)["small"]
    assert (finding.verdict, finding.divergence and finding.divergence.cause) == ("DRIFT", "event 1 changed")
    assert "the same tokens" in finding.reason


@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        ("Decide application LN-7.", "Decide application LN-8.", "task question changed"),
        ("at most 45.0%", "at most 45.1%", "task policy changed"),
        ("specific reasons", "Specific reasons", "task provisions changed"),
        ("required: false", "required: true", "task fields changed"),
    ],
)
def test_a_changed_part_of_the_task_is_named(goldens: Path, tmp_path: Path, old: str, new: str, cause: str) -> None:
    edit(tmp_path / "task.yaml", old, new)
    finding = run(goldens)["small"]
    assert (finding.verdict, finding.divergence and finding.divergence.cause) == ("DRIFT", cause)


def test_a_changed_budget_and_another_profile_are_named(goldens: Path) -> None:
    edit(goldens / "cases.yaml", "budget_chars: 900", "budget_chars: 901")
    assert "budget_chars changed from 900 to 901" in run(goldens)["tight"].reason
    gate = Gate(read_goldens(goldens), ScriptedEngine, type(PROFILE)(slot_candidates=3))
    assert "slot_candidates changed from 2 to 3" in check_case(gate, read_cases(goldens)[0]).reason


def test_changed_words_of_the_template_are_named(goldens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("projection.prompt.PROJECTION_SYSTEM", "You are the memory.")
    finding = run(goldens)["small"]
    assert finding.verdict == "DRIFT"
    assert "the words of the prompt template changed; projection prompt_token_ids at" in finding.reason


# Engines


def test_another_engine_is_incomparable_and_names_every_field(goldens: Path) -> None:
    other = AlteredEngine({"flags": {"max_model_len": 5}, "weights": {"manifest_digest": "0"}})
    finding = run(goldens, other)["small"]
    assert finding.verdict == "INCOMPARABLE"
    assert finding.differing_fields == ("flags.max_model_len", "weights")
    assert "the nearest differs in flags.max_model_len, weights" in finding.reason


def test_the_nearest_golden_is_named_among_several(goldens: Path) -> None:
    approve_all(goldens, AlteredEngine({"a": 1, "b": 1}))
    assert run(goldens, AlteredEngine({"a": 1, "b": 2}))["small"].differing_fields == ("b",)


def test_goldens_of_two_engines_stand_beside_each_other(goldens: Path) -> None:
    other = AlteredEngine({"a": 1}, text=lambda text: text)
    approve_all(goldens, other)
    assert verdicts(run(goldens)) == verdicts(run(goldens, other)) == {"small": "PASS", "tight": "PASS"}


def test_an_engine_that_fails_is_an_error_of_that_case_and_the_next_is_asked_all_the_same(goldens: Path) -> None:
    class Dying(ScriptedEngine):
        num_calls = 0

        def generate(self, *args: Any, **kwargs: Any) -> Any:
            self.num_calls += 1
            if self.num_calls == 1:
                raise EngineError("the engine died")
            return super().generate(*args, **kwargs)

    findings = run(goldens, Dying())
    assert verdicts(findings) == {"small": "ERROR", "tight": "PASS"}
    assert findings["small"].reason == "EngineError: the engine died"


def test_an_engine_that_does_not_start_stops_the_gate(goldens: Path) -> None:
    def refuse() -> Engine:
        raise EngineError("no such device")

    with pytest.raises(EngineError, match="no such device"):
        run_gate(Gate(read_goldens(goldens), refuse, PROFILE), read_cases(goldens), None, lambda _: None)


# Goldens that cannot be used


def the_golden(goldens: Path, case: str = "small") -> Path:
    (path,) = (goldens / case).glob("*.json")
    return path


def test_a_corrupt_golden_is_an_error_that_names_the_file(goldens: Path) -> None:
    path = the_golden(goldens)
    path.write_bytes(path.read_bytes()[:-40])
    findings = run(goldens)
    assert verdicts(findings) == {"small": "ERROR", "tight": "PASS"}
    assert str(path) in findings["small"].reason


def test_a_golden_that_is_gone_is_an_error_and_not_missing(goldens: Path) -> None:
    the_golden(goldens).unlink()
    finding = run(goldens)["small"]
    assert finding.verdict == "ERROR"
    assert "was approved and is gone" in finding.reason


def test_a_golden_that_no_case_asks_for_is_unused_unless_cases_are_chosen(goldens: Path) -> None:
    edit(goldens / "cases.yaml", "name: tight", "name: other")
    assert verdicts(run(goldens)) == {"small": "PASS", "other": "MISSING", "tight": "UNUSED"}
    assert verdicts(run(goldens, only=["small"])) == {"small": "PASS"}


def test_a_corrupt_golden_that_no_case_asks_for_is_an_error(goldens: Path) -> None:
    the_golden(goldens, "tight").write_bytes(b"{}")
    edit(goldens / "cases.yaml", "name: tight", "name: other")
    assert verdicts(run(goldens)) == {"small": "PASS", "other": "MISSING", "tight": "ERROR"}


def test_a_golden_copied_to_another_case_is_not_taken(goldens: Path) -> None:
    shutil.copy(the_golden(goldens, "small"), the_golden(goldens, "tight"))
    assert "it was renamed or moved" in run(goldens)["tight"].reason
    (goldens / "third").mkdir()
    shutil.copy(the_golden(goldens, "small"), goldens / "third")
    assert run(goldens)["third"].verdict == "ERROR"


def test_a_case_that_is_skipped_says_why(goldens: Path) -> None:
    edit(goldens / "cases.yaml", "budget_chars: 900", "skip: waits for the form")
    finding = run(goldens)["tight"]
    assert (finding.verdict, finding.reason) == ("SKIPPED", "waits for the form")


def test_a_case_is_asked_as_often_as_it_is_told_to(goldens: Path) -> None:
    class Tiring(ScriptedEngine):
        num_calls = 0

        def generate(self, *args: Any, **kwargs: Any) -> Any:
            self.num_calls += 1
            return AlteredEngine(text=lambda text: text + "!" * (self.num_calls > 6)).generate(*args, **kwargs)

    case = read_cases(goldens)[0]
    assert check_case(Gate(read_goldens(goldens), Tiring, PROFILE), case, num_replays=3).verdict == "PASS"
    engine = Tiring()
    finding = check_case(Gate(read_goldens(goldens), lambda: engine, PROFILE), case, num_replays=4)
    assert (finding.verdict, finding.divergence and finding.divergence.what) == ("DRIFT", "text")


# Exit codes


def found(*given: Verdict) -> list[Finding]:
    return [Finding(f"case-{number}", verdict) for number, verdict in enumerate(given)]


@pytest.mark.parametrize(
    ("given", "code", "strict_code"),
    [
        ((), 5, 5),
        (("PASS",), 0, 0),
        (("PASS", "MISSING"), 0, 1),
        (("PASS", "UNUSED"), 0, 1),
        (("PASS", "SKIPPED"), 0, 1),
        (("MISSING",), 5, 1),
        (("SKIPPED",), 5, 1),
        (("UNUSED",), 5, 1),
        (("PASS", "INCOMPARABLE"), 3, 3),
        (("PASS", "ERROR", "INCOMPARABLE"), 4, 4),
        (("PASS", "DRIFT", "ERROR", "INCOMPARABLE", "MISSING"), 1, 1),
    ],
)
def test_the_exit_code_is_that_of_the_worst(given: tuple[Verdict, ...], code: int, strict_code: int) -> None:
    assert gate_exit_code(found(*given), strict=False) == code
    assert gate_exit_code(found(*given), strict=True) == strict_code


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_finding_is_red_exactly_when_it_lets_an_else_passing_gate_fail(verdict: Verdict) -> None:
    for strict in (False, True):
        (finding,) = found(verdict)
        assert is_red(finding, strict) == (gate_exit_code(found("PASS", verdict), strict) != 0)


def test_the_golden_of_the_gate_lies_under_its_case_and_engine(goldens: Path) -> None:
    for key in read_goldens(goldens).approved:
        assert golden_path(goldens, key).is_file()
        assert key.engine_identity == ScriptedEngine().identity.digest
