"""`dpm replay --all`: replay every sealed record of a log, on one engine or several, and sum up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from determinism.replay.outcome import Tally
from determinism.replay.plan import Plan
from determinism.replay.run import Run, Watch, read_audit_heads, read_run, replay_all
from determinism.replay.workers import Lanes, lanes_of, lanes_without_engine, process_lanes
from determinism.verdict import DOES_NOT_HOLD
from inference import engines
from inference.config import EngineConfig
from projection.engine import Engine
from projection.errors import RequestError
from projection.prompt import visible
from projection.replay import ReplayTools
from projection.store_sqlite import SqliteStore
from service import runtime
from service.console import SECONDS_BETWEEN_LINES, VERDICT_STYLES, err, out, print_json, say, step
from service.options import given_options

IN_FLIGHT = 4
DEFAULT_ENGINE = "vllm"
PLAN_OPTIONS = frozenset({"level", "since", "tenant", "sample", "seed", "near_tie_ulp", "results"})
ONLY_WITH_ALL = (PLAN_OPTIONS - {"level"}) | {"num_engines", "in_flight", "ray"}

All = Annotated[bool, typer.Option("--all", help="Replay every sealed record of the log.")]
Since = Annotated[str | None, typer.Option("--since", help="With --all: only records sealed since then, RFC 3339.")]
Sample = Annotated[
    int | None, typer.Option("--sample", help="With --all: one record in N, chosen by its id, goes up to R3.", min=1)
]
Seed = Annotated[int, typer.Option("--seed", help="With --sample: another seed chooses another sample.")]
NearTieUlp = Annotated[
    int, typer.Option("--near-tie-ulp", help="With --all: a record with a margin within so many ULP goes up to R3.")
]
Engines = Annotated[
    list[str] | None,
    typer.Option(
        "--engines", help="With --all: how many engines to start, each in a process, or a server; repeatable."
    ),
]
InFlight = Annotated[int, typer.Option("--in-flight", help="With --all: records on each engine at a time.", min=1)]
Results = Annotated[Path | None, typer.Option("--results", help="With --all: the results folder of a new run.")]
Resume = Annotated[Path | None, typer.Option("--resume", help="Continue the run of this results folder.")]
Ray = Annotated[
    str | None, typer.Option("--ray", help='With --all: address of a Ray cluster, or "auto"; engines run there.')
]


def check_options(context: typer.Context) -> None:
    """Refuse options that would be dropped silently.

    Raises:
        RequestError: which one, and what it goes with.
    """
    flags = given_options(context)
    given = flags.keys()
    if "resume" in given:
        wrong, why = given & PLAN_OPTIONS, "a run that continues has its plan in its folder: leave it out"
    elif "every" in given:
        wrong, why = set[str](), ""
    else:
        wrong, why = given & ONLY_WITH_ALL, "it goes with --all"
    for name in sorted(wrong):
        raise RequestError(f"{flags[name]}: {why}", option=flags[name])
    if "record_id" in given and given & {"every", "resume"}:
        raise RequestError("name a record, or ask for every one with --all, not both")


@dataclass(frozen=True, slots=True)
class Options:
    """How a log is replayed.

    engine: the kind, for engines that are started here; None is vLLM.
    engines: how many processes with such an engine, or addresses of servers; empty is one engine in this process.
    in_flight: records on each engine at a time.
    resume: the results folder of a run to be continued, whose plan it is then. ray: a cluster's address.
    """

    engine: str | None
    engines: tuple[str, ...]
    in_flight: int
    results: Path | None
    resume: Path | None
    ray: str | None


def run(options: Options, plan: Plan, config: Path | None, db: Path, as_json: bool) -> int:
    """Replay, print what came of it, and return the exit code."""
    settings = engines.read_config(config)
    with SqliteStore.open_read_only(db) as store, ExitStack() as stack:
        if options.resume is None:
            heads, directory = read_audit_heads(store, plan.tenant_id), options.results or _new_folder()
        else:
            kept = read_run(options.resume)
            plan, heads, directory = kept.plan, dict(kept.heads), options.resume
        lanes = stack.enter_context(_lanes(options, plan, settings))
        say(f"results: {directory}; to continue a run that was cut off: dpm replay --all --resume {directory}")
        watch = stack.enter_context(_watch())
        tally = replay_all(store, Run(plan, heads, lanes.engine_identity), lanes.replays, directory, watch)
        file_problem = store.find_file_problem()
    code = DOES_NOT_HOLD if file_problem else tally.exit_code
    if as_json:
        print_json({**tally_document(tally, lanes, directory), "file_problem": file_problem, "exit_code": code})
    else:
        print_tally(tally, directory)
        if file_problem:
            out.print(Text.assemble((f"{'DRIFT':<13}", VERDICT_STYLES["DRIFT"]), visible(file_problem)))
    return code


@contextmanager
def _lanes(options: Options, plan: Plan, settings: EngineConfig) -> Iterator[Lanes]:
    """The engines that were asked for, started."""
    num_engines, addresses = _read_engines(options.engines)
    name = options.engine or DEFAULT_ENGINE
    if addresses and (options.engine or options.ray):
        raise RequestError("--engines with addresses asks those servers: leave --engine and --ray out")
    if not plan.needs_engine:
        tools = ReplayTools(lambda: engines.open_tokenizer(name, settings), _no_engine)
        yield lanes_without_engine(tools, plan.limit)
        return
    with ExitStack() as stack:
        if options.ray is not None:
            from determinism.replay.ray_workers import ray_lanes

            lanes = ray_lanes(options.ray, num_engines, name, settings, options.in_flight, plan.limit)
            title = f"starting {num_engines} engines on the cluster"
        elif num_engines > 1:
            lanes = process_lanes(num_engines, name, settings, options.in_flight, plan.limit)
            title = f"starting {num_engines} processes with an engine each"
        else:
            names = addresses or (name,)
            lanes = _opened(names, settings, options.in_flight, plan)
            title = f"starting engine {', '.join(names)}"
        with step(title):
            opened = stack.enter_context(lanes)
        yield opened


@contextmanager
def _opened(names: tuple[str, ...], settings: EngineConfig, in_flight: int, plan: Plan) -> Iterator[Lanes]:
    with ExitStack() as stack:
        opened: list[Engine] = [stack.enter_context(engines.open_engine(name, settings)) for name in names]
        yield lanes_of(opened, in_flight, plan.limit)


def _no_engine() -> Engine:
    raise RequestError("R0 and R1 ask no engine")


def _read_engines(given: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    """How many engines to start, or which servers to ask."""
    if len(given) == 1 and given[0].isdecimal() and int(given[0]) > 0:
        return int(given[0]), ()
    for name in given:
        if not engines.is_url(name):
            raise RequestError(f"--engines takes one number, or addresses of servers, and this is {name!r}")
    return 1, given


def _new_folder() -> Path:
    return engines.home() / "replays" / runtime.now().replace(":", "").replace("-", "")


@contextmanager
def _watch() -> Iterator[Watch]:
    """Show how many records are done and the time that is left; without a terminal, a line every ten seconds."""
    if not err.is_terminal:
        yield _Talk().hear
        return
    columns = (
        TextColumn("records"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=err) as progress:
        bar = progress.add_task("records", total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


class _Talk:
    """Lines of progress. The time left is reckoned from what this run did, not from what an earlier one had done."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()
        self._first: int | None = None

    def hear(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = done
        if now - self._last < SECONDS_BETWEEN_LINES or done == self._first:
            return
        self._last = now
        left_s = (total - done) * (now - self._started) / (done - self._first)
        say(f"{done} of {total} records, {left_s:.0f} s left")


def tally_document(tally: Tally, lanes: Lanes, directory: Path) -> dict[str, Any]:
    """What `dpm replay --all --json` prints of the records."""
    return {
        "results": str(directory),
        "engine_identity": lanes.engine_identity,
        "num_records": tally.num_records,
        "drift_rate_upper_95": tally.drift_rate_bound,
        **tally.to_value(),
    }


def print_tally(tally: Tally, directory: Path) -> None:
    """Records by verdict, the bound, and the first records that did not pass."""
    for row in tally.listed:
        out.print(Text.assemble((f"{row['verdict']:<13}", VERDICT_STYLES[row["verdict"]]), describe_row(row)))
    for verdict, count in sorted(tally.verdicts.items()):
        out.print(Text.assemble((f"{verdict:<13}", VERDICT_STYLES[verdict]), f"{count:>8}"))
    out.print(Text(f"{'records':<13}{tally.num_records:>8}, {tally.num_generated} of them up to R3"))
    if tally.num_positions:
        num_others = tally.num_positions - tally.num_agreeing
        out.print(
            Text(
                f"on another engine, {tally.num_agreeing} of {tally.num_positions} recorded tokens are its best "
                f"allowed ones too; of the other {num_others}, {tally.num_near_ties} were near-ties: evidence, no pass"
            )
        )
    if tally.drift_rate_bound is not None:
        drifted, bound = tally.verdicts.get("DRIFT", 0), tally.drift_rate_bound
        out.print(
            Text(f"{drifted} of {tally.num_comparable} comparable records drift; at 95% at most {bound:.3%} of such do")
        )
    out.print(Text(f"rows: {directory}", style="dim"))


def describe_row(row: Any) -> str:
    """One record that did not pass, for a person."""
    found = row["first_divergence"]
    why = row["error"] or (found and f"{found['level']} {found['what']} {found['detail']}") or ""
    return f"{row['record_id'][:16]}  {visible(why)}"
