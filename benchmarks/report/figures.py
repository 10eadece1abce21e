"""The report's figures: Figure 4 of the paper on our rows, and calls and seconds against trajectory length."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.experiments.published import AXES, AXIS_NAMES, RATIOS, Axis, find_quality
from benchmarks.experiments.quality import QualityComparison
from benchmarks.experiments.scaling import ScalingPoint
from benchmarks.report.tables import scaling_table
from reporting.document import Block, Figure
from reporting.plots import Line, draw_lines


def compression_figures(comparisons: Sequence[QualityComparison]) -> list[Block]:
    """One plot an axis: DPM minus each architecture against the ratio. None where only one ratio was measured."""
    if len({c.ratio for c in comparisons}) < 2:
        return []
    return [
        Figure(
            draw_lines(
                f"{axis}: DPM minus each architecture, against the compression ratio",
                "compression ratio (trajectory / budget)",
                f"{axis}, difference",
                [*_delta_lines(comparisons, axis), _paper_line(axis)],
                y_range=(-1.05, 1.05),
            ),
            f"{axis} ({AXIS_NAMES[axis]}): mean difference over cases, with 95% bootstrap intervals as bands. Above 0 "
            "DPM is ahead. The paper's line is its own, for another model on other cases.",
        )
        for axis in AXES
    ]


def scaling_figures(points: Sequence[ScalingPoint]) -> list[Block]:
    """Calls and engine seconds against length, and the numbers under them."""
    calls = draw_lines(
        "Model calls for one decision, against the number of events",
        "events",
        "model calls",
        _scaling_lines(points, "num_calls"),
    )
    seconds = draw_lines(
        "Engine seconds for one decision, against the number of events",
        "events",
        "engine seconds",
        _scaling_lines(points, "engine_s"),
    )
    return [
        Figure(calls, "Model calls for one decision. Lengths with refused answers are left out of the plot."),
        Figure(seconds, "Engine seconds for one decision, alone on the engine."),
        scaling_table(points),
    ]


def _delta_lines(comparisons: Sequence[QualityComparison], axis: str) -> list[Line]:
    lines = []
    for other in dict.fromkeys(c.architecture for c in comparisons):
        cells = sorted((c for c in comparisons if (c.architecture, c.axis) == (other, axis)), key=lambda c: c.ratio)
        lines.append(
            Line(
                label=other,
                x=[float(c.ratio) for c in cells],
                y=[c.found.delta for c in cells],
                low=[c.found.low for c in cells],
                high=[c.found.high for c in cells],
            )
        )
    return lines


def _paper_line(axis: Axis) -> Line:
    ratios = sorted(RATIOS.values())
    cells = [cell for ratio in ratios if (cell := find_quality(ratio, axis)) is not None]
    return Line("paper: Summ-only", [float(ratio) for ratio in ratios], [cell.delta for cell in cells])


def _scaling_lines(points: Sequence[ScalingPoint], name: str) -> list[Line]:
    lines = []
    for architecture in dict.fromkeys(point.architecture for point in points):
        own = [p for p in points if p.architecture == architecture and p.num_refused == 0 and getattr(p, name) > 0]
        if own:
            lines.append(Line(architecture, [float(p.num_events) for p in own], [getattr(p, name) for p in own]))
    return lines
