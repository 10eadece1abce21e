"""The report of the experiments: one document, written as an HTML page with plots, as Markdown, and as JSON.

Every number comes from rows of results folders; the paper's stand beside ours where it has one of the same kind. The
report says what was left out, refused and failed before it says what was better.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from benchmarks.experiments import published
from benchmarks.experiments.cost import Price, audit_surface, compare_cost
from benchmarks.experiments.judging import JudgedRow, read_judgements
from benchmarks.experiments.quality import QualityComparison, compare_quality, measure_thresholds
from benchmarks.experiments.rows import (
    ResultRow,
    Results,
    find_schema,
    group_by,
    merge_rows,
    ordered_architectures,
    read_results,
    read_run,
)
from benchmarks.experiments.runner import COST, FAILURES, JUDGE, QUALITY, SCALING
from benchmarks.experiments.scaling import scaling_points
from benchmarks.report.failures import Demonstrated, failure_blocks
from benchmarks.report.figures import compression_figures, scaling_figures
from benchmarks.report.judged import compare_judged, judged_blocks
from benchmarks.report.tables import (
    citation_table,
    comparison_tables,
    cost_table,
    failure_table,
    score_table,
    surface_table,
)
from projection.errors import RequestError
from reporting.document import Block, Code, Document, Facts, Inline, Notice, Paragraph, Preformatted, Section
from reporting.files import write_text
from reporting.markdown import render_markdown
from reporting.page import render_page

SCHEMA = "dpm.bench.report/v1"


@dataclass(frozen=True, slots=True)
class Folder:
    """A results folder, by what it holds rows of, and the parameters of its run."""

    schema: str
    source: str
    parameters: Mapping[str, Any]
    num_rows: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """All rows that a report is made of, by experiment, and the statistics of the quality rows.

    An experiment without rows is left out of the report.
    """

    folders: tuple[Folder, ...]
    quality: tuple[ResultRow, ...]
    cost: tuple[ResultRow, ...]
    scaling: tuple[ResultRow, ...]
    comparisons: tuple[QualityComparison, ...]
    judged: tuple[JudgedRow, ...]
    failures: tuple[Demonstrated, ...]
    price: Price


def collect_evidence(directories: Sequence[Path], price: Price) -> Evidence:
    """Read every results folder.

    Raises:
        NotFoundError, JournalError, RequestError: a folder without results, of another schema, or rows that cannot
            stand in one table.
    """
    experiments: dict[str, list[Results]] = {schema: [] for schema in (QUALITY, COST, SCALING)}
    folders, judged, failures = [], list[JudgedRow](), list[Demonstrated]()
    for directory in dict.fromkeys(directories):
        schema = find_schema(directory)
        if schema == JUDGE:
            recorded, judgements = read_judgements(directory)
            judged += judgements
        elif schema == FAILURES:
            recorded = read_run(directory, FAILURES)
            failures.append(Demonstrated(str(directory), recorded))
        else:
            results = read_results(directory, schema)
            experiments[schema].append(results)
            recorded = read_run(directory, schema)
        folders.append(Folder(schema, str(directory), recorded.parameters, len(recorded.rows)))
    if not any(folder.num_rows for folder in folders):
        raise RequestError("there are no rows to report: run dpm bench quality, cost or scaling first")
    rows = {schema: merge_rows(results) for schema, results in experiments.items()}
    comparisons = tuple(compare_quality(rows[QUALITY]))
    return Evidence(
        folders=tuple(folders),
        quality=rows[QUALITY],
        cost=rows[COST],
        scaling=rows[SCALING],
        comparisons=comparisons,
        judged=tuple(judged),
        failures=tuple(failures),
        price=price,
    )


def write_report(evidence: Evidence, directory: Path, command: str) -> tuple[Path, ...]:
    """Write report.html, report.md and report.json; returns their paths.

    Raises:
        StorageError: they cannot be written.
    """
    document = build_document(evidence, command)
    written = json.dumps(report_json(evidence, command), ensure_ascii=False, allow_nan=False, indent=1)
    texts = {
        directory / "report.html": render_page(document),
        directory / "report.md": render_markdown(document),
        directory / "report.json": written + "\n",
    }
    for path, text in texts.items():
        write_text(path, text)
    return tuple(texts)


def build_document(evidence: Evidence, command: str) -> Document:
    """The report as a document; equal rows give equal documents."""
    sections = [Section("What was run", _setting(evidence))]
    if evidence.quality:
        sections += _quality_sections(evidence)
    if evidence.cost:
        sections.append(_cost_section(evidence))
    if _all_rows(evidence):
        sections.append(_surface_section(evidence))
    if evidence.judged:
        sections.append(Section("Reasoning coherence by a judge", judged_blocks(evidence.judged)))
    if evidence.scaling:
        points = scaling_points(evidence.scaling)
        sections.append(Section("Calls against trajectory length", scaling_figures(points)))
    if evidence.failures:
        sections.append(Section("How stateful memories fail (section 10)", failure_blocks(evidence.failures)))
    sections.append(Section("How to read the numbers", [Paragraph(text) for text in READING]))
    return Document(
        title="DPM and its baselines on LongHorizon-Bench",
        lead="What each memory architecture recovers, decides and costs on the same cases, budgets and pinned engine, "
        "beside what the paper published for a far larger model.",
        sections=sections,
        footer=f"Written by: {command}",
    )


def report_json(evidence: Evidence, command: str) -> dict[str, Any]:
    """Every table as values, for programs; no number in the report that is not here or in the rows."""
    document = _plain(
        {
            "schema": SCHEMA,
            "command": command,
            "results": [
                {"schema": folder.schema, "source": folder.source, "num_rows": folder.num_rows, **folder.parameters}
                for folder in evidence.folders
            ],
            "comparisons": [asdict(comparison) for comparison in evidence.comparisons],
            "thresholds": [asdict(found) for found in measure_thresholds(evidence.comparisons, "quality")],
            "cost": [asdict(line) for line in compare_cost(evidence.cost, evidence.price)],
            "price": asdict(evidence.price),
            "audit_surface": [asdict(line) for line in audit_surface(_surface_rows(evidence))],
            "scaling": [asdict(point) for point in scaling_points(evidence.scaling)],
            "judge": [asdict(line) for line in compare_judged(evidence.judged)],
            "failures": [{"source": found.source, "rows": found.recorded.rows} for found in evidence.failures],
            "published": {
                "model": published.MODEL,
                "table_1": [asdict(cell) for cell in published.TABLE_1],
                "exact_p_values_tight": published.EXACT_P_VALUES,
                "table_2": [asdict(cell) for cell in published.TABLE_2],
                "table_4": [asdict(row) for row in published.TABLE_4],
            },
        }
    )
    return dict(document)


READING = (
    "FRP: required fields recovered with their true value. In a view the field's own line counts, with its citation; "
    "in other texts the last statement about the value counts. FRP (text) applies the rule for texts to every memory; "
    "FRP (present) asks only that the true value stands somewhere, whatever stands beside it; FRP (memo) applies the "
    "rule for texts to what the decision shows, the lines it cites and its rationale. "
    "RCS: links from fact to rule to conclusion that memory and decision show. EDA: the outcome, by equality on the "
    "closed list. CRR: required reason codes that are given and backed by a cited line, over codes required or given. "
    "docs/benchmarks.md has the formulas.",
    "p is the exact two-sided sign-flip p-value; its floor is the least that this many pairs can give. Holm's is over "
    "all ratios and axes of one architecture at one size. Intervals are 95% percentile bootstrap of the mean "
    "difference over cases; where every difference is equal they have no width, which says nothing about other cases.",
    "A refused or failed answer scores 0 and stays in the mean of every score but two: citation precision and "
    "hallucinated values are means over the answers whose memory has something to judge; n is their number. "
    "Table 2 is of the answers that were scored.",
    "The paper's numbers are those of Claude Haiku 4.5 on its own cases, partly scored by a model. They are printed "
    "for orientation, not as a target that was met or missed.",
)


def _setting(evidence: Evidence) -> list[Block]:
    rows = _all_rows(evidence)
    facts: list[tuple[str, Inline]] = []
    for folder in evidence.folders:
        about = f"{folder.source}: {folder.num_rows} rows, engine identity {folder.parameters['engine_identity']}"
        facts.append((folder.schema.removeprefix("dpm.bench."), Code(about)))
    whole_cases = (*evidence.quality, *evidence.cost) or evidence.scaling  # scaling cuts its cases short
    for size, of_size in group_by(whole_cases, lambda row: row.size).items():
        cases = {row.pair: row for row in of_size}.values()
        domains = ", ".join(f"{count} {name}" for name, count in sorted(Counter(row.domain for row in cases).items()))
        chars, events = [row.trajectory_chars for row in cases], [row.num_events for row in cases]
        facts.append(
            (
                f"{size} cases",
                f"{domains}; {min(events)} to {max(events)} events, {min(chars):,} to {max(chars):,} characters",
            )
        )
    if rows:
        facts.append(("seeds", ", ".join(str(seed) for seed in sorted({row.seed for row in rows}))))
        facts.append(("architectures", ", ".join(ordered_architectures(rows))))
    blocks: list[Block] = [Facts(facts)]
    if any(folder.parameters["identity"].get("is_a_model") is False for folder in evidence.folders):
        blocks.append(
            Notice("The scripted engine wrote some of these rows: no model was asked, and scores mean nothing.")
        )
    statuses = Counter(row.status for row in rows)
    if statuses["refused"] + statuses["failed"]:
        told = f"{statuses['refused']} answers were refused and {statuses['failed']} failed, of {len(rows)}. "
        blocks.append(Notice(told + "They count as 0 in the mean scores."))
        blocks.append(failure_table(rows))
    return blocks


def _quality_sections(evidence: Evidence) -> list[Section]:
    sections = []
    for size, rows in group_by(evidence.quality, lambda row: row.size).items():
        sections.append(Section(f"What was recovered and decided: {size} cases", [score_table(rows)]))
        sections.append(Section(f"Citations, invention, omission: {size} cases", [citation_table(rows)]))
        of_size = [c for c in evidence.comparisons if c.size == size]
        sections.append(Section(f"DPM against each architecture: {size} cases (Table 1)", comparison_tables(of_size)))
        figures = compression_figures(of_size)
        if figures:
            sections.append(Section(f"Against the compression ratio: {size} cases (Figure 4)", figures))
    thresholds = measure_thresholds(evidence.comparisons, "these results")
    if thresholds:
        sections.append(Section("The threshold of TAMS, measured", [Preformatted(_thresholds(thresholds))]))
    return sections


def _thresholds(thresholds: Sequence[Any]) -> str:
    lines = [f"paper: roughly {published.TAMS_RATIO}x (quoted; measured at 2x, 5x and 20x only)"]
    for found in thresholds:
        ratios = ", ".join(f"{ratio:g}x" for ratio in found.measured_ratios)
        what = "none: not significantly ahead at the tightest budget" if found.ratio is None else f"{found.ratio:g}x"
        lines.append(f"{found.source}: {what} ({found.axis}, {found.num_cases} cases, measured at {ratios})")
    return "\n".join(lines)


def _cost_section(evidence: Evidence) -> Section:
    price = evidence.price
    note = Paragraph(
        f"One answer at a time on an idle engine. Dollars are tokens at ${price.prompt_usd:g} a million read and "
        f"${price.completion_usd:g} a million written: an example price, nothing was billed."
    )
    lines = compare_cost(evidence.cost, price)
    return Section("What an answer costs (Table 2)", [note, *(cost_table(lines, size) for size in _sizes(lines))])


def _sizes(lines: Sequence[Any]) -> list[str]:
    return list(dict.fromkeys(line.size for line in lines))


def _surface_section(evidence: Evidence) -> Section:
    return Section("What an auditor must keep (Table 4)", [surface_table(audit_surface(_surface_rows(evidence)))])


def _surface_rows(evidence: Evidence) -> tuple[ResultRow, ...]:
    """Rows of one experiment, so that no answer counts twice."""
    return evidence.quality or evidence.cost or evidence.scaling


def _all_rows(evidence: Evidence) -> tuple[ResultRow, ...]:
    return (*evidence.quality, *evidence.cost, *evidence.scaling)


def _plain(value: Any) -> Any:
    """Fractions as their text, everything else as it is."""
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
