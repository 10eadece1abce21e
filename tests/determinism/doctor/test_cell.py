"""The doctor on a suite's cells: the fault or setting that makes a cell drift is found by holding the cell again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from determinism.cell import Cell
from determinism.doctor.cell import FAULT, CellExplanation, explain_cell, find_cell, hold_again
from determinism.suite.controls import CONTROLS
from determinism.suite.plan import Wish, make_plans
from determinism.suite.results import open_results
from determinism.suite.run import run
from inference.config import EngineConfig
from inference.scripted_engine import ScriptedTokenizer
from projection.errors import EngineError, NotFoundError, RequestError
from tests.determinism.plain_config import PLAIN

WORKLOAD = "claim-projection-short-free"  # of free words, so that another prompt has another beginning
(CONTROL,) = (control.name for control in CONTROLS if control.check == "run_to_run")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one check and its control, on the scripted engine."""
    folder = tmp_path_factory.mktemp("suite")
    wish = Wish(engine="scripted", checks=("run_to_run",), workloads=(WORKLOAD,), is_quick=True)
    plans = make_plans(wish, PLAIN, folder / "scratch")
    with open_results(folder, wish.parameters(PLAIN, plans)) as journal:
        cells = list(run(plans, journal))
    assert [(cell.control, cell.verdict) for cell in cells] == [(None, "PASS"), (CONTROL, "DRIFT")]
    return folder


def no_holding(*_arguments: object) -> bool:
    raise AssertionError("held again")


def explained(results: Path, words: str, hold: Any) -> CellExplanation:
    parameters, cell = find_cell(results, words)
    return explain_cell(parameters, cell, ScriptedTokenizer(), hold, lambda _text: None)


def test_a_planted_fault_is_named_and_its_divergence_shown(results: Path) -> None:
    found = explained(results, f"run_to_run {CONTROL}", hold_again)
    assert [(cause.name, cause.change) for cause in found.causes] == [(FAULT, f"{CONTROL} -> taken out")]
    assert found.divergence is not None
    assert found.divergence.call.startswith("again")
    assert found.divergence.flip is not None


def test_a_cell_that_did_not_drift_needs_no_doctor(results: Path) -> None:
    found = explained(results, f"scripted | run_to_run | {WORKLOAD}", no_holding)
    assert (found.verdict, found.diagnosis, found.divergence) == ("PASS", None, None)


@pytest.mark.parametrize(("words", "error"), [("no such cell", NotFoundError), ("run_to_run", RequestError)])
def test_a_cell_must_be_there_and_be_one(results: Path, words: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="cell"):
        find_cell(results, words)


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no results"):
        find_cell(tmp_path, "run_to_run")


def drifted_on(config: EngineConfig, results: Path) -> tuple[Mapping[str, Any], Cell]:
    """The drifted cell as if it had drifted by itself, on vLLM under this configuration."""
    parameters, cell = find_cell(results, CONTROL)
    return {**parameters, "engine": "vllm", "config": config.model_dump(mode="json")}, cell.model_copy(
        update={"control": None, "expected": "PASS"}
    )


def test_the_setting_that_makes_a_cell_pass_is_named(results: Path) -> None:
    stock = PLAIN.model_dump() | {"attention": {"invariant": False, "split_kv": False}}
    parameters, cell = drifted_on(EngineConfig.model_validate(stock), results)

    def hold(_parameters: object, config: EngineConfig, _cell: Cell, is_sound: bool) -> bool:
        assert not is_sound
        return config.attention.invariant

    found = explain_cell(parameters, cell, ScriptedTokenizer(), hold, lambda _text: None)
    assert [(cause.name, cause.change) for cause in found.causes] == [("invariant attention", "off -> on")]


def test_a_cell_that_no_setting_makes_pass_has_no_cause(results: Path) -> None:
    parameters, cell = drifted_on(PLAIN, results)

    def hold(_parameters: object, config: EngineConfig, _cell: Cell, _is_sound: bool) -> bool:
        if config.features.speculation is not None:
            raise EngineError("ERROR: no drafts here")
        return False

    found = explain_cell(parameters, cell, ScriptedTokenizer(), hold, lambda _text: None)
    assert found.causes == ()
    assert found.diagnosis is not None
    assert set(found.diagnosis.ruled_out) == {"invariant attention", "threads", "chunked prefill", "prefix cache"}


def test_a_cell_that_this_program_does_not_hold_is_an_error(results: Path) -> None:
    parameters, cell = find_cell(results, CONTROL)
    unknown = cell.model_copy(update={"engine": "another engine"})
    with pytest.raises(EngineError, match="another version"):
        hold_again(parameters, PLAIN, unknown, True)
