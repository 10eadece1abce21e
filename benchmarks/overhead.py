"""What a decision costs outside the model: `python -m benchmarks.overhead`

A case of 96 events is appended to a log, projected, decided and sealed with the real engine. The overhead is the time
of all that, less the seconds of the two calls as the record keeps them, to the millisecond; compiling the grammar is
one of the engine's jobs. The engine's start is not counted on either side. The sealed record is replayed at R1 in the
same run, so what was timed was right.
Results go to stdout, talk to stderr. Not a test: nothing fails because a machine is slow.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.example_cases import long_case
from inference import engines
from projection import log
from projection.case import SealedDecision, decide_case, replay_record
from projection.engine import Engine
from projection.entry import Stream
from projection.replay import ReplayTools
from projection.store_sqlite import SqliteStore

NUM_EVENTS = 96
BUDGET_CHARS = 1338
NOW = "2026-01-31T09:30:00Z"
MAX_OVERHEAD = 0.02
STREAM = Stream("bench", "long-case")


def measure(engine: Engine, db: Path, num_events: int, budget_chars: int) -> dict[str, Any]:
    """Decide the long case once and split its seconds."""
    events, task = long_case(num_events)
    settings = engines.read_config(None)
    with SqliteStore.open(db) as store:
        started = time.perf_counter()
        log.append(store, STREAM, events, expected_position=0, now=NOW, salt=lambda: secrets.token_bytes(32))
        sealed = decide_case(
            store,
            STREAM,
            engine,
            task,
            budget_chars,
            engines.profile_of(settings),
            now=lambda: NOW,
            salt=lambda: secrets.token_bytes(32),
        )
        whole_s = time.perf_counter() - started
        tools = ReplayTools(tokenizer=lambda: engine.tokenizer, engine=lambda: engine)
        verdict = replay_record(store, sealed.record_id, "R1", tools).verdict
    return _result(sealed, num_events, whole_s, verdict)


def _result(sealed: SealedDecision, num_events: int, whole_s: float, verdict: str) -> dict[str, Any]:
    content, engine_s = sealed.record.content, sum(sealed.record.wall_s)
    overhead = (whole_s - engine_s) / whole_s
    return {
        "engine_identity": content.engine_identity,
        "num_events": num_events,
        "num_prompt_tokens": len(content.projection.prompt_token_ids),
        "num_completion_tokens": len(content.projection.token_ids),
        "whole_s": round(whole_s, 3),
        "engine_s": round(engine_s, 3),
        "overhead": round(overhead, 5),
        "replay_r1": verdict,
        "is_target_met": overhead < MAX_OVERHEAD and verdict == "PASS",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=NUM_EVENTS)
    parser.add_argument("--budget", type=int, default=BUDGET_CHARS, help="characters")
    parser.add_argument("--engine", default="vllm")
    arguments = parser.parse_args()
    print(f"deciding a case of {arguments.events} events", file=sys.stderr)
    with (
        tempfile.TemporaryDirectory() as folder,
        engines.open_engine(arguments.engine, engines.read_config(None)) as engine,
    ):
        result = measure(engine, Path(folder) / "bench.sqlite", arguments.events, arguments.budget)
    command = shlex.join(["python", "-m", "benchmarks.overhead", *sys.argv[1:]])
    print(json.dumps({"command": command, **result}, indent=2))


if __name__ == "__main__":
    main()
