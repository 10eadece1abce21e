"""`dpm determinism compare`: pinned lane, uncontrolled server, live API and the paper's figures, side by side."""

from __future__ import annotations

import json as json_text
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer

from determinism.compare.plan import CASES, Plan, Route, live_name, parse_live
from determinism.compare.report import comparison_report
from determinism.compare.run import Step, open_comparison, run_comparison
from determinism.compare.table import compared_cells, comparison_document, count_calls, drifted_lanes
from determinism.verdict import DOES_NOT_HOLD, NOTHING_RAN
from inference import engines
from inference.live_calls import CallCounts, CallLimitError, Prices
from inference.live_endpoint import official_endpoint, read_key
from inference.uncontrolled_server import Dtype
from projection.errors import RequestError
from reporting.files import write_text
from reporting.journal import Row
from reporting.markdown import render_markdown
from reporting.page import render_page
from service import options, runtime
from service.console import print_json, say

INCOMPLETE = 2
Name = TypeVar("Name", bound=str)
WRITERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    ".json": lambda value: json_text.dumps(value, ensure_ascii=False, indent=1) + "\n",
    ".md": lambda value: render_markdown(comparison_report(value)),
    ".html": lambda value: render_page(comparison_report(value, has_plot=True)),
}
Lengths = Annotated[str, typer.Option("--lengths", help="Most tokens of an answer, separated by commas.")]
Replays = Annotated[int, typer.Option("--replays", help="Of each case and length, beside the reference.", min=1)]
Live = Annotated[
    str | None,
    typer.Option("--live", help="provider:model of a live API; its key comes from the environment, and it costs."),
]
LiveUrl = Annotated[str | None, typer.Option("--live-url", help="Another address that speaks the provider's protocol.")]
MaxCalls = Annotated[int, typer.Option("--max-calls", help="To the live API, retries included.", min=1)]
PriceIn = Annotated[str | None, typer.Option("--price-in", help="What a million tokens sent to the live API cost.")]
PriceOut = Annotated[str | None, typer.Option("--price-out", help="What a million tokens of its answers cost.")]
Results = Annotated[
    Path | None, typer.Option("--results", help="Folder of the run, which continues there; by default under .dpm.")
]
Reports = Annotated[list[Path] | None, typer.Option("--report", help="Write a .json, .md or .html file; repeatable.")]


def compare(
    lengths: Lengths = "50,200,500,1000",
    replays: Replays = 10,
    cases: Annotated[str, typer.Option("--cases", help="Which examples.")] = ",".join(CASES),
    pinned: Annotated[bool, typer.Option(help="Ask the pinned engine.")] = True,
    dtypes: Annotated[
        str, typer.Option("--dtypes", help="Of the uncontrolled servers; an empty text starts none.")
    ] = "float32,bfloat16",
    routes: Annotated[str, typer.Option("--routes", help="Of the uncontrolled servers.")] = "messages,chat",
    strangers: Annotated[int, typer.Option("--strangers", help="Other requests in flight.", min=0)] = 2,
    width: Annotated[int, typer.Option("--width", help="Replays at once.", min=1)] = 6,
    threads: Annotated[int, typer.Option("--threads", help="Of an uncontrolled server.", min=1)] = 2,
    compile: Annotated[bool, typer.Option(help="Let an uncontrolled server compile, as vLLM does by default.")] = True,
    budget: options.Budget = options.DEFAULT_BUDGET_CHARS,
    live: Live = None,
    live_url: LiveUrl = None,
    max_calls: MaxCalls = 100,
    price_in: PriceIn = None,
    price_out: PriceOut = None,
    engine: options.Engine = "vllm",
    config: options.Config = None,
    results: Results = None,
    report: Reports = None,
    json: options.Json = False,
) -> None:
    """Replay the same projections on the pinned engine, on servers nobody controls, and on a live API."""
    settings = engines.read_config(config)
    plan = Plan(
        model=settings.model,
        num_replays=replays,
        lengths=tuple(map(_length, _listed(lengths))),
        cases=tuple(_listed(cases)),
        pinned=pinned,
        dtypes=_chosen("--dtypes", dtypes, get_args(Dtype)),
        routes=_chosen("--routes", routes, get_args(Route)),
        live=live,
        live_url=live_url,
        num_strangers=strangers,
        width=width,
        num_threads=threads,
        compile=compile,
        budget_chars=budget,
    )
    plan.check()
    prices = _prices(price_in, price_out)
    reports = _check_reports(report or [])
    _check_live(plan)
    is_stopped = False
    with open_comparison(results or engines.home() / "comparison", plan) as journal:
        try:
            run_comparison(plan, journal, settings, engine, max_calls, _talk())
        except CallLimitError as error:
            is_stopped = True
            say(error.message)
        rows = journal.rows
    command = shlex.join(["dpm", *sys.argv[1:]])
    document = comparison_document(plan, rows, command, runtime.now(), _cost(plan, rows, prices))
    _publish(document, reports, json)
    raise typer.Exit(_exit_code(plan, rows, is_stopped))


def _publish(document: Mapping[str, Any], reports: list[Path], json: bool) -> None:
    for path in reports:
        write_text(path, WRITERS[path.suffix](document))
    if json:
        print_json(document)
    else:
        sys.stdout.write(render_markdown(comparison_report(document)))


def _exit_code(plan: Plan, rows: Mapping[str, Row], is_stopped: bool) -> int:
    """Only the pinned lane can fail: that the others drift is what is measured."""
    cells = compared_cells(plan, rows)
    if drifted_lanes(cells):
        return DOES_NOT_HOLD
    if not cells:
        return NOTHING_RAN
    return INCOMPLETE if is_stopped else 0


def _check_live(plan: Plan) -> None:
    """A live API that cannot be asked is refused before anything is started."""
    if plan.live is None:
        if plan.live_url is not None:
            raise RequestError("--live-url goes with --live")
        return
    provider, model = parse_live(plan.live)
    endpoint = official_endpoint(provider, model, plan.live_url)
    read_key(endpoint)
    for name, stated in endpoint.pins.described().items():
        say(f"{endpoint.name}: {name}: {stated}")


def _talk() -> Callable[[Step], None]:
    """A line for each finished cell, with the time that is left at this run's pace."""
    started, first = time.monotonic(), list[int]()

    def report(step: Step) -> None:
        first.append(step.tokens_done)
        num_run, elapsed_s = step.tokens_done - first[0], time.monotonic() - started
        left_s = elapsed_s * (step.tokens_all - step.tokens_done) / num_run if num_run else None
        left = "" if left_s is None else f", about {left_s / 60:.0f} min left"
        say(f"{step.cell}: {step.tokens_done / step.tokens_all:.0%} done{left}")

    return report


def _cost(plan: Plan, rows: Mapping[str, Row], prices: Prices | None) -> dict[str, str] | None:
    """At the stated prices; None where none were stated or no live API was asked."""
    counted = count_calls(live_name(plan.live), rows) if plan.live else None
    if prices is None or counted is None:
        return None
    tokens = CallCounts(input_tokens=int(counted["input_tokens"]), output_tokens=int(counted["output_tokens"]))
    stated = {f"price_per_million_{name}": str(price) for name, price in asdict(prices).items()}
    return {**stated, "total": str(tokens.cost(prices))}


def _prices(price_in: str | None, price_out: str | None) -> Prices | None:
    if price_in is None and price_out is None:
        return None
    if price_in is None or price_out is None:
        raise RequestError("--price-in and --price-out go together: no price is guessed")
    return Prices(_price("--price-in", price_in), _price("--price-out", price_out))


def _price(option: str, text: str) -> Decimal:
    try:
        price = Decimal(text)
    except InvalidOperation:
        price = Decimal(-1)
    if not price.is_finite() or price < 0:
        raise RequestError(f"{option} takes a price of 0 or more, not {text!r}")
    return price


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _length(text: str) -> int:
    if not text.isdecimal():
        raise RequestError(f"--lengths takes numbers of tokens separated by commas, not {text!r}")
    return int(text)


def _chosen(option: str, text: str, known: tuple[Name, ...]) -> tuple[Name, ...]:
    for part in _listed(text):
        if part not in known:
            raise RequestError(f"{option} takes {' or '.join(known)}, not {part!r}")
    return tuple(name for name in known if name in _listed(text))


def _check_reports(paths: list[Path]) -> list[Path]:
    for path in paths:
        if path.suffix not in WRITERS or not path.parent.is_dir():
            raise RequestError(f"--report takes a .json, .md or .html file in a folder that is there, not {path}")
    return paths
