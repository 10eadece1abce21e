"""The paper's failure analysis (section 10), run: `python -m benchmarks.failures --out DIR`

Four demonstrations on one engine and one small case: a replay's cost grows with the trajectory; the order of two
concurrent events decides what a running summary holds; a shared cache serves another tenant; and replays survive as
(1 - e)^n. The last is measured on the engine itself, which drifts nowhere if it is pinned, on a control that drifts in
a known share of its calls, and, with --uncontrolled, on a stock vLLM server. A run that was ended goes on where it
stopped. Results go to stdout and to DIR, for dpm bench report; talk goes to stderr. The scripted engine is no model: on
it the counts are exact and what memories say means nothing.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from baseline.architectures import ARCHITECTURES, load_architecture
from benchmarks.failures.demonstrations import (
    DRIFT_RATE,
    NUM_UNCONTROLLED_REPLAYS,
    plan_pinned,
    plan_uncontrolled,
    run_demonstrations,
    run_parameters,
)
from benchmarks.failures.uncontrolled import uncontrolled_engine
from inference import engines
from inference.scripted_engine import ScriptedEngine
from reporting.journal import Recorded

ENGINE = "vllm"
COMPARED = ("dpm", "summarize_every_event", "summarize_on_overflow", "retrieval")
FREE = ("summarize_every_event", "summarize_on_overflow")


def main() -> None:
    arguments = parse_arguments(sys.argv[1:])
    config = engines.read_config(arguments.config)
    profile = engines.profile_of(config)
    if arguments.uncontrolled:
        architectures = [load_architecture(name) for name in arguments.architectures or FREE]
        num_replays = NUM_UNCONTROLLED_REPLAYS if arguments.replays is None else arguments.replays
        planned = plan_uncontrolled(architectures, profile, num_replays, arguments.events)
        _say(f"starting a stock server in {arguments.uncontrolled}")
        with uncontrolled_engine(config, arguments.uncontrolled) as (engine, identity):
            found = run_demonstrations(planned, engine, run_parameters(identity, profile), arguments.out, _say)
    else:
        architectures = [load_architecture(name) for name in arguments.architectures or COMPARED]
        planned = plan_pinned(architectures, ScriptedEngine(), profile)
        name = arguments.engine or ENGINE
        _say(f"starting engine {name}")
        with engines.open_engine(name, config) as engine:
            found = run_demonstrations(planned, engine, run_parameters(engine.identity, profile), arguments.out, _say)
    print(json.dumps(_document(found), indent=2))


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """The arguments; a combination of which one would be ignored ends the program, as wrong use does."""
    parser = _parser()
    arguments = parser.parse_args(words)
    if arguments.uncontrolled and not set(arguments.architectures or FREE) <= set(FREE):
        parser.error(f"a server that nobody pinned takes no grammar of ours: choose of {', '.join(FREE)}")
    if arguments.uncontrolled and arguments.engine is not None:
        parser.error("--uncontrolled starts a server of its own: leave out --engine")
    if not arguments.uncontrolled and (arguments.replays, arguments.events) != (None, None):
        parser.error("--replays and --events go with --uncontrolled")
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="results folder; a run that was ended goes on there")
    kinds = f"{ENGINE} (the default), transformers, scripted, or a server's http:// address"
    parser.add_argument("--engine", help=kinds)
    parser.add_argument("--config", type=Path, help="engine configuration; default: the CPU profile that ships")
    parser.add_argument("--architectures", nargs="+", choices=ARCHITECTURES)
    parser.add_argument("--uncontrolled", choices=("float32", "bfloat16"), help="survival on a stock vLLM server only")
    replays = f"of each memory, there; by default {NUM_UNCONTROLLED_REPLAYS}"
    parser.add_argument("--replays", type=int, help=replays)
    parser.add_argument("--events", type=int, help="take a case of so many events there, for as many calls")
    return parser


def _document(found: Recorded) -> dict[str, Any]:
    return {
        "command": shlex.join(["python", "-m", "benchmarks.failures", *sys.argv[1:]]),
        **found.parameters,
        "control_drift_rate": DRIFT_RATE,
        "rows": dict(found.rows),
    }


def _say(message: str) -> None:
    print(f"failures: {message}", file=sys.stderr)


if __name__ == "__main__":
    main()
