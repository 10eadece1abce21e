"""`dpm bench judge` and `rescore`: answers that stand in rows, judged or scored again. No answer is made here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from benchmarks.experiments.judging import (
    JudgeJob,
    JudgeReplay,
    plan_judging,
    read_judgements,
    replay_judging,
    run_judging,
)
from benchmarks.experiments.kept import read_answers, rescore
from benchmarks.experiments.rows import find_schema
from benchmarks.experiments.runner import COST, QUALITY
from benchmarks.report.judged import compare_judged, judged_table
from inference import engines
from projection.engine import Engine
from projection.errors import RequestError
from service import options
from service.bench_console import print_table, watch_jobs
from service.console import VERDICT_STYLES, describe_divergence, out, print_json, step
from service.experiment_commands import Cases, Concurrency, OutDir, read_cases

EXIT_CODES = {"PASS": 0, "DRIFT": 1, "INCOMPARABLE": 3}
ResultsDir = Annotated[Path, typer.Option("--results", help="A folder of dpm bench quality or cost.")]


def judge(
    results: ResultsDir,
    cases: Cases,
    out_dir: OutDir,
    replay: Annotated[bool, typer.Option("--replay", help="Make every recorded call again and compare it.")] = False,
    concurrency: Concurrency = 8,
    engine: options.Engine = "vllm",
    config: options.Config = None,
    json: options.Json = False,
) -> None:
    """Let a model judge reasoning coherence beside the rule, link by link; its calls can be replayed."""
    settings = engines.read_config(config)
    recorded, answers = read_answers(results, _answers_schema(results), read_cases(cases, None))
    jobs = plan_judging(answers)
    if not jobs:
        raise RequestError("no answer of these results has a decision: there is nothing to judge")
    with step(f"starting engine {engine}"):
        opened = engines.open_engine(engine, settings)
    with opened as running:
        if replay:
            raise typer.Exit(_replay(jobs, running, out_dir, json))
        with watch_jobs("judge") as progress:
            run_judging(jobs, running, out_dir, recorded.parameters, progress, concurrency=concurrency)
    lines = compare_judged(read_judgements(out_dir)[1])
    if json:
        print_json({"directory": str(out_dir), "lines": [{**asdict(one), "ratio": str(one.ratio)} for one in lines]})
        return
    print_table(judged_table(lines))


def rescore_rows(results: ResultsDir, cases: Cases, out_dir: OutDir, json: options.Json = False) -> None:
    """Score the answers of a results folder by this version's formulas, into another folder; no engine is needed.
    Exit 1 where a score that was there is another one now."""
    found = rescore(results, _answers_schema(results), read_cases(cases, None), out_dir)
    if json:
        print_json({"directory": str(out_dir), **asdict(found)})
    else:
        changed, added = _told(found.num_changed), _told(found.num_added)
        out.print(Text(f"{found.num_rows} rows scored again in {out_dir}; other scores: {changed}; new ones: {added}"))
    if any(found.num_changed.values()):
        raise typer.Exit(EXIT_CODES["DRIFT"])


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} in {count}" for name, count in counts.items() if count) or "none"


def _answers_schema(directory: Path) -> str:
    schema = find_schema(directory)
    if schema not in (QUALITY, COST):
        raise RequestError(f"{directory} holds rows of {schema}: name a folder of dpm bench quality or cost")
    return schema


def _replay(jobs: list[JudgeJob], engine: Engine, directory: Path, json: bool) -> int:
    with watch_jobs("replay") as progress:
        found = replay_judging(jobs, engine, directory, progress)
    if json:
        print_json(asdict(found))
    else:
        _print_replay(found)
    return EXIT_CODES[found.verdict] if found.num_calls else 5


def _print_replay(found: JudgeReplay) -> None:
    if found.first is not None:
        out.print(Text(describe_divergence(found.first)))
    told = f"  {found.num_same} of {found.num_calls} judgements came out again, token for token"
    out.print(Text.assemble("verdict ", (found.verdict, VERDICT_STYLES[found.verdict]), told))
