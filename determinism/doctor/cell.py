"""Why a cell of a suite drifted: where its replays part, and which setting of the engine, or which fault, makes them.

A cell is held again for each trial, by the suite itself, so the question is the suite's own: does this check pass on
this workload when this is turned?
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from determinism.cell import Cell
from determinism.divergence import CallDivergence, find_divergence
from determinism.doctor.diagnosis import Diagnosis, diagnose
from determinism.doctor.switches import Setting, Switch, setting_switches
from determinism.suite.plan import Wish, make_plans
from determinism.suite.results import open_results, read_results, row_key
from determinism.suite.run import run
from determinism.verdict import Verdict
from inference.config import EngineConfig
from projection.engine import Tokenizer
from projection.errors import EngineError, NotFoundError, RequestError

FAULT = "the fault that was put in"


@dataclass(frozen=True, slots=True)
class CellExplanation:
    """What was found. switches: those that were at hand, by name.

    divergence: None where no token differs. diagnosis: None where the cell did not drift.
    """

    cell: Cell
    divergence: CallDivergence | None
    diagnosis: Diagnosis | None
    switches: Mapping[str, Switch]

    @property
    def verdict(self) -> Verdict:
        return self.cell.verdict

    @property
    def causes(self) -> tuple[Switch, ...]:
        return () if self.diagnosis is None else tuple(self.switches[name] for name in self.diagnosis.causes)


def find_cell(directory: Path, wanted: str) -> tuple[Mapping[str, Any], Cell]:
    """The parameters of a run, and the one of its cells whose key is `wanted` or holds all of its words.

    Raises:
        NotFoundError: there is none, or no results. RequestError: there are several.
    """
    parameters, cells = read_results(directory)
    words = wanted.split()
    exact = [cell for cell in cells if row_key(cell.key) == wanted]
    found = exact or [cell for cell in cells if all(word in row_key(cell.key) for word in words)]
    if not found:
        raise NotFoundError(f"{directory} has no cell {wanted!r}", cell=wanted)
    if len(found) > 1:
        keys = "; ".join(row_key(cell.key) for cell in found[:5])
        raise RequestError(f"{len(found)} cells are called {wanted!r}: {keys}. Give more words", cell=wanted)
    return parameters, found[0]


def explain_cell(
    parameters: Mapping[str, Any], cell: Cell, tokenizer: Tokenizer, hold: Hold, say: Callable[[str], None]
) -> CellExplanation:
    """Hold a cell again and again, with one thing turned after the other.

    hold: `hold_again`, or what stands in for it.
    """
    if not cell.num_drifted:
        return CellExplanation(cell, None, None, {})
    setting = Setting(parameters["engine"], EngineConfig.model_validate(parameters["config"]))
    fault = [Switch(FAULT, f"{cell.control} -> taken out", lambda unchanged: unchanged)] if cell.control else []
    settings = [] if fault or setting.engine != "vllm" else list(setting_switches(setting.config))
    switches = {switch.name: switch for switch in (*fault, *settings)}

    def agrees(turned: tuple[str, ...]) -> bool:
        turning = setting
        for name in turned:
            turning = switches[name].turn(turning)
        say(f"holding {cell.check} on {cell.workload} again: {', '.join(turned) or 'nothing turned'}")
        return hold(parameters, turning.config, cell, FAULT in turned)

    diagnosis = diagnose((), tuple(switches), agrees)
    return CellExplanation(cell, _divergence(cell, tokenizer), diagnosis, switches)


Hold = Callable[[Mapping[str, Any], EngineConfig, Cell, bool], bool]
"""Whether a cell passes under a configuration; the last argument takes its control's fault out.

Raises:
    EngineError: it cannot be held so.
"""


def hold_again(parameters: Mapping[str, Any], config: EngineConfig, cell: Cell, is_sound: bool) -> bool:
    """Hold a cell with the suite, in a folder of its own."""
    wish = Wish(
        engine=parameters["engine"],
        checks=(cell.check,),
        workloads=(cell.workload,),
        lanes=tuple(parameters["lanes"]),
        is_quick=parameters["is_quick"],
    )
    with tempfile.TemporaryDirectory(prefix="dpm-doctor-") as folder:
        plans = [plan for plan in make_plans(wish, config, Path(folder)) if plan.label == cell.engine]
        controls = [] if is_sound else [c for plan in plans for c in plan.controls if c.name == cell.control]
        chosen = [replace(plan, controls=tuple(controls)) for plan in plans]
        with open_results(Path(folder) / "results", {}) as journal:
            held = list(run(chosen, journal))
    return _verdict(held, None if is_sound else cell.control) == "PASS"


def _verdict(held: Sequence[Cell], control: str | None) -> Verdict:
    found = next((cell for cell in held if cell.control == control), None)
    if found is None:
        raise EngineError("this program's suite does not hold that cell: it was made by another version")
    if found.verdict not in ("PASS", "DRIFT"):
        raise EngineError(f"{found.verdict}: {found.reason}")
    return found.verdict


def _divergence(cell: Cell, tokenizer: Tokenizer) -> CallDivergence | None:
    """Where the first replay that drifted parts from the reference."""
    drifted = cell.first_drifted
    if drifted is None:
        return None
    return find_divergence(drifted.label, cell.surfaces[0], cell.surface_of(drifted), tokenizer)
