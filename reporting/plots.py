"""Plots as SVG text: lines, bars with error bars, and a matrix of coloured squares.

Promises: equal arguments give equal bytes, in every process and on every machine with the same matplotlib: no date,
no random ids, no fonts or settings of the machine (text is laid out with the font that matplotlib carries). A plot
reads on white and on black: its lines and words have the text colour of the page around it (alone: a middle grey), its
squares are see-through. Every label is shown as it is, up to 44 characters: no mathematics, no markup, invisible
characters spelled out.
The title is the plot's name for who cannot see it; it is not drawn, a page puts it above or below.
"""

from __future__ import annotations

import html
import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, NewType

from projection.canonical import sha256_hex
from projection.prompt import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Svg = NewType("Svg", str)
"""One SVG element of ours, ready to stand inside an HTML page or alone in a file."""

Scale = Literal["linear", "log"]
Colours = Literal["scale", "categories"]

COLOURS = ("#3b82c4", "#d97706", "#1a9e77", "#a259c4", "#d9485f", "#7a8b1f", "#b0713a", "#4f6bd8")
"""Told apart by most eyes, and at least 3:1 against white and against near-black."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
INK, GRID = "#010101", "#020202"  # stand-ins: replaced by the colour of the text around, see _finish
STANDALONE_INK = "#737373"
WIDTH_INCHES = 7.0
BAR_INCHES = 0.17
SQUARE_INCHES = 0.28
LEGEND_INCHES = 0.2  # of one of its lines
MAX_SQUARES_WITH_TEXT = 60
MAX_LABEL_CHARS = 44

_SETTINGS = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.formatter.limits": (-9, 9),
    "axes.formatter.useoffset": False,
    "axes.labelsize": 9.5,
    "axes.linewidth": 0.7,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
}
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a line plot. low, high: the band around `y`, both or neither; as long as `y`."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """One bar for each group; None leaves a gap. low, high: the ends of the error bars, as values, both or neither."""

    label: str
    values: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None


@dataclass(frozen=True, slots=True)
class Square:
    """One square of a matrix. colour: 0 to 1 on one hue, or the place of a category's colour."""

    colour: float | int
    text: str = ""


def draw_lines(
    title: str,
    x_label: str,
    y_label: str,
    lines: Sequence[Line],
    *,
    x_scale: Scale = "linear",
    y_range: tuple[float, float] | None = None,
) -> Svg:
    """Lines with markers, and their bands where they have any."""

    def draw(axes: Axes) -> None:
        for place, line in enumerate(lines):
            colour = COLOURS[place % len(COLOURS)]
            marker = MARKERS[place % len(MARKERS)]
            axes.plot(line.x, line.y, color=colour, marker=marker, markersize=4.5, linewidth=1.6)
            if line.low is not None and line.high is not None:
                axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.18, linewidth=0)
        axes.set_xscale(x_scale)
        _write_plain_numbers(axes.xaxis)
        if y_range is not None:
            axes.set_ylim(*y_range)
        axes.set_xlabel(_label(x_label))
        axes.set_title(_label(y_label), loc="left", fontsize=9.5)
        axes.grid(visible=True)
        _add_legend(axes, [line.label for line in lines], axes.get_lines())

    return _draw(title, 3.2 + _legend_inches([line.label for line in lines]), draw)


def draw_bars(
    title: str,
    value_label: str,
    groups: Sequence[str],
    series: Sequence[Bars],
    *,
    value_range: tuple[float, float] | None = None,
) -> Svg:
    """Bars that lie, so that long names can be read: groups from top to bottom, the series side by side in each."""
    thickness = 0.8 / max(1, len(series))

    def draw(axes: Axes) -> None:
        handles = []
        for place, bars in enumerate(series):
            present = [(row, value) for row, value in enumerate(bars.values) if value is not None]
            rows, values = [row for row, _ in present], [value for _, value in present]
            at = [row + (place - (len(series) - 1) / 2) * thickness for row in rows]
            colour = COLOURS[place % len(COLOURS)]
            drawn = axes.barh(at, values, height=thickness * 0.92, color=colour, alpha=0.85, linewidth=0)
            handles.append(drawn)
            if bars.low is not None and bars.high is not None:
                errors = [_distances(bars, row) for row in rows]
                below, above = [low for low, _ in errors], [high for _, high in errors]
                axes.errorbar(values, at, xerr=[below, above], fmt="none", ecolor=INK, elinewidth=1, capsize=2.5)
        axes.set_yticks(range(len(groups)), [_label(group) for group in groups])
        axes.set_ylim(len(groups) - 0.4, -0.6)
        if value_range is not None:
            axes.set_xlim(*value_range)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(_label(value_label), loc="right")
        axes.grid(visible=True, axis="x")
        _add_legend(axes, [bars.label for bars in series], handles)

    height = 0.8 + BAR_INCHES * len(groups) * (len(series) + 0.6)
    return _draw(title, height + _legend_inches([bars.label for bars in series]), draw)


def draw_matrix(
    title: str,
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    squares: Sequence[Sequence[Square | None]],
    *,
    colours: Colours = "scale",
) -> Svg:
    """A heat map (`scale`: colour from 0 to 1), or squares of equal kind in equal colour (`categories`); None is empty.

    Equal squares beside each other become one piece, so that hundreds of columns stay a small file.
    """
    num_columns = max((len(row) for row in squares), default=0)
    names = [_label(label) for label in column_labels]
    longest = max(map(len, names), default=0)
    slant = 35 if longest > 3 else 0

    def draw(axes: Axes) -> None:
        for y, row in enumerate(squares):
            _draw_row(axes, y, row, colours)
            if num_columns <= MAX_SQUARES_WITH_TEXT:
                _write_row(axes, y, row)
        axes.set_xlim(0, max(1, num_columns))
        axes.set_ylim(max(1, len(squares)), 0)
        axes.set_yticks([y + 0.5 for y in range(len(row_labels))], [_label(label) for label in row_labels])
        at = [x + 0.5 for x in range(len(names))]
        axes.set_xticks(at, names, rotation=slant, ha="right" if slant else "center")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)

    return _draw(title, 0.45 + SQUARE_INCHES * len(squares) + (0.05 * longest if slant else 0), draw)


def _draw_row(axes: Axes, y: int, row: Sequence[Square | None], colours: Colours) -> None:
    x = 0
    for square, run in groupby(row, key=lambda square: None if square is None else square.colour):
        width = len(list(run))
        if square is not None:
            colour, alpha = _shade(square, colours)
            axes.broken_barh([(x, width)], (y + 0.06, 0.88), facecolors=colour, alpha=alpha, linewidth=0)
        x += width


def _write_row(axes: Axes, y: int, row: Sequence[Square | None]) -> None:
    for x, square in enumerate(row):
        if square is not None and square.text:
            axes.text(x + 0.5, y + 0.5, _label(square.text), ha="center", va="center", fontsize=8.5)


def _write_plain_numbers(axis: Axis) -> None:
    """On a logarithmic axis matplotlib writes powers as mathematics, which is off here."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    if axis.get_scale() == "log":
        axis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def _shade(colour: float, colours: Colours) -> tuple[str, float]:
    if colours == "categories":
        return COLOURS[int(colour) % len(COLOURS)], 0.5
    return COLOURS[0], 0.06 + 0.54 * min(1.0, max(0.0, colour))


def _distances(bars: Bars, row: int) -> tuple[float, float]:
    """The lengths of one bar's error bar, down and up."""
    value, low, high = (None if values is None else values[row] for values in (bars.values, bars.low, bars.high))
    if value is None or low is None or high is None:
        return 0.0, 0.0
    return max(0.0, value - low), max(0.0, high - value)


def _add_legend(axes: Axes, labels: Sequence[str], handles: Sequence[Any]) -> None:
    """Above everything, where it hides nothing; a single unnamed series needs none."""
    if any(labels):
        shown = [f" {label}" if label.startswith("_") else label for label in map(_label, labels)]
        where = "outside upper left"
        axes.figure.legend(handles, shown, loc=where, ncols=_num_legend_columns(labels), borderaxespad=0.2)


def _num_legend_columns(labels: Sequence[str]) -> int:
    return max(1, 72 // max(24, *(len(_label(label)) for label in labels)))


def _legend_inches(labels: Sequence[str]) -> float:
    return LEGEND_INCHES * math.ceil(len(labels) / _num_legend_columns(labels)) if any(labels) else 0.0


def _label(text: str) -> str:
    shown = _one_line(text)
    return shown if len(shown) <= MAX_LABEL_CHARS else shown[: MAX_LABEL_CHARS - 1] + "…"


def _one_line(text: str) -> str:
    return " ".join(visible(text).split())


def _draw(title: str, height_inches: float, draw: Callable[[Axes], None]) -> Svg:
    name = _one_line(title)
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", {**_SETTINGS, "svg.hashsalt": name}]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the reader's own font has it
        figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        axes.set_axisbelow(True)
        return _finish(_to_svg(figure), name)


def _to_svg(figure: Figure) -> str:
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata=_NO_METADATA)
    return written.getvalue()


def _finish(written: str, name: str) -> Svg:
    """Make matplotlib's file an element that can stand in a page beside others, with a name for who cannot see it."""
    body = written[written.index("<svg") :]
    body = body[body.index(">") + 1 :]
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, count=1, flags=re.DOTALL)
    used = set(re.findall(r"#([A-Za-z0-9_.-]+)", " ".join(re.findall(r'href="[^"]*"|url\([^)]*\)', body))))
    prefix = "plot-" + sha256_hex((name + body).encode())[:8]
    body = re.sub(r' id="([^"]*)"', lambda found: f' id="{prefix}-{found[1]}"' if found[1] in used else "", body)
    body = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", body)
    body = body.replace(f"stroke: {GRID}", "stroke: currentColor; stroke-opacity: 0.15").replace(INK, "currentColor")
    body = body.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")
    body = re.sub(r"[ \t]*\n", "\n", body)
    width, height = _size(written)
    return Svg(
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img"'
        f' viewBox="0 0 {width} {height}" width="{width}pt" height="{height}pt" color="{STANDALONE_INK}"'
        f' stroke-linejoin="round">\n<title>{html.escape(name)}</title>{body}'
    )


def _size(written: str) -> tuple[str, str]:
    found = re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', written)
    if found is None:
        raise RuntimeError("matplotlib wrote an SVG without a viewBox")
    return found[1], found[2]
