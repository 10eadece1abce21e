"""Experiment 1, decision quality across budgets (paper, Table 1), and experiment 3, its dependence on the compression
ratio (paper, Figure 4, and the threshold of TAMS).

Every architecture gets the same cases, the same budgets and the same decision call on one pinned engine, so scores are
paired by case. Each comparison is DPM against one other architecture. A Holm family is everything that is tested
against one architecture at one size: all ratios times four axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from benchmarks.experiments.answers import Job
from benchmarks.experiments.paired_statistics import PairedComparison, compare_paired, holm
from benchmarks.experiments.published import AXES, Axis
from benchmarks.experiments.rows import BASE, ResultRow, group_by, ordered_architectures
from benchmarks.experiments.runner import QUALITY, Progress, Setting, run_experiment
from benchmarks.experiments.tams import MeasuredThreshold
from reporting.journal import Recorded

SIGNIFICANT = 0.05
THRESHOLD_AXIS: Axis = "FRP"  # the axis on which the paper's difference appears first


@dataclass(frozen=True, slots=True)
class QualityComparison:
    """DPM against one architecture, on one axis, at one size and ratio.

    holm_p: within the family; None where there is no exact p-value. num_unpaired: cases that only one of the two has.
    """

    size: str
    ratio: Fraction
    architecture: str
    axis: Axis
    found: PairedComparison
    holm_p: float | None
    num_unpaired: int

    @property
    def is_significant(self) -> bool:
        return self.holm_p is not None and self.holm_p < SIGNIFICANT


def run_quality(jobs: Sequence[Job], setting: Setting, progress: Progress, *, concurrency: int) -> Recorded:
    """Run every job without a row; raises as `run_experiment`."""
    return run_experiment(QUALITY, jobs, setting, progress, concurrency=concurrency)


def compare_quality(rows: Sequence[ResultRow]) -> list[QualityComparison]:
    """DPM against every other architecture: by size, ratio (tightest first), architecture and axis."""
    found: list[QualityComparison] = []
    for size, of_size in group_by(rows, lambda row: row.size).items():
        for other in ordered_architectures(of_size):
            if other != BASE:
                found += _with_holm(_compare_all(of_size, size, other))
    return sorted(found, key=lambda c: (c.size, -c.ratio, c.architecture, AXES.index(c.axis)))


def measure_thresholds(comparisons: Sequence[QualityComparison], source: str) -> list[MeasuredThreshold]:
    """For every size: the ratio from which on DPM was significantly ahead of summarising every event."""
    thresholds = []
    for size in dict.fromkeys(c.size for c in comparisons):
        cells = [
            c
            for c in comparisons
            if (c.size, c.architecture, c.axis) == (size, "summarize_every_event", THRESHOLD_AXIS)
        ]
        if cells:
            ratios = tuple(float(cell.ratio) for cell in reversed(cells))
            num_cases = min(cell.found.num_pairs for cell in cells)
            name = f"{source} ({size} cases)"
            thresholds.append(MeasuredThreshold(name, THRESHOLD_AXIS, _threshold(cells), ratios, num_cases))
    return thresholds


def _threshold(cells: Sequence[QualityComparison]) -> float | None:
    """The least ratio of the unbroken run of significant leads that begins at the tightest budget."""
    least = None
    for cell in cells:
        if not (cell.is_significant and cell.found.delta > 0):
            break
        least = float(cell.ratio)
    return least


def _compare_all(rows: Sequence[ResultRow], size: str, other: str) -> list[QualityComparison]:
    found = []
    for ratio, at_ratio in group_by(rows, lambda row: row.ratio).items():
        ours = {row.pair: row for row in at_ratio if row.architecture == BASE}
        theirs = {row.pair: row for row in at_ratio if row.architecture == other}
        pairs = sorted(ours.keys() & theirs.keys())
        if pairs:
            num_unpaired = len(ours.keys() ^ theirs.keys())
            for axis in AXES:
                scores = [[_score(side[pair], axis) for pair in pairs] for side in (ours, theirs)]
                comparison = compare_paired(*scores)
                found.append(QualityComparison(size, ratio, other, axis, comparison, None, num_unpaired))
    return found


def _with_holm(family: Sequence[QualityComparison]) -> list[QualityComparison]:
    """A test without an exact p-value still counts in the family, as the largest."""
    raw = [c.found.p_value if c.found.p_value is not None else 1.0 for c in family]
    adjusted = holm(raw)
    return [
        replace(c, holm_p=p if c.found.p_value is not None else None) for c, p in zip(family, adjusted, strict=True)
    ]


def _score(row: ResultRow, axis: Axis) -> Fraction:
    return row.scores[axis.lower()] or Fraction(0)
