"""The scale claim: calls, tokens and seconds against the length of the trajectory, at one budget.

A case is cut to its first n events and run under every architecture, one at a time. How many calls an architecture
makes is a count, and holds on any engine; seconds are of the engine they were taken on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from benchmarks.experiments.answers import Job
from benchmarks.experiments.cost import run_cost
from benchmarks.experiments.rows import ResultRow, group_by, mean_count
from benchmarks.experiments.runner import SCALING, Progress, Setting
from benchmarks.longhorizon.case import Case
from projection.errors import RequestError
from reporting.journal import Recorded


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """Means over the cases of one architecture at one length; a refused answer made the calls it made, often none."""

    architecture: str
    num_events: int
    trajectory_chars: float
    num_answers: int
    num_refused: int
    num_calls: float
    num_prompt_tokens: float
    engine_s: float


def cut_cases(cases: Iterable[Case], lengths: Sequence[int]) -> list[Case]:
    """Every case cut to its first n events, for each length that it has.

    Raises:
        RequestError: a length below 1, or no case that is long enough for any.
    """
    if any(length < 1 for length in lengths):
        raise RequestError("a trajectory has at least one event: give lengths from 1 on")
    cut = [
        replace(case, events=case.events[:length])
        for case in cases
        for length in sorted(set(lengths))
        if length <= len(case.events)
    ]
    if not cut:
        raise RequestError(f"no case has as many as {min(lengths, default=0)} events: give shorter lengths")
    return cut


def run_scaling(jobs: Sequence[Job], setting: Setting, progress: Progress) -> Recorded:
    """Run every job without a row, alone; raises as `run_experiment`."""
    return run_cost(jobs, setting, progress, schema=SCALING)


def scaling_points(rows: Sequence[ResultRow]) -> list[ScalingPoint]:
    """One point for each architecture and length."""
    groups = group_by(rows, lambda row: (row.architecture, row.num_events))
    return [
        ScalingPoint(
            architecture=architecture,
            num_events=num_events,
            trajectory_chars=sum(row.trajectory_chars for row in group) / len(group),
            num_answers=len(group),
            num_refused=sum(row.status == "refused" for row in group),
            num_calls=mean_count(group, "num_calls"),
            num_prompt_tokens=mean_count(group, "num_prompt_tokens"),
            engine_s=sum(row.times["engine_s"] for row in group) / len(group),
        )
        for (architecture, num_events), group in sorted(groups.items())
    ]
