"""What a suite's cells say together: in numbers, check by check and engine by engine, and whether the run holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from determinism.cell import Cell
from determinism.statistics import (
    CellStatistics,
    Drift,
    measure,
    measured_survival,
    merge,
    pool,
    survival,
)
from determinism.suite.run import NUM_TURNS, conclude
from determinism.verdict import Verdict

SCORING_CHECK = "prefill_vs_decode"
"""Its replays are scores of an answer, not answers: they have no text."""
WHOLE_ENGINES = frozenset({None, "stock settings"})
"""Conditions of an engine as a whole; all other controls put a fault under one circumstance, or in one place."""
NUM_CELLS = "num_cells"
"""The parameter of a results folder that says how many cells its run has when it is finished."""
CALLS_OF_A_DECISION = 2
PROJECTION, DECISION = "-projection-", "-decision-"


@dataclass(frozen=True, slots=True)
class ReportedCell:
    """A cell and its numbers; None where it has no replays."""

    cell: Cell
    statistics: CellStatistics | None


@dataclass(frozen=True, slots=True)
class CheckSummary:
    """One check on one engine as it is, all its workloads together.

    num_turns: how often its circumstance was made; the comparisons of one turn share it. num_unique_surfaces: distinct
    answers to the bit, of which an engine that holds has one for each workload. num_found: controls that found their
    fault, of those that ran. drift: None where nothing was compared.
    """

    engine: str
    check: str
    verdicts: tuple[Verdict, ...]
    num_workloads: int
    num_turns: int
    num_unique_surfaces: int
    drift: Drift | None
    num_found: int
    num_controls: int


@dataclass(frozen=True, slots=True)
class LaneDrift:
    """One engine, as it is or with one fault: how often a call drifted, and what that says of a decision's two calls.

    num_identical, num_pairs: of replays of both calls of a decision under the same circumstances; no pairs where only
    one call was asked.
    """

    engine: str
    control: str | None
    drift: Drift
    num_identical: int
    num_pairs: int

    @property
    def is_whole(self) -> bool:
        """Whether this says something of an engine: a fault under one circumstance says something of a check only."""
        return self.control in WHOLE_ENGINES

    @property
    def predicted_survival(self) -> float:
        """Of a decision's two calls, if each drifts alone at the measured rate."""
        return survival(self.drift.rate, CALLS_OF_A_DECISION)

    @property
    def measured_survival(self) -> float | None:
        return self.num_identical / self.num_pairs if self.num_pairs else None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything the four files say.

    answers: for each engine, fault and workload, all its answers in one cell, whatever the circumstances.
    """

    parameters: Mapping[str, Any]
    cells: tuple[ReportedCell, ...]
    answers: tuple[ReportedCell, ...]
    checks: tuple[CheckSummary, ...]
    lanes: tuple[LaneDrift, ...]
    exit_code: int

    @property
    def engines(self) -> tuple[str, ...]:
        """What was tested, in the order of the cells."""
        return tuple(dict.fromkeys(reported.cell.engine for reported in self.cells))

    def of_engine(self, engine: str) -> Report:
        """The part of the report that is about one engine."""
        return replace(
            self,
            cells=tuple(reported for reported in self.cells if reported.cell.engine == engine),
            answers=tuple(reported for reported in self.answers if reported.cell.engine == engine),
            checks=tuple(check for check in self.checks if check.engine == engine),
            lanes=tuple(lane for lane in self.lanes if lane.engine == engine),
        )

    @property
    def num_missing(self) -> int:
        """Cells that the run still owes; 0 where its parameters do not say how many it has."""
        return max(0, int(self.parameters.get(NUM_CELLS, 0)) - len(self.cells))

    @property
    def plain(self) -> tuple[ReportedCell, ...]:
        """Cells of engines as they are."""
        return tuple(reported for reported in self.cells if reported.cell.control is None)

    @property
    def whole_answers(self) -> tuple[ReportedCell, ...]:
        """Answers of engines as they are, and with stock settings."""
        return tuple(reported for reported in self.answers if reported.cell.control in WHOLE_ENGINES)

    @property
    def controls(self) -> tuple[ReportedCell, ...]:
        """Cells of faults put in on purpose."""
        return tuple(reported for reported in self.cells if reported.cell.control is not None)


def summarise(parameters: Mapping[str, Any], cells: Iterable[Cell]) -> Report:
    """The report on finished cells, in their order."""
    all_cells = list(cells)
    return Report(
        parameters=parameters,
        cells=tuple(map(_reported, all_cells)),
        answers=tuple(map(_reported, _merged_answers(all_cells))),
        checks=tuple(_checks(all_cells)),
        lanes=tuple(_lanes(all_cells)),
        exit_code=conclude(all_cells),
    )


def _reported(cell: Cell) -> ReportedCell:
    return ReportedCell(cell, measure(cell) if cell.replays else None)


def _has_answers(cell: Cell) -> bool:
    return cell.verdict in {"PASS", "DRIFT"} and cell.check != SCORING_CHECK


def _merged_answers(cells: Sequence[Cell]) -> list[Cell]:
    groups: dict[tuple[str, str | None, str], list[Cell]] = {}
    for cell in cells:
        if _has_answers(cell):
            groups.setdefault((cell.engine, cell.control, cell.workload), []).append(cell)
    return [merge(group) for group in groups.values()]


def _checks(cells: Sequence[Cell]) -> Iterator[CheckSummary]:
    for engine, check in dict.fromkeys((cell.engine, cell.check) for cell in cells if cell.control is None):
        of_check = [cell for cell in cells if (cell.engine, cell.check) == (engine, check)]
        plain = [cell for cell in of_check if cell.control is None]
        compared = [cell for cell in plain if cell.num_comparisons]
        ran = [cell for cell in of_check if cell.control is not None and cell.verdict != "SKIPPED"]
        yield CheckSummary(
            engine=engine,
            check=check,
            verdicts=tuple(cell.verdict for cell in plain),
            num_workloads=len(compared),
            num_turns=sum(map(_num_turns, compared)),
            num_unique_surfaces=sum(len(cell.surfaces) for cell in compared),
            drift=pool(compared) if compared else None,
            num_found=sum(cell.holds for cell in ran),
            num_controls=len(ran),
        )


def _num_turns(cell: Cell) -> int:
    num_turns = cell.evidence.get(NUM_TURNS, 0)
    return num_turns if isinstance(num_turns, int) else 0


def _lanes(cells: Sequence[Cell]) -> list[LaneDrift]:
    groups: dict[tuple[str, str | None], list[Cell]] = {}
    for cell in cells:
        if _has_answers(cell) and cell.num_comparisons:
            groups.setdefault((cell.engine, cell.control), []).append(cell)
    return [LaneDrift(engine, control, pool(group), *_survived(group)) for (engine, control), group in groups.items()]


def _survived(cells: Sequence[Cell]) -> tuple[int, int]:
    """Both calls of a decision under the same circumstances, over all checks that asked both."""
    by_call = {(cell.check, cell.workload): cell for cell in cells}
    pairs = [
        measured_survival(cell, by_call[check, other])
        for (check, workload), cell in by_call.items()
        if PROJECTION in workload and (check, other := workload.replace(PROJECTION, DECISION)) in by_call
    ]
    return sum(identical for identical, _ in pairs), sum(number for _, number in pairs)
