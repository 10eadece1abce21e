"""`dpm tams`: which memory architecture fits a deployment, by the paper's rule and one's own results."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from benchmarks.experiments.quality import compare_quality, measure_thresholds
from benchmarks.experiments.rows import read_results
from benchmarks.experiments.runner import QUALITY
from benchmarks.experiments.tams import Deployment, MeasuredThreshold, Recommendation, recommend
from service import options
from service.console import out, print_json

CHOICES = {"dpm": "DPM", "either": "either architecture; choose by operational preference"}


def tams(
    trajectory_chars: Annotated[int, typer.Option("--trajectory-chars", help="Characters of a typical trajectory.")],
    budget_chars: Annotated[int, typer.Option("--budget-chars", help="Characters of the memory at decision time.")],
    needs_replay: Annotated[bool, typer.Option("--needs-replay", help="Decisions must be replayed.")] = False,
    needs_audit: Annotated[bool, typer.Option("--needs-audit", help="Rationales must be auditable.")] = False,
    needs_isolation: Annotated[bool, typer.Option("--needs-isolation", help="Tenants must be isolated.")] = False,
    results: Annotated[
        list[Path] | None, typer.Option("--results", help="A folder of dpm bench quality; its threshold counts.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Which memory architecture fits: the paper's rule, its caveats, and the evidence for the branch taken."""
    deployment = Deployment(needs_replay, needs_audit, needs_isolation, trajectory_chars, budget_chars)
    recommendation = recommend(deployment, [found for folder in results or [] for found in _thresholds(folder)])
    if json:
        print_json({"deployment": asdict(deployment), **asdict(recommendation)})
        return
    _print(recommendation)


def _thresholds(directory: Path) -> list[MeasuredThreshold]:
    results = read_results(directory, QUALITY)
    return measure_thresholds(compare_quality(results.rows), results.source)


def _print(found: Recommendation) -> None:
    out.print(Text.assemble(("use      ", "dim"), (CHOICES[found.choice], "bold")))
    out.print(Text.assemble(("because  ", "dim"), _because(found)))
    for title, lines in (("evidence", found.evidence), ("caveat  ", found.caveats)):
        for line in lines:
            out.print(Text.assemble((f"{title} ", "dim"), line))


def _because(found: Recommendation) -> str:
    where = f"{found.ratio:.1f}x, the threshold is {found.threshold:g}x ({found.threshold_source})"
    match found.branch:
        case "enterprise_properties":
            return "the deployment needs a property that DPM has by construction"
        case "compression_ratio":
            return f"no such property is needed, and the compression ratio is {where}"
        case _:
            return f"no such property is needed, and the compression ratio is only {where}"
