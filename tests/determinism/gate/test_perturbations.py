"""A case under circumstances that should not matter: shown to have happened, and named when they did matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from determinism.gate.cases import read_cases
from determinism.gate.perturbations import PERTURBATIONS, choose_perturbations
from determinism.gate.run import Finding, Gate, check_case
from determinism.gate.store import read_goldens
from inference.counters import Counters
from inference.scripted_engine import ScriptedEngine
from projection.engine import Completion
from projection.errors import RequestError
from projection.grammar import Grammar
from tests.determinism.gate.folder import PROFILE, approve_all, write_cases


class CountedScript(ScriptedEngine):
    """A scripted engine that takes batches and counts them. spoilt: the size of batch whose first answer is another."""

    def __init__(self, spoilt: int | None = None) -> None:
        super().__init__()
        self.spoilt = spoilt
        self.max_num_running = 0

    def generate_batch(self, requests: Sequence[tuple[Sequence[int], int, Grammar | None]]) -> list[Completion]:
        self.max_num_running = max(self.max_num_running, len(requests))
        first, *others = [self.generate(*request) for request in requests]
        if len(requests) == self.spoilt:
            first = replace(first, logprobs=(*first.logprobs[:5], -1.0, *first.logprobs[6:]))
        return [first, *others]

    def counters(self) -> Counters:
        return Counters(max_num_running=self.max_num_running)

    def reset_counters(self) -> None:
        self.max_num_running = 0


def check(folder: Path, engine: ScriptedEngine, *names: str) -> Finding:
    goldens = write_cases(folder)
    approve_all(goldens)
    gate = Gate(read_goldens(goldens), lambda: engine, PROFILE)
    return check_case(gate, read_cases(goldens)[0], 2, choose_perturbations(names))


def test_a_case_passes_among_others_and_in_every_size_of_batch(tmp_path: Path) -> None:
    finding = check(tmp_path, CountedScript(), "run_to_run", "batch_size", "batch_position", "strangers")
    assert (finding.verdict, finding.reason, finding.num_replays) == ("PASS", "", 2)


@pytest.mark.parametrize(
    ("name", "spoilt", "cause"),
    [("batch_size", 4, "batch_size, batch of 4"), ("strangers", 3, "strangers, among 2 strangers")],
)
def test_a_circumstance_that_mattered_is_named_with_the_first_differing_token(
    tmp_path: Path, name: str, spoilt: int, cause: str
) -> None:
    finding = check(tmp_path, CountedScript(spoilt), name)
    assert finding.verdict == "DRIFT"
    assert finding.reason.startswith(f"R3: {cause}; projection logprobs at 5: recorded 0x0.0p+0 of ")


def test_a_circumstance_that_cannot_be_shown_is_an_error(tmp_path: Path) -> None:
    finding = check(tmp_path, ScriptedEngine(), "batch_size")
    assert finding.verdict == "ERROR"
    assert finding.reason.startswith("VacuousError: ")


def test_what_needs_more_than_the_engine_is_not_offered() -> None:
    assert set(PERTURBATIONS) == {
        "run_to_run", "batch_size", "batch_position", "arrival_order", "strangers", "neighbour_abort"
    }  # fmt: skip
    with pytest.raises(RequestError, match="no perturbation 'restart'"):
        choose_perturbations(["restart"])
