"""What eight cases cost beside two, all in flight at once: `python -m benchmarks.batching`

An architecture decides two cases, then eight (those two among them), on one engine whose prefix cache is emptied first;
one further case is decided first and not counted, so that neither run pays for what is built once. The ratio is seconds
for eight / seconds for two: 4 would be no gain. The rows of the two cases must be the same in both runs, byte for byte,
or the timings mean nothing. Results go to stdout, talk to stderr. Not a test: nothing fails because a machine is slow.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from baseline.architectures import ARCHITECTURES, load_architecture
from baseline.memory import Architecture
from benchmarks.experiments.answers import Job, plan_jobs
from benchmarks.experiments.quality import run_quality
from benchmarks.experiments.runner import Setting
from benchmarks.longhorizon.case import SIZES, Case
from benchmarks.longhorizon.generator import generate_cases
from inference import engines
from inference.counters import CachingEngine, CountedEngine
from projection.engine import Engine
from projection.view_grammar import Profile

FEW, MANY = 2, 8


class Quiet:
    """Progress that says a line for each row."""

    def begin(self, total_work: float, done_work: float) -> None:
        """Nothing to say."""

    def advance(self, work: float) -> None:
        """Nothing to say."""

    def tell(self, row: Mapping[str, Any]) -> None:
        print(f"  {row['case_id']}: {row['status']}", file=sys.stderr)


def measure(
    architecture: Architecture, engine: Engine, profile: Profile, cases: Sequence[Case], ratio: Fraction
) -> dict[str, Any]:
    """Decide the last case, then the first two, then the first eight; nine cases are given.

    Raises:
        SystemExit: a case's row depends on how many cases ran beside it.
    """
    jobs = [plan_jobs(chosen, [architecture], [ratio]) for chosen in (cases[MANY:], cases[:FEW], cases[:MANY])]
    _, (few, few_s), (many, many_s) = (run_jobs(engine, profile, planned) for planned in jobs)
    if any(many[key] != row for key, row in few.items()):
        raise SystemExit("rows depend on how many cases run at once: these timings mean nothing")
    return {
        "engine_identity": engine.identity.digest,
        "identity": dict(engine.identity.fields),
        "num_cases": [FEW, MANY],
        "trajectory_chars": [case.num_chars for case in cases[:MANY]],
        "statuses": sorted({row["status"] for row in many.values()}),
        "num_completion_tokens": [_tokens(rows) for rows in (few, many)],
        "max_num_running": engine.counters().max_num_running if isinstance(engine, CountedEngine) else None,
        "wall_s": [round(seconds, 2) for seconds in (few_s, many_s)],
        "ratio": round(many_s / few_s, 2),
        "are_rows_equal": True,
    }


def run_jobs(engine: Engine, profile: Profile, jobs: Sequence[Job]) -> tuple[Mapping[str, Mapping[str, Any]], float]:
    """All jobs at once, on an empty prefix cache: their rows, and the seconds of the whole run."""
    if isinstance(engine, CachingEngine):
        engine.reset_prefix_cache()
    print(f"{len(jobs)} at once", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        recorded = run_quality(jobs, Setting(engine, profile, Path(folder)), Quiet(), concurrency=len(jobs))
        return recorded.rows, time.perf_counter() - started


def _tokens(rows: Mapping[str, Mapping[str, Any]]) -> int:
    return sum(row["counts"]["num_completion_tokens"] for row in rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--config", type=Path, help="engine configuration; default: the CPU profile that ships")
    parser.add_argument("--architecture", default="dpm", choices=ARCHITECTURES)
    parser.add_argument("--size", default="small", choices=SIZES[:2])
    parser.add_argument("--ratio", type=Fraction, default=Fraction(5), help="trajectory / budget")
    arguments = parser.parse_args()
    config = engines.read_config(arguments.config)
    cases = list(generate_cases("mortgage", arguments.size, count=MANY + 1))
    with engines.open_engine(arguments.engine, config) as engine:
        found = measure(
            load_architecture(arguments.architecture), engine, engines.profile_of(config), cases, arguments.ratio
        )
    command = shlex.join(["python", "-m", "benchmarks.batching", *sys.argv[1:]])
    wished = {"architecture": arguments.architecture, "size": arguments.size, "compression": str(arguments.ratio)}
    print(json.dumps({"command": command, **wished, **found}, indent=2))


if __name__ == "__main__":
    main()
