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

from inference import engines
from inference.config import EngineConfig
from projection import log
from projection.case import SealedDecision, check_case, decide_case, load_record, replay_record
from projection.engine import Engine
from projection.errors import NotFoundError, RequestError
from projection.replay import LEVELS, ReplayTools
from projection.store_sqlite import SqliteStore
from service import options, runtime
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
    config: options.Config = None,
    db: options.Db = options.DEFAULT_DB,
    json: options.Json = False,
) -> None:
    """Append a file of events to the log, project the case, decide it, and seal the record."""
    sealed = _append_and_decide(events, task, tenant, case, budget, engine, config, db)
    if json:
        print_json(decision_document(sealed))
    else:
        print_decision(sealed)


def replay(
    record_id: options.RecordId,
    level: Annotated[str, typer.Option("--level", help="R0, R1, R2 or R3; each includes those before it.")] = "R3",
    engine: Annotated[
        str | None, typer.Option("--engine", help="By default the kind of engine that the record names.")
    ] = None,
    config: options.Config = None,
    db: options.Db = options.DEFAULT_DB,
    json: options.Json = False,
) -> None:
    """Recompute a sealed decision and compare it with its record."""
    if level not in LEVELS:
        raise RequestError(f"there is no level {level!r}; choose {', '.join(LEVELS)}", level=level)
    settings = engines.read_config(config)
    with SqliteStore.open_read_only(db) as store, ExitStack() as stack:
        entry = log.find_record(store, record_id)

        def engine_name() -> str:
            """The engine that was asked for, else the record's kind: a record never chooses an address."""
            if engine is not None:
                return engine
            kind = str(load_record(store, entry.entry_hash)[1].engine.get("kind"))
            if kind not in engines.ENGINE_NAMES:
                raise RequestError(f"the record names the engine {kind!r}; name one of yours with --engine", kind=kind)
            return kind

        @cache
        def open_engine() -> Engine:
            return stack.enter_context(_started(engine_name(), settings))

        watch = stack.enter_context(watch_calls(options.DEFAULT_BUDGET_CHARS))
        tools = ReplayTools(lambda: engines.open_tokenizer(engine_name(), settings), open_engine, watch)
        report = replay_record(store, entry.entry_hash, level, tools)
    if json:
        print_json(replay_document(entry.entry_hash, report))
    else:
        print_replay(entry.entry_hash, report)
    raise typer.Exit(REPLAY_EXIT_CODES[report.verdict])


def demo(config: options.Config = None) -> None:
    """Decide the example mortgage case, then replay it in a second process."""
    example, db = _examples() / "mortgage", engines.home() / "demo.sqlite"
    db.parent.mkdir(parents=True, exist_ok=True)
    say("The model of this demo is small: it shows the mechanism, not judgement.")
    sealed = _append_and_decide(
        example / "events.jsonl", example / "task.yaml", "demo", None, options.DEFAULT_BUDGET_CHARS, "vllm", config, db
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
        with _started(engine, settings) as running, watch_calls(budget_chars) as watch:
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
def _started(engine: str, settings: EngineConfig) -> Iterator[Engine]:
    with ExitStack() as stack:
        with step(f"starting engine {engine}"):
            running = stack.enter_context(engines.open_engine(engine, settings))
        yield running


def _examples() -> Path:
    folder = Path(str(files("gpu_configs"))).parent / "examples"
    if not folder.is_dir():
        raise NotFoundError("the demo needs the repository's folder `examples`; run it from a checkout: make demo")
    return folder
