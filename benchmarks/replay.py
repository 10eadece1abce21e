"""What a replay costs: R2 against R3 on both examples. `python -m benchmarks.replay`

Each example is decided once. Then its two calls are scored (R2: one teacher-forced prefill a call) and generated again
(R3), turn by turn; the ratio is the median of R3 over the median of R2. Every turn is checked: each recorded token is
the best allowed one, and the generated tokens and log-probabilities are the recorded ones.

R2 costs one prefill, so the ratio grows with the length of the output and falls with the length of the prompt: both
stand beside it. Results go to stdout, talk to stderr. Not a test: nothing fails because a machine is slow.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.example_cases import NAMES, read_example
from inference import engines
from projection.decision import decide
from projection.engine import Engine
from projection.events import numbered
from projection.projector import Call, project

MIN_RATIO = 4.0
BUDGET_CHARS = 1338


def measure(engine: Engine, name: str, num_turns: int) -> dict[str, Any]:
    """Decide an example, then time R2 and R3 of its calls in turn."""
    events, task = read_example(name)
    logged = numbered(events)
    profile = engines.profile_of(engines.read_config(None))
    projection = project(engine, logged, task, BUDGET_CHARS, profile)
    calls = (projection.call, decide(engine, task, projection.view).call)
    r2_s, r3_s = [], []
    for turn in range(num_turns):
        print(f"{name}: turn {turn + 1} of {num_turns}", file=sys.stderr)
        r2_s.append(_seconds(_score, engine, calls))
        r3_s.append(_seconds(_generate, engine, calls))
    ratio = statistics.median(r3_s) / statistics.median(r2_s)
    return {
        "example": name,
        "num_prompt_tokens": [len(call.prompt_token_ids) for call in calls],
        "num_completion_tokens": [len(call.completion.token_ids) for call in calls],
        "r2_s": [round(s, 2) for s in r2_s],
        "r3_s": [round(s, 2) for s in r3_s],
        "ratio": round(ratio, 2),
        "is_target_met": ratio >= MIN_RATIO,
    }


def _seconds(work: Callable[[Engine, Sequence[Call]], None], engine: Engine, calls: Sequence[Call]) -> float:
    started = time.perf_counter()
    work(engine, calls)
    return time.perf_counter() - started


def _score(engine: Engine, calls: Sequence[Call]) -> None:
    for call in calls:
        score = engine.score(call.prompt_token_ids, call.completion.token_ids, call.grammar)
        if any(position.token_id != position.best_token_id for position in score.positions):
            raise SystemExit("R2 does not hold: these timings mean nothing")


def _generate(engine: Engine, calls: Sequence[Call]) -> None:
    for call in calls:
        again = engine.generate(call.prompt_token_ids, call.max_tokens, call.grammar)
        if (again.token_ids, again.logprobs) != (call.completion.token_ids, call.completion.logprobs):
            raise SystemExit("R3 does not hold: these timings mean nothing")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--engine", default="vllm")
    arguments = parser.parse_args()
    with engines.open_engine(arguments.engine, engines.read_config(None)) as engine:
        rows = [measure(engine, name, arguments.turns) for name in NAMES]
        identity = engine.identity.digest
    command = shlex.join(["python", "-m", "benchmarks.replay", *sys.argv[1:]])
    print(json.dumps({"command": command, "engine_identity": identity, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
