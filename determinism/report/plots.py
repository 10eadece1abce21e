"""The plots of a suite's report: which answers had equal bytes, how often each check drifted, what survives n calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from determinism.cell import Cell
from determinism.report.summary import SCORING_CHECK, LaneDrift, Report, ReportedCell
from determinism.statistics import pool, survival
from reporting.document import Block, Figure, Paragraph
from reporting.plots import Bars, Line, Square, draw_bars, draw_lines, draw_matrix

SAME, OTHER, FAILED = 2, 4, 1  # places in reporting.plots.COLOURS: green, red, orange
MAX_HASH_MATRICES = 6
NUM_CALLS = (1, 2, 5, 10, 20, 50, 97)


def draw_overview(report: Report, engine: str) -> Figure:
    """One engine as it is: every workload under every check."""
    cells = {(one.cell.workload, one.cell.check): one for one in report.plain}
    workloads = list(dict.fromkeys(workload for workload, _ in cells))
    checks = list(dict.fromkeys(check for _, check in cells))
    squares = [[_overview_square(cells.get((workload, check))) for check in checks] for workload in workloads]
    return Figure(
        draw_matrix(f"Distinct answers, {engine}", workloads, checks, squares, colours="categories"),
        f"{engine}: distinct answers of all answers, to the bit. Green is one answer throughout, red is drift, "
        "orange could not be held, empty was not possible here.",
    )


def _overview_square(reported: ReportedCell | None) -> Square | None:
    if reported is None or reported.cell.verdict == "SKIPPED":
        return None
    cell = reported.cell
    if cell.verdict in {"PASS", "DRIFT"}:
        return Square(SAME if cell.verdict == "PASS" else OTHER, f"{len(cell.surfaces)}/{cell.num_replays}")
    return Square(FAILED, "!")


def draw_hash_matrices(report: Report, engine: str) -> Iterator[Block]:
    """For each workload with any drift, controls included: every answer, equal bytes in equal colours."""
    groups: dict[str, list[Cell]] = {}
    for one in report.cells:
        if one.cell.replays:
            groups.setdefault(one.cell.workload, []).append(one.cell)
    varied = {name: cells for name, cells in groups.items() if any(len(cell.surfaces) > 1 for cell in cells)}
    for workload, cells in list(varied.items())[:MAX_HASH_MATRICES]:
        rows = sorted(cells, key=lambda cell: cell.control is not None)
        labels = _row_labels(rows)
        yield Figure(
            draw_matrix(f"Hash matrix, {workload}, {engine}", labels, [], _hash_squares(rows), colours="categories"),
            f"{workload}, {engine}: one square for each answer, the reference first; equal bytes have equal letters. "
            "Above, the checks; below, their controls, which must show more than one letter.",
        )
    if len(varied) > MAX_HASH_MATRICES:
        yield Paragraph(f"{len(varied) - MAX_HASH_MATRICES} more workloads have drift; see the table of cells.")


def _row_labels(cells: Sequence[Cell]) -> list[str]:
    """A check by its name, a control by its own, with the check where several have it."""
    names = Counter(cell.control for cell in cells)
    return [_row_label(cell, is_alone=names[cell.control] == 1) for cell in cells]


def _row_label(cell: Cell, *, is_alone: bool) -> str:
    if cell.control is None:
        return cell.check
    return cell.control if is_alone else f"{cell.control}, {cell.check}"


def _hash_squares(cells: Iterable[Cell]) -> list[list[Square | None]]:
    places: dict[str, int] = {}
    rows: list[list[Square | None]] = []
    for cell in cells:
        if cell.check == SCORING_CHECK:  # scores have hashes of their own, and are held against each other
            found = [replay.surface for replay in cell.replays]
        else:
            found = [places.setdefault(cell.surface_of(replay).xxh3, len(places)) for replay in cell.replays]
        rows.append([Square(place, _letter(place)) for place in found])
    return rows


def _letter(place: int) -> str:
    return chr(ord("A") + place) if place < 26 else str(place)


def draw_check_rates(report: Report, engine: str) -> Figure | None:
    """Each check on one engine as it is, up to its bound, and with its faults in; None where nothing was compared."""
    checks = list(dict.fromkeys(one.cell.check for one in report.plain if one.cell.num_comparisons))
    if not checks:
        return None
    as_is = [pool(one.cell for one in report.plain if one.cell.check == check) for check in checks]
    faulty = [[one.cell for one in report.controls if one.cell.check == check] for check in checks]
    rates = [drift.rate for drift in as_is]
    with_faults = [pool(cells).rate if any(cell.num_comparisons for cell in cells) else None for cells in faulty]
    series = [
        Bars("as it is", rates, rates, [drift.max_rate for drift in as_is]),
        Bars("with its faults in", with_faults),
    ]
    return Figure(
        draw_bars(f"Drift of each check, {engine}", "share of comparisons", checks, series, value_range=(0, 1)),
        f"{engine}: comparisons that drifted. The thin bar is what they cannot exclude (95%). A check without a second "
        "bar has shown nothing.",
    )


def draw_survival(lanes: Sequence[LaneDrift]) -> Figure:
    """The chance of an identical replay over the number of calls."""
    lines = [
        Line(
            lane.engine if lane.control is None else f"{lane.control}, {lane.engine}",
            NUM_CALLS,
            [survival(lane.drift.rate, n) for n in NUM_CALLS],
            [survival(lane.drift.max_rate, n) for n in NUM_CALLS],
            [survival(lane.drift.rate, n) for n in NUM_CALLS],
        )
        for lane in lanes
    ]
    plot = draw_lines(
        "Predicted survival",
        "calls of a decision",
        "probability of an identical replay",
        lines,
        x_scale="log",
        y_range=(-0.03, 1.03),
    )
    return Figure(plot, "Line: at the measured rate. Band: down to the rate that the comparisons cannot exclude (95%).")
