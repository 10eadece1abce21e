"""What determinism costs and buys on a CPU: the lane against stock vLLM. `python -m benchmarks.determinism_tax`

Each engine lives in a process of its own, and the pieces of work go to them turn by turn, so that a noisy machine is
noisy for all. Every figure is a ratio of medians of one run. An engine of the lane must give the same bits in every
turn and in every process, or the timing does not count; stock vLLM need not, and whether it did stands beside. Results
go to stdout as JSON, talk to stderr. Not a test: nothing fails because a machine is slow.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import IO, Any

from benchmarks.tax_works import WORKS
from inference import engines
from inference.config import AttentionConfig, EngineConfig, FeaturesConfig

LANE = engines.read_config().model_copy(update={"kv_cache_gib": 1.0})  # several engines share the memory
STOCK = AttentionConfig(invariant=False, split_kv=True)
STOCK_FEATURES = FeaturesConfig(prefix_caching=True, chunked_prefill=True, compile=True)
VARIANTS: Mapping[str, EngineConfig] = {
    "lane": LANE,
    "lane, no features": LANE.model_copy(update={"features": FeaturesConfig(), "max_num_batched_tokens": None}),
    "lane, two threads": LANE.model_copy(update={"num_threads": 2}),
    "lane, second process": LANE,
    "stock defaults": LANE.model_copy(
        update={"attention": STOCK, "features": STOCK_FEATURES, "max_num_batched_tokens": 4096}
    ),
    "stock, same features": LANE.model_copy(update={"attention": STOCK}),
}
IS_LANE = frozenset(name for name, config in VARIANTS.items() if config.attention.invariant)
COMPARISONS: tuple[tuple[str, str, str, str, float | None], ...] = (
    ("one projection", "stock defaults", "lane", "lane against stock defaults, alone", 1.5),
    ("one projection", "stock, same features", "lane", "lane against stock with the same features, alone", 0.9),
    ("eight projections at once", "stock defaults", "lane", "lane against stock defaults, 8 at once", None),
    ("eight projections at once", "stock, same features", "lane", "lane against the same features, 8 at once", 0.9),
    ("prefill of 6,500 tokens", "stock, same features", "lane", "prefill against the same features", 0.85),
    ("prefill of 6,500 tokens", "stock defaults", "lane", "prefill against stock defaults", None),
)
"""Work, engine above, engine below the line of the ratio of seconds, what it says, and the target."""
REPLAYS: Mapping[str, float | None] = {
    "replay of 300 tokens after 300": 15.0,
    "replay of the mortgage example": None,
    "replay of the claim example": None,
    "replay at paper size": None,
    "replay at paper size, 8 records": None,
}
TWO_AGAINST_ONE_TARGET = 1.2


class Worker:
    """An engine in a process of its own, which does one piece of work at a time."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name, self._process = name, process
        self.engine_identity: str = self._answer()  # the first thing that a worker says

    def do(self, work: str) -> list[dict[str, Any]]:
        """Each with wall_s, num_prompt_tokens, num_tokens, bits."""
        pipe, _ = _pipes(self._process)
        pipe.write(work + "\n")
        pipe.flush()
        done: list[dict[str, Any]] = self._answer()
        return done

    def _answer(self) -> Any:
        line = _pipes(self._process)[1].readline()
        if not line:
            raise SystemExit(f"the engine {self.name!r} ended")
        return json.loads(line)


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    if process.stdin is None or process.stdout is None:
        raise SystemExit("a worker without pipes")
    return process.stdin, process.stdout


@contextmanager
def workers(names: Sequence[str]) -> Iterator[dict[str, Worker]]:
    """Start the engines of these variants, and end them."""
    with ExitStack() as stack:
        found = {}
        for name in names:
            command = [sys.executable, "-m", "benchmarks.determinism_tax", "--worker", name]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(process.wait)
            stack.callback(_pipes(process)[0].close)
            found[name] = Worker(name, process)
        yield found


def run_worker(name: str) -> None:
    """Read names of work, one a line; write what came of each, one JSON line."""
    from inference.vllm_engine import VllmEngine

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is talk
    config = VARIANTS[name]
    with VllmEngine.load(config, engines.existing_weights(config.model)) as engine:
        print(json.dumps(engine.identity.digest), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps([asdict(done) for done in WORKS[line.strip()](engine)]), file=answers, flush=True)


def compare(num_turns: int) -> list[dict[str, Any]]:
    """The ratios of `COMPARISONS`."""
    names = sorted({name for _, above, below, _, _ in COMPARISONS for name in (above, below)})
    works = list(dict.fromkeys(work for work, *_ in COMPARISONS))
    seconds: dict[tuple[str, str], list[float]] = {}
    bits: dict[tuple[str, str], set[str]] = {}
    with workers(names) as engines_by_name:
        for turn in range(num_turns):
            for work in works:
                for name, worker in engines_by_name.items():
                    (done,) = worker.do(work)
                    _talk(turn, work, name, done)
                    # for each token, since stock vLLM may end elsewhere
                    seconds.setdefault((work, name), []).append(done["wall_s"] / done["num_tokens"])
                    bits.setdefault((work, name), set()).add(done["bits"])
    for (work, name), found in bits.items():
        if name in IS_LANE and len(found) != 1:
            raise SystemExit(f"{name} gave {len(found)} different answers to {work}: these timings mean nothing")
    return [
        {
            "what": what,
            "work": work,
            "engine_identities": _identities(engines_by_name[above], engines_by_name[below]),
            "ratio": round(statistics.median(seconds[work, above]) / statistics.median(seconds[work, below]), 2),
            "target": target,
            "same_bits_as_the_lane": bits[work, above] == bits[work, below],
        }
        for work, above, below, what, target in COMPARISONS
    ]


def two_against_one(num_turns: int) -> dict[str, Any]:
    """Two engines of one thread against one engine of two, on the same sixteen projections."""
    work, ratios, bits = "eight projections at once", [], set()
    with workers(["lane", "lane, second process", "lane, two threads"]) as found, ThreadPoolExecutor(2) as pool:
        for turn in range(num_turns):
            started = time.perf_counter()
            pair = list(pool.map(lambda name: found[name].do(work), ["lane", "lane, second process"]))
            two_s = time.perf_counter() - started
            one = [found["lane, two threads"].do(work) for _ in range(2)]
            one_s = sum(done[0]["wall_s"] for done in one)
            bits |= {done[0]["bits"] for done in [*pair, *one]}
            ratios.append(one_s / two_s)
            print(f"turn {turn + 1}: two processes {two_s:.1f} s, two threads {one_s:.1f} s", file=sys.stderr)
    if len(bits) != 1:
        raise SystemExit("the engines of the lane gave different answers: these timings mean nothing")
    return {
        "what": "two engines of one thread against one of two threads",
        "work": work,
        "engine_identities": _identities(*found.values()),
        "ratio": round(statistics.median(ratios), 2),
        "target": TWO_AGAINST_ONE_TARGET,
        "same_bits_as_the_lane": True,
    }


def replays(num_turns: int) -> list[dict[str, Any]]:
    """R2 against R3 without speculation, and against R3 with it."""
    rows = []
    with workers(["lane", "lane, no features"]) as found:
        for work, target in REPLAYS.items():
            turns = [(found["lane, no features"].do(work), found["lane"].do(work)) for _ in range(num_turns)]
            plain_s, r3_s, r2_s = (
                statistics.median(done["wall_s"] for done in column)
                for column in ([t[0][0] for t in turns], [t[1][0] for t in turns], [t[1][1] for t in turns])
            )
            if len({done["bits"] for turn in turns for column in turn for done in column}) != 1:
                raise SystemExit(f"{work}: different answers with and without features: these timings mean nothing")
            last = turns[0][0][0]
            print(f"{work}: R3 plain {plain_s:.1f} s, R3 {r3_s:.1f} s, R2 {r2_s:.1f} s", file=sys.stderr)
            rows.append(
                {
                    "what": "R2 against plain R3",
                    "work": work,
                    "engine_identities": _identities(*found.values()),
                    "ratio": round(plain_s / r2_s, 2),
                    "target": target,
                    "ratio_to_r3_with_speculation": round(r3_s / r2_s, 2),
                    "num_prompt_tokens": last["num_prompt_tokens"],
                    "num_tokens": last["num_tokens"],
                    "same_bits_as_the_lane": True,
                }
            )
    return rows


def _identities(*compared: Worker) -> dict[str, str]:
    return {worker.name: worker.engine_identity for worker in compared}


def _talk(turn: int, work: str, name: str, done: Mapping[str, Any]) -> None:
    print(
        f"turn {turn + 1}: {work} on {name}: {done['wall_s']:.1f} s, {done['num_tokens']} tokens after "
        f"{done['num_prompt_tokens']}",
        file=sys.stderr,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", choices=["compare", "two", "replays"])
    parser.add_argument("--worker", choices=VARIANTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        run_worker(arguments.worker)
        return
    rows: list[dict[str, Any]] = []
    if arguments.only in (None, "compare"):
        rows += compare(arguments.turns)
    if arguments.only in (None, "two"):
        rows.append(two_against_one(arguments.turns))
    if arguments.only in (None, "replays"):
        rows += replays(1)
    for row in rows:
        row["is_target_met"] = None if row["target"] is None else row["ratio"] >= row["target"]
    command = shlex.join(["python", "-m", "benchmarks.determinism_tax", *sys.argv[1:]])
    print(json.dumps({"command": command, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
