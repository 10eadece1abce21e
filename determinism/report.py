"""The report of a suite: its cells in numbers, whether it holds, and the four files that say so.

`write` reads a results folder and writes beside its rows: `report.json` for programs, `junit.xml` for forges,
`report.md` and `report.html` for people. Equal results give equal bytes. The report draws conclusions; the evidence,
every bit of every answer, stays in the rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from determinism.cell import Cell
from determinism.results import read_results
from determinism.statistics import (
    CONFIDENCE,
    CellStatistics,
    Drift,
    measure,
    measured_survival,
    merge,
    pool,
    survival,
)
from determinism.suite import conclude
from projection.errors import StorageError

SCHEMA = "dpm/determinism-report"
SCHEMA_VERSION = 1
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
class LaneDrift:
    """One engine, as it is or with one fault: how often a call drifted, and what that says of a decision's two calls.

    num_identical, num_pairs: of replays of both calls of a decision, side by side; no pairs where only one was asked.
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


def report_document(report: Report) -> dict[str, Any]:
    """The report as a JSON value."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "exit_code": report.exit_code,
        "num_missing": report.num_missing,
        "confidence": CONFIDENCE,
        "parameters": dict(report.parameters),
        "cells": [_cell_value(reported) for reported in report.cells],
        "answers": [_cell_value(reported) for reported in report.answers],
        "lanes": [_lane_value(lane) for lane in report.lanes],
    }


def _cell_value(reported: ReportedCell) -> dict[str, Any]:
    cell, statistics = reported.cell, reported.statistics
    difference = cell.first_difference
    return {
        "engine": cell.engine,
        "engine_identity": cell.engine_identity,
        "check": cell.check,
        "workload": cell.workload,
        "control": cell.control,
        "verdict": cell.verdict,
        "expected": cell.expected,
        "holds": cell.holds,
        "reason": cell.reason,
        "evidence": cell.evidence,
        "wall_s": cell.wall_s,
        "statistics": None if statistics is None else asdict(statistics),
        "surfaces": [surface.sha256 for surface in cell.surfaces],
        "replays": [{"label": replay.label, "surface": replay.surface} for replay in cell.replays],
        "first_difference": None if difference is None else asdict(difference),
    }


def _lane_value(lane: LaneDrift) -> dict[str, Any]:
    return {
        "engine": lane.engine,
        "control": lane.control,
        "num_comparisons": lane.drift.num_comparisons,
        "num_drifted": lane.drift.num_drifted,
        "drift_rate": lane.drift.rate,
        "max_drift_rate": lane.drift.max_rate,
        "predicted_survival": lane.predicted_survival,
        "measured_survival": lane.measured_survival,
        "num_identical": lane.num_identical,
        "num_pairs": lane.num_pairs,
    }


def write(results_dir: str | os.PathLike[str]) -> Report:
    """Write all four files of a results folder, finished or not; each is there whole or as it was before.

    Raises:
        NotFoundError: there are no results. JournalError, VerificationError: they are damaged.
        StorageError: a file cannot be written.
    """
    from determinism.report_document import build_document
    from determinism.report_junit import junit
    from reporting.markdown import render_markdown
    from reporting.page import render_page

    parameters, cells = read_results(results_dir)
    report = summarise(parameters, cells)
    document = build_document(report)
    files = {
        "report.json": json.dumps(report_document(report), indent=2) + "\n",
        "junit.xml": junit(report),
        "report.md": render_markdown(document),
        "report.html": render_page(document),
    }
    for name, text in files.items():
        _replace(Path(results_dir) / name, text)
    return report


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as exc:
        raise StorageError(f"{path} cannot be written: {exc.strerror}", path=str(path)) from exc
