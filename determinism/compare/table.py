"""What a comparison found, lane beside lane: cells from its rows, their numbers, and the paper's published figures.

Promises that a cell counts whole texts (what every lane can show), that log-probabilities are counted apart where a
lane gives them, and that each rate stands with its upper 95% bound. The bound supposes independent replays of the same
few questions on one machine: it says nothing about other questions, machines or loads.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from determinism import published
from determinism.cell import Cell, Observed, tally
from determinism.compare.live_surface import Validity, count_validity
from determinism.compare.plan import PINNED, CellPlan, Plan
from determinism.compare.run import calls_key, identity_key
from determinism.statistics import CellStatistics, measure, pool
from determinism.surface import Surface
from reporting.journal import Row

CHECK = "free_projection"
SCHEMA_VERSION = "dpm/comparison/v1"


@dataclass(frozen=True, slots=True)
class ComparedCell:
    """One cell: its texts as a `Cell`, and what only a comparison knows.

    num_unique_logprobs, num_logprobs_drifted: None where the lane gives no log-probabilities.
    mean_output_tokens: as the lane counts them. max_num_running: as far as anybody looked. fingerprints: returned ones.
    """

    plan: CellPlan
    cell: Cell
    statistics: CellStatistics
    num_unique_logprobs: int | None
    num_logprobs_drifted: int | None
    mean_output_tokens: float
    max_num_running: int
    num_empty: int
    models: tuple[str, ...]
    fingerprints: tuple[str, ...]
    validity: Validity


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """All cases of a lane at one length, their comparisons taken as trials of one rate.

    logprobs_drifted: None where the lane gives no log-probabilities. first_differing_char, first_differing_token: the
    earliest of any case; None where no text differs, and for tokens where they are not known. num_empty: answers
    without any text, references among them: they cannot drift, and show nothing.
    """

    lane: str
    max_tokens: int
    num_comparisons: int
    num_drifted: int
    max_drift_rate: float
    logprobs_drifted: int | None
    unique_texts: tuple[int, ...]
    first_differing_char: int | None
    first_differing_token: int | None
    mean_prefix_distance: float
    mean_text_distance: float
    mean_chars: float
    mean_output_tokens: float
    max_num_running: int
    num_empty: int
    num_valid: int
    wall_s: float


def compared_cells(plan: Plan, rows: Mapping[str, Row]) -> list[ComparedCell]:
    """Every cell that has a reference and at least one comparison, in the plan's order."""
    return list(_compared_cells(plan, rows))


def _compared_cells(plan: Plan, rows: Mapping[str, Row]) -> Iterator[ComparedCell]:
    for lane in plan.lanes:
        for cell_plan in plan.cells(lane):
            answers = [rows[key] for key in cell_plan.keys if key in rows]
            if cell_plan.key(0) in rows and len(answers) > 1:
                yield _compared_cell(cell_plan, answers, rows[identity_key(lane)]["engine_identity"])


def _compared_cell(plan: CellPlan, answers: list[Row], identity: str) -> ComparedCell:
    surfaces, replays = tally(Observed(answer["label"], _surface(answer), answer["wall_s"]) for answer in answers)
    drifted = any(replay.surface for replay in replays)
    logprobs = [answer["logprobs"] for answer in answers]
    has_logprobs = all(logprobs)
    cell = Cell(
        engine=plan.lane,
        engine_identity=identity,
        check=CHECK,
        workload=f"{plan.case}, at most {plan.max_tokens} tokens",
        verdict="DRIFT" if drifted else "PASS",
        reason="replays differ in their text" if drifted else "",
        surfaces=surfaces,
        replays=replays,
        evidence={"max_num_running": max(answer["num_running"] for answer in answers)},
        wall_s=math.fsum(answer["wall_s"] for answer in answers),
    )
    return ComparedCell(
        plan=plan,
        cell=cell,
        statistics=measure(cell),
        num_unique_logprobs=len({*logprobs}) if has_logprobs else None,
        num_logprobs_drifted=sum(other != logprobs[0] for other in logprobs) if has_logprobs else None,
        mean_output_tokens=math.fsum(answer["output_tokens"] for answer in answers) / len(answers),
        max_num_running=max(answer["num_running"] for answer in answers),
        num_empty=sum(not answer["text"] for answer in answers),
        models=_distinct(answer["model"] for answer in answers),
        fingerprints=_distinct(answer["fingerprint"] for answer in answers),
        validity=count_validity(answer["why_invalid"] for answer in answers),
    )


def _surface(answer: Row) -> Surface:
    """What every lane can show: the text, how it ended, and its tokens where they are known."""
    return Surface.build(answer["token_ids"], answer["text"], finish_reason=answer["finish_reason"])


def _distinct(values: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({value for value in values if value}))


def compared_rows(cells: Iterable[ComparedCell]) -> list[ComparedRow]:
    """One row for each lane and length, in the order of the cells."""
    groups: dict[tuple[str, int], list[ComparedCell]] = {}
    for cell in cells:
        groups.setdefault((cell.plan.lane, cell.plan.max_tokens), []).append(cell)
    return [_row(lane, max_tokens, group) for (lane, max_tokens), group in groups.items()]


def _row(lane: str, max_tokens: int, cells: list[ComparedCell]) -> ComparedRow:
    drift = pool(cell.cell for cell in cells)
    numbers = [cell.statistics for cell in cells]
    logprobs = [cell.num_logprobs_drifted for cell in cells]
    return ComparedRow(
        lane=lane,
        max_tokens=max_tokens,
        num_comparisons=drift.num_comparisons,
        num_drifted=drift.num_drifted,
        max_drift_rate=drift.max_rate,
        logprobs_drifted=None if None in logprobs else sum(count or 0 for count in logprobs),
        unique_texts=tuple(n.num_unique_texts for n in numbers),
        first_differing_char=_least(n.first_differing_char for n in numbers),
        first_differing_token=_least(n.first_differing_token for n in numbers),
        mean_prefix_distance=_mean(n.prefix_distance.mean for n in numbers),
        mean_text_distance=_mean(n.text_distance.mean for n in numbers),
        mean_chars=_mean(n.mean_chars for n in numbers),
        mean_output_tokens=_mean(cell.mean_output_tokens for cell in cells),
        max_num_running=max(cell.max_num_running for cell in cells),
        num_empty=sum(cell.num_empty for cell in cells),
        num_valid=sum(cell.validity.num_valid for cell in cells),
        wall_s=math.fsum(n.wall_s for n in numbers),
    )


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)


def drifted_lanes(cells: Iterable[ComparedCell]) -> list[str]:
    """Lanes that promised their bytes and did not keep them: the pinned one, in its text or its log-probabilities."""
    broken = [cell.plan.lane for cell in cells if cell.cell.num_drifted or (cell.num_logprobs_drifted or 0)]
    return [lane for lane in dict.fromkeys(broken) if lane == PINNED]


def comparison_document(
    plan: Plan, rows: Mapping[str, Row], command: str, date: str, cost: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The results as one JSON value. cost: of the live lane, at prices that the caller stated."""
    cells = compared_cells(plan, rows)
    return {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "date": date,
        "plan": plan.parameters(),
        "is_complete": all(key in rows for lane in plan.lanes for cell in plan.cells(lane) for key in cell.keys),
        "lanes": [_lane_value(lane, rows, cells) for lane in plan.lanes if identity_key(lane) in rows],
        "rows": [asdict(row) for row in compared_rows(cells)],
        "cells": [_cell_value(cell) for cell in cells],
        "published": {
            "source": published.SOURCE,
            "model": published.MODEL,
            "rows": [asdict(row) for row in published.TABLE_3],
        },
        "cost": cost,
    }


def _lane_value(lane: str, rows: Mapping[str, Row], cells: Iterable[ComparedCell]) -> dict[str, Any]:
    """Which engine a lane is, what it was asked for, and what its servers said of themselves."""
    own = [cell for cell in cells if cell.plan.lane == lane]
    reasons: Counter[str] = Counter()
    for cell in own:
        reasons.update(dict(cell.validity.reasons))
    return {
        "lane": lane,
        **rows[identity_key(lane)],
        "calls": count_calls(lane, rows),
        "models": sorted({model for cell in own for model in cell.models}),
        "fingerprints": sorted({fingerprint for cell in own for fingerprint in cell.fingerprints}),
        "num_valid_views": sum(cell.validity.num_valid for cell in own),
        "why_invalid": [{"reason": reason, "count": count} for reason, count in reasons.most_common()],
    }


def count_calls(lane: str, rows: Mapping[str, Row]) -> dict[str, float] | None:
    """What a lane with a meter has asked for in all its openings; None for the others."""
    counted: Counter[str] = Counter()
    number = 0
    while (key := calls_key(lane, number)) in rows:
        counted.update(rows[key])
        number += 1
    return dict(counted) if number else None


def _cell_value(cell: ComparedCell) -> dict[str, Any]:
    difference = cell.cell.first_difference
    return {
        "lane": cell.plan.lane,
        "case": cell.plan.case,
        "max_tokens": cell.plan.max_tokens,
        "engine_identity": cell.cell.engine_identity,
        "verdict": cell.cell.verdict,
        **asdict(cell.statistics),
        "text_sha256": [surface.sha256 for surface in cell.cell.surfaces],
        "first_difference": None if difference is None else str(difference),
        "num_unique_logprobs": cell.num_unique_logprobs,
        "num_logprobs_drifted": cell.num_logprobs_drifted,
        "mean_output_tokens": cell.mean_output_tokens,
        "max_num_running": cell.max_num_running,
        "models": list(cell.models),
        "fingerprints": list(cell.fingerprints),
        "num_valid_views": cell.validity.num_valid,
        "why_invalid": [{"reason": reason, "count": count} for reason, count in cell.validity.reasons],
    }
