"""`dpm decide`, `dpm replay`, `dpm demo`, `dpm record show`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from determinism.near_ties import MAX_ULP, Limit
from determinism.replay.plan import Plan
from inference import engines
from inference.config import EngineConfig
from projection import log
from projection.case import SealedDecision, check_case, decide_case, load_record, replay_record
from projection.engine import Engine
from projection.errors import NotFoundError, RequestError
from projection.replay import LEVELS, Level, ReplayTools
from projection.store_sqlite import SqliteStore
from service import explain_commands, options, replay_all_commands, runtime
from service.console import print_decision, print_json, print_replay, say, step, watch_calls
from service.documents import decision_document, replay_document
from service.files import choose_stream, read_events, read_task

REPLAY_EXIT_CODES = {"PASS": 0, "DRIFT": 1, "INCOMPARABLE": 3}
record_app = typer.Typer(no_args_is_help=True)


def decide(
    events: options.EventsFile,
    task: options.TaskFile,
    tenant: options.Tenant = options.DEFAULT_TENANT,
    case: options.Case = None,
    budget: options.Budget = options.DEFAULT_BUDGET_CHARS,
    engine: options.Engine = "vllm",
    expect_identity: options.ExpectedIdentity = None,
    config: options.Config = None,
    db: options.Db = options.DEFAULT_DB,
    json: options.Json = False,
) -> None:
    """Append a file of events to the log, project the case, decide it, and seal the record."""
    sealed = _append_and_decide(events, task, tenant, case, budget, engine, expect_identity, config, db)
    if json:
        print_json(decision_document(sealed))
    else:
        print_decision(sealed)


def replay(
    context: typer.Context,
    record_id: Annotated[str | None, typer.Argument(help="A record's id, or an unambiguous beginning of it.")] = None,
    level: Annotated[
        str | None,
        typer.Option("--level", help="R0, R1, R2 or R3; each includes those before it. By default R3, with --all R2."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", help="By default the kind of engine that the record names; with --all, vllm."),
    ] = None,
    config: options.Config = None,
    db: options.Db = options.DEFAULT_DB,
    json: options.Json = False,
    every: replay_all_commands.All = False,
    since: replay_all_commands.Since = None,
    tenant: options.AnyTenant = None,
    sample: replay_all_commands.Sample = None,
    seed: replay_all_commands.Seed = 0,
    near_tie_ulp: replay_all_commands.NearTieUlp = MAX_ULP,
    num_engines: replay_all_commands.Engines = None,
    in_flight: replay_all_commands.InFlight = replay_all_commands.IN_FLIGHT,
    results: replay_all_commands.Results = None,
    resume: replay_all_commands.Resume = None,
    ray: replay_all_commands.Ray = None,
) -> None:
    """Recompute a sealed decision and compare it with its record; with --all, every decision of the log."""
    replay_all_commands.check_options(context)
    if every or resume is not None:
        chosen = replay_all_commands.Options(engine, tuple(num_engines or ()), in_flight, results, resume, ray)
        plan = Plan(_read_level(level or "R2"), since, tenant, sample, seed, Limit(near_tie_ulp))
        raise typer.Exit(replay_all_commands.run(chosen, plan, config, db, json))
    if record_id is None:
        raise RequestError("name a record, or ask for every one with --all")
    _replay_one(record_id, _read_level(level or "R3"), engine, config, db, json)


def _read_level(text: str) -> Level:
    for level in LEVELS:
        if level == text:
            return level
    raise RequestError(f"there is no level {text!r}; choose {', '.join(LEVELS)}", level=text)


def _replay_one(record_id: str, level: Level, engine: str | None, config: Path | None, db: Path, json: bool) -> None:
    settings = engines.read_config(config)
    with SqliteStore.open_read_only(db) as store, ExitStack() as stack:
        entry = log.find_record(store, record_id)

        def engine_name() -> str:
            return explain_commands.engine_of(load_record(store, entry.entry_hash)[1], engine)

        @cache
        def open_engine() -> Engine:
            return stack.enter_context(_started(engine_name(), settings, entry.stream.tenant_id))

        watch = stack.enter_context(watch_calls(options.DEFAULT_BUDGET_CHARS))
        tools = ReplayTools(lambda: engines.open_tokenizer(engine_name(), settings), open_engine, watch)
        report = replay_record(store, entry.entry_hash, level, tools)
        across = explain_commands.audit_other_engine(store, entry, report, open_engine)
    if json:
        print_json(replay_document(entry.entry_hash, report) | explain_commands.cross_identity_document(across))
    else:
        print_replay(entry.entry_hash, report)
        explain_commands.print_cross_identity(across)
    raise typer.Exit(REPLAY_EXIT_CODES[report.verdict])


def demo(config: options.Config = None) -> None:
    """Decide the example mortgage case, then replay it in a second process."""
    example, db = _examples() / "mortgage", engines.home() / "demo.sqlite"
    db.parent.mkdir(parents=True, exist_ok=True)
    say("The model of this demo is small: it shows the mechanism, not judgement.")
    sealed = _append_and_decide(
        example / "events.jsonl",
        example / "task.yaml",
        "demo",
        None,
        options.DEFAULT_BUDGET_CHARS,
        "vllm",
        None,
        config,
        db,
    )
    print_decision(sealed)
    say(f"replaying in a new process: dpm replay {sealed.record_id[:16]} --db {db}")
    command = [sys.executable, "-m", "service.cli", "replay", sealed.record_id, "--db", str(db)]
    chosen = ["--config", str(config)] if config else []
    raise typer.Exit(subprocess.run([*command, *chosen], check=False).returncode)


@record_app.command("show")
def show_record(record_id: options.RecordId, db: options.Db = options.DEFAULT_DB) -> None:
    """Print a sealed record as JSON: prompts, completions, digests, everything."""
    with SqliteStore.open_read_only(db) as store:
        entry, record = load_record(store, record_id)
    print_json({"record_id": entry.entry_hash, **record.model_dump(mode="json")})


def _append_and_decide(
    events: Path,
    task: Path,
    tenant: str,
    case: str | None,
    budget_chars: int,
    engine: str,
    expected_identity: str | None,
    config: Path | None,
    db: Path,
) -> SealedDecision:
    parsed, specification, settings = read_events(events), read_task(task), engines.read_config(config)
    tokenizer = engines.open_tokenizer(engine, settings)  # an engine that is not here is refused before the append
    with SqliteStore.open(db) as store:
        stream = choose_stream(store, events, parsed, tenant, case)
        head = log.append_new(store, stream, parsed, now=runtime.now(), salt=runtime.new_salt)
        say(f"case {stream.case_id}: {head.position} events in {db}")
        profile = engines.profile_of(settings)
        context = engines.configured_context(engine, settings)
        if context is not None:  # such an engine takes long to start: what cannot be decided is refused before
            check_case(store, stream, tokenizer, specification, budget_chars, profile, context)
        with _started(engine, settings, tenant) as running, watch_calls(budget_chars) as watch:
            engines.require_identity(running, expected_identity)
            return decide_case(
                store,
                stream,
                running,
                specification,
                budget_chars,
                profile,
                now=runtime.now,
                salt=runtime.new_salt,
                watch=watch,
            )


@contextmanager
def _started(engine: str, settings: EngineConfig, tenant_id: str) -> Iterator[Engine]:
    with ExitStack() as stack:
        with step(f"starting engine {engine}"):
            running = stack.enter_context(engines.open_engine(engine, settings, engines.tenant_salt(tenant_id)))
        yield running


def _examples() -> Path:
    folder = Path(str(files("gpu_configs"))).parent / "examples"
    if not folder.is_dir():
        raise NotFoundError("the demo needs the repository's folder `examples`; run it from a checkout: make demo")
    return folder
