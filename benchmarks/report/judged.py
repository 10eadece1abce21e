"""The judge's scores beside the rule's, and what the judge says of an answer that says nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from benchmarks.experiments.judging import JudgedRow
from benchmarks.experiments.rows import BASE, group_by
from reporting.document import Block, Column, Paragraph, Table


@dataclass(frozen=True, slots=True)
class JudgedLine:
    """Means over the judged answers of one architecture at one size and ratio; `num_not_judged` answers are in none."""

    size: str
    ratio: Fraction
    architecture: str
    is_control: bool
    num_judged: int
    num_not_judged: int
    rcs: float | None
    rcs_judge: float | None
    num_same: int


def compare_judged(rows: Sequence[JudgedRow]) -> list[JudgedLine]:
    """By size, controls first, then ratio (tightest first) and architecture (DPM first)."""
    groups = group_by(rows, lambda row: (row.size, row.is_control, row.ratio, row.architecture))
    ordered = sorted(groups, key=lambda key: (key[0], not key[1], -key[2], key[3] != BASE, key[3]))
    return [_line(key, groups[key]) for key in ordered]


def judged_blocks(rows: Sequence[JudgedRow]) -> list[Block]:
    """The table, and how far it can be trusted."""
    words = (
        "The judge is a model on a pinned engine, asked yes or no for each link of the true chain. Its calls are "
        "recorded and can be made again, which says that it said so, not that it is right: what it gives the controls "
        "is how much its yes is worth. No other table uses its scores."
    )
    return [Paragraph(words), judged_table(compare_judged(rows))]


def judged_table(lines: Sequence[JudgedLine]) -> Table:
    """Means by rule and by judge, the controls first."""
    titles = ("ratio", "judged", "not judged", "RCS by rule", "RCS by judge", "same score")
    return Table(
        title="Mean reasoning coherence, by rule and by judge",
        columns=[Column("architecture"), Column("cases"), *(Column(title, is_number=True) for title in titles)],
        rows=[
            [
                line.architecture,
                line.size,
                "-" if line.is_control else f"{float(line.ratio):g}x",
                str(line.num_judged),
                str(line.num_not_judged),
                _share(line.rcs),
                _share(line.rcs_judge),
                str(line.num_same),
            ]
            for line in lines
        ],
        note="Control: an answer that says nothing, once for each case; its true score is 0. Not judged: beyond the "
        "judge's context, or no judgement came. Same score: answers to which rule and judge give the same fraction.",
    )


def _line(key: tuple[str, bool, Fraction, str], rows: Sequence[JudgedRow]) -> JudgedLine:
    pairs = [(row.rcs, row.rcs_judge) for row in rows if row.rcs_judge is not None]
    size, is_control, ratio, architecture = key
    return JudgedLine(
        size=size,
        ratio=ratio,
        architecture=architecture,
        is_control=is_control,
        num_judged=len(pairs),
        num_not_judged=len(rows) - len(pairs),
        rcs=_mean([rule for rule, _ in pairs]),
        rcs_judge=_mean([said for _, said in pairs]),
        num_same=sum(rule == said for rule, said in pairs),
    )


def _mean(scores: Sequence[Fraction]) -> float | None:
    return float(sum(scores, Fraction(0)) / len(scores)) if scores else None


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
