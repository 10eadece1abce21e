"""The report's tables: typed results to cells of text. No number is computed here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from benchmarks.experiments import published
from benchmarks.experiments.cost import CostLine, SurfaceLine
from benchmarks.experiments.quality import QualityComparison
from benchmarks.experiments.rows import BASE, ResultRow, group_by, mean_score, ordered_architectures
from benchmarks.experiments.scaling import ScalingPoint
from reporting.document import Block, Column, Inline, Table

NONE = "-"  # nothing to judge, or the paper has no such number
UNJUDGED = ("citation_precision", "hallucinated_rate")  # null where a memory has nothing to judge, or there is none
PAPER_BASELINE = "summarize_every_event"  # what the paper's text describes; its harness did summarize_on_overflow


def score_table(rows: Sequence[ResultRow]) -> Table:
    """Mean scores of every architecture at every ratio."""
    names = ("frp", "frp_text", "frp_present", "frp_memo", "rcs", "eda", "crr")
    titles = ("FRP", "FRP (text)", "FRP (present)", "FRP (memo)", "RCS", "EDA", "CRR")
    return Table(
        title="Mean scores over cases",
        columns=[Column("architecture"), *_numbers("ratio", "budget", "cases", "not scored", *titles)],
        rows=[
            [
                architecture,
                ratio_text(ratio),
                f"{own[0].budget_chars:,}",
                str(len(own)),
                str(sum(row.status != "scored" for row in own)),
                *(_share(mean_score(own, name)) for name in names),
            ]
            for ratio, architecture, own in _cells(rows)
        ],
        note="Not scored: refused and failed answers, which count as 0. Budgets are characters of the memory.",
    )


def citation_table(rows: Sequence[ResultRow]) -> Table:
    """What holds of citations and values, whatever was decided."""
    names = ("citation_precision", "citation_recall", "hallucinated_rate", "omission_rate", "budget_use")
    titles = ("citation precision (n)", "citation recall", "hallucinated values (n)", "omitted values", "budget use")
    return Table(
        title="Means over the answers that have one",
        columns=[Column("architecture"), *_numbers("ratio", "answers", *titles, "over budget", "at token limit")],
        rows=[
            [
                architecture,
                ratio_text(ratio),
                str(len(own)),
                *(_judged_share(own, name) for name in names),
                f"{sum(row.counts['num_over_budget'] for row in own)}",
                f"{sum(row.counts['num_on_token_limit'] for row in own)}",
            ]
            for ratio, architecture, own in _cells(rows)
        ],
        note="Over budget, at token limit: memory calls whose completion was longer than the budget or broke off, and "
        "was cut; a view cannot be either. n: answers with something to judge. A memory that cites nothing has no "
        "precision, one without a value no share of hallucinated ones, and an answer without a memory has neither.",
    )


def comparison_tables(comparisons: Sequence[QualityComparison]) -> list[Block]:
    """One table for each architecture that DPM is compared with; the paper's columns beside its own baseline."""
    others = dict.fromkeys(c.architecture for c in comparisons)
    return [_comparison_table(other, [c for c in comparisons if c.architecture == other]) for other in others]


def cost_table(lines: Sequence[CostLine], size: str) -> Table:
    """Table 2 of one size, with the paper's line where it has one."""
    titles = ("wall s", "engine s", "calls", "tokens read", "cached", "tokens written", "bytes", "US$")
    papers = ("paper: wall s", "paper: wall / DPM", "paper: US$")
    return Table(
        title=f"Means for one answer, {size} cases",
        columns=[
            Column("architecture"),
            *_numbers("ratio", "answers", *titles, "wall / DPM", "engine / DPM", *papers),
        ],
        rows=[_cost_row(line) for line in lines if line.size == size],
        note=f"Paper: {published.MODEL}, {published.NUM_CASES} large cases a cell, DPM and Summ-only. Its loose cell "
        "comes from a harness that called the model only when the memory overflowed, and its dollars for Summ-only are "
        "an estimate. Engine s: seconds inside the engine's calls, which is the server's time. Cached: tokens of a "
        "prompt that the engine had computed before. Bytes: UTF-8 of all prompts and completions. Answers (-k): k of "
        "them were not scored, and are in no mean.",
    )


def surface_table(lines: Sequence[SurfaceLine]) -> Table:
    """Table 4, with the paper's lines below."""
    ours: list[Sequence[Inline]] = [
        [
            line.architecture,
            line.size,
            str(line.num_answers),
            line.memory_calls,
            str(line.decision_calls),
            line.total_calls,
            f"{line.num_prompt_bytes:,.0f}",
            f"{line.num_completion_bytes:,.0f}",
        ]
        for line in lines
    ]
    theirs: list[Sequence[Inline]] = [
        [f"paper: {row.architecture}", "82-96 events", NONE, _memory_calls(row), "1", row.total_surfaces, NONE, NONE]
        for row in published.TABLE_4
    ]
    titles = ("answers", "memory calls", "decision calls", "all calls", "bytes read, mean", "bytes written, mean")
    return Table(
        title="Model calls whose input and output must be kept for one decision",
        columns=[Column("architecture"), Column("cases"), *_numbers(*titles)],
        rows=[*ours, *theirs],
        note="Bytes: UTF-8 of prompts and completions. The event log itself is kept under every architecture.",
    )


def failure_table(rows: Sequence[ResultRow]) -> Table:
    """Why answers were not scored, counted; numbers in the reasons are those of the first case."""
    groups = group_by(
        (row for row in rows if row.status != "scored"),
        lambda row: (row.architecture, row.size, row.ratio, row.status, (row.reason or "").partition(":")[0]),
    )
    counted = Counter({key: len(group) for key, group in groups.items()})
    return Table(
        title="Answers that were not scored",
        columns=[Column("architecture"), Column("cases"), *_numbers("ratio", "answers"), Column("why, of the first")],
        rows=[
            [key[0], key[1], ratio_text(key[2]), str(counted[key]), f"{key[3]}: {group[0].reason or ''}"]
            for key, group in groups.items()
        ],
    )


def scaling_table(points: Sequence[ScalingPoint]) -> Table:
    """What was counted and timed at every length."""
    titles = ("events", "characters", "answers", "refused", "calls", "tokens read", "engine s")
    return Table(
        title="Means for one decision",
        columns=[Column("architecture"), *(Column(title, is_number=True) for title in titles)],
        rows=[
            [
                point.architecture,
                str(point.num_events),
                f"{point.trajectory_chars:,.0f}",
                str(point.num_answers),
                str(point.num_refused),
                f"{point.num_calls:.1f}",
                f"{point.num_prompt_tokens:,.0f}",
                f"{point.engine_s:.2f}",
            ]
            for point in points
        ],
        note="A refused answer made the calls it made before it was refused, often none.",
    )


def ratio_text(ratio: Fraction) -> str:
    """A compression ratio such as "20x"."""
    return f"{float(ratio):g}x"


def _comparison_table(other: str, comparisons: Sequence[QualityComparison]) -> Table:
    is_papers = other == PAPER_BASELINE
    paper_titles = ("paper: DPM, Summ", "paper: delta", "paper: p") if is_papers else ()
    titles = ("DPM", "other", "delta", "95% interval", "p", "Holm", "McNemar", "Cohen's h", "n (differ)")
    floors = {c.found.num_pairs: c.found.p_floor for c in comparisons}
    note = "n: cases; differ: those whose two scores are not equal, the others carry no evidence. The least p there "
    note += "can be: "
    note += ", ".join(f"{_p(floor)} for n = {num_pairs}" for num_pairs, floor in sorted(floors.items())) + ". "
    num_unpaired = max(c.num_unpaired for c in comparisons)
    note += f"Up to {num_unpaired} cases had only one of the two and are left out here. " if num_unpaired else ""
    if is_papers:
        exact = ", ".join(f"{axis} {value:g}" for axis, value in published.EXACT_P_VALUES.items())
        note += f"Exact p-values of the paper's own data at the tight budget: {exact}."
    return Table(
        title=f"DPM minus {other}",
        columns=[Column("ratio and axis"), *_numbers(*titles, *paper_titles)],
        rows=[[*_comparison_row(c), *(_paper_cells(c) if is_papers else [])] for c in comparisons],
        note=note,
    )


def _comparison_row(comparison: QualityComparison) -> list[Inline]:
    found = comparison.found
    return [
        f"{ratio_text(comparison.ratio)} {comparison.axis}",
        _share(found.mean_a),
        _share(found.mean_b),
        f"{found.delta:+.3f}",
        f"{found.low:+.2f} to {found.high:+.2f}",
        _p(found.p_value),
        _p(comparison.holm_p),
        _p(found.mcnemar_p),
        f"{found.cohen_h:+.2f}",
        f"{found.num_pairs} ({found.num_nonzero})",
    ]


def _paper_cells(comparison: QualityComparison) -> list[Inline]:
    is_whole = comparison.ratio.denominator == 1
    cell = published.find_quality(int(comparison.ratio), comparison.axis) if is_whole else None
    if cell is None:
        return [NONE] * 3
    means = f"{cell.dpm:.3f}, {cell.summ:.3f}"
    return [means, f"{cell.delta:+.3f}", f"{cell.p_value:.3f}"]


def _cost_row(line: CostLine) -> list[Inline]:
    paper = published.find_cost(int(line.ratio)) if line.ratio.denominator == 1 else None
    theirs = {
        BASE: paper and (paper.dpm_wall_s, 1.0, paper.dpm_usd),
        PAPER_BASELINE: paper and (paper.summ_wall_s, paper.speedup, paper.summ_usd),
    }
    wall_s, times, usd = theirs.get(line.architecture) or (None, None, None)
    return [
        line.architecture,
        ratio_text(line.ratio),
        f"{line.num_answers}" + (f" (-{line.num_not_scored})" if line.num_not_scored else ""),
        _figure(line.wall_s, ".1f"),
        _figure(line.engine_s, ".1f"),
        _figure(line.num_calls, ".1f"),
        _figure(line.num_prompt_tokens, ",.0f"),
        _figure(line.num_cached_tokens, ",.0f"),
        _figure(line.num_completion_tokens, ",.0f"),
        _figure(line.num_bytes, ",.0f"),
        _figure(line.usd, ".4f"),
        _times(line.speedup),
        _times(line.engine_speedup),
        _figure(wall_s, ".1f"),
        _times(times),
        _figure(usd, ".4f"),
    ]


def _memory_calls(row: published.SurfaceRow) -> str:
    return row.consolidation_calls if row.projection_calls == 0 else str(row.projection_calls)


def _cells(rows: Sequence[ResultRow]) -> list[tuple[Fraction, str, list[ResultRow]]]:
    """By ratio, tightest first, then architecture, DPM first."""
    groups = group_by(rows, lambda row: (row.ratio, row.architecture))
    place = {name: index for index, name in enumerate(ordered_architectures(rows))}
    ordered = sorted(groups, key=lambda key: (-key[0], place[key[1]]))
    return [(ratio, name, groups[ratio, name]) for ratio, name in ordered]


def _numbers(*titles: str) -> list[Column]:
    return [Column(title, is_number=True) for title in titles]


def _judged_share(rows: Sequence[ResultRow], name: str) -> str:
    """The mean of a score, and of how many rows it is where a row may have none."""
    share = _share(mean_score(rows, name))
    num_judged = sum(row.scores[name] is not None for row in rows)
    return f"{share} ({num_judged})" if name in UNJUDGED else share


def _share(value: float | None) -> str:
    return _figure(value, ".3f")


def _p(value: float | None) -> str:
    return _figure(value, ".3g")


def _times(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}x"


def _figure(value: float | None, form: str) -> str:
    return NONE if value is None else format(value, form)
