"""The four files of a suite's report.

`write` reads a results folder and writes beside its rows: `report.json` for programs, `junit.xml` for forges,
`report.md` and `report.html` for people. Equal results give equal bytes. The report draws conclusions; the evidence,
every bit of every answer, stays in the rows.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from determinism.report.document import build_document
from determinism.report.junit import junit
from determinism.report.summary import CheckSummary, LaneDrift, Report, ReportedCell, summarise
from determinism.statistics import CONFIDENCE
from determinism.suite.results import read_results
from reporting.files import write_text
from reporting.markdown import render_markdown
from reporting.page import render_page

SCHEMA = "dpm/determinism-report"
SCHEMA_VERSION = 1


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
        "checks": [_check_value(check) for check in report.checks],
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


def _check_value(summary: CheckSummary) -> dict[str, Any]:
    drift = summary.drift
    return {
        "engine": summary.engine,
        "check": summary.check,
        "num_workloads": summary.num_workloads,
        "num_turns": summary.num_turns,
        "num_unique_surfaces": summary.num_unique_surfaces,
        "num_comparisons": 0 if drift is None else drift.num_comparisons,
        "num_drifted": 0 if drift is None else drift.num_drifted,
        "max_drift_rate": None if drift is None else drift.max_rate,
        "num_controls_found": summary.num_found,
        "num_controls": summary.num_controls,
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
        NotFoundError: there are no results. JournalError: they are damaged.
        StorageError: a file cannot be written.
    """
    parameters, cells = read_results(results_dir)
    report = summarise(parameters, cells)
    document = build_document(report)
    files = {
        "report.json": json.dumps(report_document(report), indent=2, allow_nan=False) + "\n",
        "junit.xml": junit(report),
        "report.md": render_markdown(document),
        "report.html": render_page(document),
    }
    for name, text in files.items():
        write_text(Path(results_dir) / name, text)
    return report
