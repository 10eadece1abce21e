"""The paper's Table 3, its published rows and ours in one table.

Promises that every row says where it is from, and that what the paper does not say stays a dash: it gives hashes, not
how often each came, so that its drifts are "at least". Where ours count more than texts, a column of its own does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from determinism.published import MODEL, SOURCE, TABLE_3, PublishedRow
from determinism.report.summary import ReportedCell
from determinism.statistics import PREFIX_CHARS
from reporting.document import Column, Inline, Table

UNKNOWN = "–"  # noqa: RUF001 - a dash where a number would stand
NOTE = (
    f"Published: {SOURCE}, {MODEL} over the live API. Ours: all answers to one question, whatever the circumstances, "
    "the first one being the reference. A comparison holds one answer against the reference; drift at most is its "
    "exact one-sided 95% bound. Distances are normalised Levenshtein distances over all pairs: of the first "
    f"{PREFIX_CHARS} characters, which is what the paper reports and where a late drift is invisible, and of the whole "
    "text."
)
COLUMNS = (
    Column("case"),
    Column("condition"),
    Column("n", is_number=True),
    Column("unique texts", is_number=True),
    Column("unique bits", is_number=True),
    Column("drifted", is_number=True),
    Column("drift at most", is_number=True),
    Column("first token", is_number=True),
    Column("prefix mean", is_number=True),
    Column("prefix max", is_number=True),
    Column("whole mean", is_number=True),
    Column("mean chars", is_number=True),
)


def table_3(answers: Iterable[ReportedCell]) -> Table:
    """Published rows first, then ours; `answers` as in a report."""
    ours = [_measured(reported) for reported in answers if reported.statistics is not None]
    title = "Determinism under replay: the paper's Table 3, and measured here"
    return Table(title, COLUMNS, [*map(_published, TABLE_3), *ours], NOTE)


def _published(row: PublishedRow) -> list[Inline]:
    return [
        row.case,
        f"{row.condition}, published",
        str(row.num_replays),
        f"{row.num_unique_texts}/{row.num_replays}",
        UNKNOWN,
        f"≥ {row.min_drifted} of {row.num_replays - 1}",
        UNKNOWN,
        UNKNOWN,
        f"{row.mean_prefix_distance:.4f}",
        f"{row.max_prefix_distance:.4f}",
        UNKNOWN,
        f"{row.mean_chars:,}",
    ]


def _measured(reported: ReportedCell) -> list[Inline]:
    cell, numbers = reported.cell, reported.statistics
    if numbers is None:
        raise ValueError("a row of Table 3 needs replays")
    return [
        cell.workload,
        cell.engine if cell.control is None else f"{cell.engine}, {cell.control}",
        str(numbers.num_replays),
        f"{numbers.num_unique_texts}/{numbers.num_replays}",
        f"{numbers.num_unique_surfaces}/{numbers.num_replays}",
        f"{numbers.num_drifted} of {numbers.num_comparisons}",
        at_most(numbers.max_drift_rate),
        or_dash(numbers.first_differing_token),
        f"{numbers.prefix_distance.mean:.4f}",
        f"{numbers.prefix_distance.max:.4f}",
        f"{numbers.text_distance.mean:.4f}",
        f"{numbers.mean_chars:,.0f}",
    ]


def at_most(rate: float | None) -> str:
    """An upper bound in per cent; rounded up, so that the printed one holds too."""
    return UNKNOWN if rate is None else f"{math.ceil(rate * 10_000) / 100:.2f}%"


def or_dash(value: int | None) -> str:
    """A number, or that there is none."""
    return UNKNOWN if value is None else str(value)
