"""`dpm bench quality`, `cost`, `scaling` and `report`: the paper's experiments on one's own engine."""

from __future__ import annotations

import re
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from baseline.architectures import ARCHITECTURES, load_architecture
from baseline.memory import Architecture
from benchmarks.experiments.answers import plan_jobs
from benchmarks.experiments.cost import COMPLETION_USD, PROMPT_USD, Price, compare_cost, run_cost
from benchmarks.experiments.quality import run_quality
from benchmarks.experiments.rows import Results, group_by, read_results
from benchmarks.experiments.runner import COST, QUALITY, SCALING, Setting
from benchmarks.experiments.scaling import cut_cases, run_scaling, scaling_points
from benchmarks.longhorizon.case import Case
from benchmarks.longhorizon.dataset import read_dataset, verify_case
from benchmarks.report.evidence import collect_evidence, write_report
from benchmarks.report.tables import cost_table, scaling_table, score_table
from inference import engines
from projection.errors import RequestError
from reporting.document import Table
from service import options
from service.bench_console import print_table, watch_jobs
from service.console import out, print_json, step

MAX_USD = 1_000_000  # for a million tokens
_RATIO = re.compile("[0-9]{1,9}([.][0-9]{1,9}|/0*[1-9][0-9]{0,8})?")
DEFAULT_ARCHITECTURES = "dpm,summarize_every_event,summarize_on_overflow,retrieval"
Cases = Annotated[list[Path], typer.Option("--cases", help="A data set of dpm bench generate; repeatable.")]
Count = Annotated[int | None, typer.Option("--count", help="Only the first cases of each data set.", min=1)]
Architectures = Annotated[str, typer.Option("--architectures", help=f"Of {', '.join(ARCHITECTURES)}; or all.")]
Ratios = Annotated[str, typer.Option("--ratios", help="Trajectory / budget, separated by commas; the tightest first.")]
Concurrency = Annotated[int, typer.Option("--concurrency", help="Answers in the making at a time.", min=1, max=256)]
OutDir = Annotated[Path, typer.Option("--out", help="Results folder; a run that was ended continues there.")]
PromptPrice = Annotated[float, typer.Option("--usd-prompt", help="US$ for a million tokens read.", min=0, max=MAX_USD)]
CompletionPrice = Annotated[
    float, typer.Option("--usd-completion", help="US$ for a million tokens written.", min=0, max=MAX_USD)
]


def quality(
    cases: Cases,
    out_dir: OutDir,
    architectures: Architectures = DEFAULT_ARCHITECTURES,
    ratios: Ratios = "20,5,2",
    count: Count = None,
    concurrency: Concurrency = 8,
    engine: options.Engine = "vllm",
    config: options.Config = None,
    json: options.Json = False,
) -> None:
    """Score every architecture on the same cases at every budget."""
    asked, settings = parse_ratios(ratios), engines.read_config(config)
    jobs = plan_jobs(read_cases(cases, count), parse_architectures(architectures), asked)
    with step(f"starting engine {engine}"):
        opened = engines.open_engine(engine, settings)
    with opened as running, watch_jobs("quality") as progress:
        run_quality(jobs, Setting(running, engines.profile_of(settings), out_dir), progress, concurrency=concurrency)
    results = read_results(out_dir, QUALITY)
    sizes = dict.fromkeys(row.size for row in results.rows)
    _print_results(results, [score_table([r for r in results.rows if r.size == size]) for size in sizes], json)


def cost(
    cases: Cases,
    out_dir: OutDir,
    architectures: Architectures = DEFAULT_ARCHITECTURES,
    ratios: Ratios = "20,5,2",
    count: Count = None,
    usd_prompt: PromptPrice = PROMPT_USD,
    usd_completion: CompletionPrice = COMPLETION_USD,
    engine: options.Engine = "vllm",
    config: options.Config = None,
    json: options.Json = False,
) -> None:
    """Time every architecture, one answer at a time; the engine starts anew for every ratio, so no cache helps."""
    asked, settings = parse_ratios(ratios), engines.read_config(config)
    chosen, read = parse_architectures(architectures), read_cases(cases, count)
    for ratio in asked:
        with step(f"starting engine {engine}"):
            opened = engines.open_engine(engine, settings)
        with opened as running, watch_jobs(f"cost {float(ratio):g}x") as progress:
            setting = Setting(running, engines.profile_of(settings), out_dir)
            run_cost(plan_jobs(read, chosen, [ratio]), setting, progress)
    results = read_results(out_dir, COST)
    lines = compare_cost(results.rows, Price(usd_prompt, usd_completion))
    _print_results(results, [cost_table(lines, size) for size in dict.fromkeys(line.size for line in lines)], json)


def scaling(
    cases: Cases,
    out_dir: OutDir,
    events: Annotated[str, typer.Option("--events", help="Lengths to cut the cases to.")] = "4,8,16,32,64",
    architectures: Architectures = DEFAULT_ARCHITECTURES,
    ratio: Annotated[str, typer.Option("--ratio", help="Of the whole case; every length has its budget.")] = "20",
    count: Count = 1,
    engine: options.Engine = "vllm",
    config: options.Config = None,
    json: options.Json = False,
) -> None:
    """Count calls and take the time against the length of the trajectory, at one budget; the engine starts anew for
    every length, as a case cut short is the beginning of the longer one."""
    settings, lengths = engines.read_config(config), parse_lengths(events)
    chosen, ratios = parse_architectures(architectures), parse_ratios(ratio)
    cut = cut_cases(read_cases(cases, count), lengths)
    for length, of_length in sorted(group_by(cut, lambda case: len(case.events)).items()):
        with step(f"starting engine {engine}"):
            opened = engines.open_engine(engine, settings)
        with opened as running, watch_jobs(f"scaling {length} events") as progress:
            setting = Setting(running, engines.profile_of(settings), out_dir)
            run_scaling(plan_jobs(of_length, chosen, ratios), setting, progress)
    results = read_results(out_dir, SCALING)
    _print_results(results, [scaling_table(scaling_points(results.rows))], json)


def report(
    results: Annotated[list[Path], typer.Option("--results", help="A results folder; repeatable.")],
    out_dir: Annotated[Path, typer.Option("--out", help="Where report.html, report.md and report.json go.")],
    usd_prompt: PromptPrice = PROMPT_USD,
    usd_completion: CompletionPrice = COMPLETION_USD,
    json: options.Json = False,
) -> None:
    """Write the paper's tables and figures from results folders, with the paper's numbers beside ours."""
    command = shlex.join(["dpm", *sys.argv[1:]])
    with step("computing the statistics and drawing"):
        written = write_report(collect_evidence(results, Price(usd_prompt, usd_completion)), out_dir, command)
    if json:
        print_json({"written": [str(path) for path in written]})
        return
    for path in written:
        out.print(Text(str(path)))


def read_cases(directories: Sequence[Path], count: int | None) -> list[Case]:
    """The first cases of every data set, held to their digests and proved again.

    Raises:
        CaseError, ObligationError: a data set that was changed, or a case that breaks a proof obligation.
    """
    found: list[Case] = []
    with step("reading and proving the cases"):
        for directory in directories:
            named = [case.case_id for case in read_dataset(directory)[:count]]
            found += [verify_case(directory / case_id) for case_id in named]
    return found


def parse_architectures(text: str) -> list[Architecture]:
    """The architectures of a list of names; `all` is every one there is."""
    names = ARCHITECTURES if text == "all" else tuple(dict.fromkeys(_parts(text)))
    return [load_architecture(name) for name in names]


def parse_ratios(text: str) -> list[Fraction]:
    """Positive ratios, each once.

    Raises:
        RequestError: not a list of positive numbers of at most nine digits, without exponents.
    """
    parts = _parts(text)
    if not all(_RATIO.fullmatch(part) for part in parts):
        raise RequestError(f"{text!r} is no list of ratios such as 20,5,2")
    ratios = list(dict.fromkeys(map(Fraction, parts)))
    if any(ratio <= 0 for ratio in ratios):
        raise RequestError(f"{text!r}: a compression ratio is more than 0")
    return ratios


def parse_lengths(text: str) -> list[int]:
    """Whole numbers of events.

    Raises:
        RequestError: not a list of whole numbers.
    """
    try:
        return [int(part) for part in _parts(text)]
    except ValueError as exc:
        raise RequestError(f"{text!r} is no list of whole numbers such as 8,16,32") from exc


def _parts(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise RequestError(f"{text!r} names nothing; give a list with commas between")
    return parts


def _print_results(results: Results, tables: Sequence[Table], json: bool) -> None:
    statuses = Counter(row.status for row in results.rows)
    if json:
        print_json(
            {
                "directory": results.source,
                "parameters": dict(results.parameters),
                "num_rows": len(results.rows),
                "statuses": dict(statuses),
                "tables": [
                    {"title": t.title, "columns": [c.title for c in t.columns], "rows": [list(row) for row in t.rows]}
                    for t in tables
                ],
            }
        )
        return
    for table in tables:
        print_table(table)
    told = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    out.print(Text(f"{len(results.rows)} rows ({told}) in {results.source}; dpm bench report makes a page of them"))
