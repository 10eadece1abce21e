"""The paper's failure analysis (section 10), run: `python -m benchmarks.failures`

Four demonstrations on one engine and one small case: a replay's cost grows with the trajectory; the order of two
concurrent events decides what a running summary holds; a shared cache serves another tenant; and replays survive as
(1 - e)^n. The last is measured on the engine itself, which drifts nowhere if it is pinned, and on a control that
drifts in a known share of its calls. Results go to stdout, talk to stderr. The scripted engine is no model: on it the
counts are exact and what memories say means nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from baseline.architectures import ARCHITECTURES, load_architecture
from baseline.memory import Architecture
from benchmarks.failures_cache import Tenant, key_by_case, key_by_content, measure_leak
from benchmarks.failures_case import CONCURRENT_AT, CaseInput, demonstration_case, other_tenant_s_case
from benchmarks.failures_cost import measure_replay_cost
from benchmarks.failures_order import measure_order
from benchmarks.failures_survival import DriftingEngine, measure_survival
from benchmarks.failures_uncontrolled import uncontrolled_engine
from inference import engines
from inference.scripted_engine import ScriptedEngine
from projection.engine import Engine, EngineIdentity, Progress, unwatched
from projection.entry import Stream
from projection.view_grammar import Profile

COMPARED = ("dpm", "summarize_every_event", "summarize_on_overflow", "retrieval")
FREE = ("summarize_every_event", "summarize_on_overflow")
DRIFT_RATE = 0.1  # of the control
NUM_REPLAYS, NUM_CONTROL_REPLAYS, NUM_UNCONTROLLED_REPLAYS = 3, 200, 16
Part = Callable[[Architecture], Any]


def demonstrate(
    engine: Engine,
    control_engine: Engine,
    profile: Profile,
    names: Sequence[str],
    num_control_replays: int = NUM_CONTROL_REPLAYS,
) -> dict[str, Any]:
    """Run all four; `control_engine` is what the drifting control wraps."""
    case = demonstration_case(profile)
    parts: dict[str, Part] = {
        "replay_cost_half": lambda a: measure_replay_cost(a, engine, halved(case), _say),
        "replay_cost": lambda a: measure_replay_cost(a, engine, case, _say),
        "order": lambda a: measure_order(a, engine, case, CONCURRENT_AT, _say),
        "survival": lambda a: measure_survival(a, engine, lambda _: engine, case, NUM_REPLAYS, _say),
        "survival_of_the_control": lambda a: measure_survival(
            a, control_engine, lambda n: DriftingEngine(control_engine, DRIFT_RATE, n), case, num_control_replays
        ),
    }
    architectures = [load_architecture(name) for name in names]
    results = {}
    for name, part in parts.items():
        print(f"{name}: {', '.join(names)}", file=sys.stderr)
        results[name] = [asdict(part(architecture)) for architecture in architectures]
    first = Tenant(Stream("tenant-a", "LN-7"), case)
    second = Tenant(Stream("tenant-b", "LN-7"), other_tenant_s_case(profile))
    results["shared_cache"] = [
        asdict(measure_leak(key, engine, first, second)) for key in (key_by_case, key_by_content)
    ]
    return results


def halved(case: CaseInput) -> CaseInput:
    """The first half of a case's events."""
    return replace(case, events=case.events[: len(case.events) // 2])


def _say(name: str) -> Progress:
    print(f"  {name}", file=sys.stderr)
    return unwatched(name)


def measure_uncontrolled(engine: Engine, profile: Profile, num_replays: int) -> dict[str, Any]:
    """Survival of the free summaries alone: an engine that nobody pinned takes no grammar either."""
    case = demonstration_case(profile)
    architectures = [load_architecture(name) for name in FREE]
    return {
        "survival": [
            asdict(measure_survival(architecture, engine, lambda _: engine, case, num_replays, _say))
            for architecture in architectures
        ]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="vllm", help="vllm, transformers, scripted, or a server's http:// address")
    parser.add_argument("--config", type=Path, help="engine configuration; default: the CPU profile that ships")
    parser.add_argument("--architectures", nargs="+", default=COMPARED, choices=ARCHITECTURES)
    parser.add_argument("--uncontrolled", choices=("float32", "bfloat16"), help="survival on a stock vLLM server only")
    arguments = parser.parse_args()
    config = engines.read_config(arguments.config)
    profile = engines.profile_of(config)
    if arguments.uncontrolled:
        with uncontrolled_engine(config, arguments.uncontrolled) as (engine, identity):
            document = _identified(identity) | measure_uncontrolled(engine, profile, NUM_UNCONTROLLED_REPLAYS)
    else:
        with engines.open_engine(arguments.engine, config) as engine:
            results = demonstrate(engine, ScriptedEngine(), profile, arguments.architectures)
            document = _identified(engine.identity) | {"control_drift_rate": DRIFT_RATE} | results
    print(json.dumps(document, indent=2))


def _identified(identity: EngineIdentity) -> dict[str, Any]:
    return {
        "command": " ".join(["python -m benchmarks.failures", *sys.argv[1:]]),
        "engine_identity": identity.digest,
        "engine_kind": identity.fields.get("kind"),
    }


if __name__ == "__main__":
    main()
