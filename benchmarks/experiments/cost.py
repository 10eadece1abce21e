"""Experiment 1's second half: what an answer costs (paper, Table 2), and what an auditor must keep of it (Table 4).

Runs one job at a time on an engine that does nothing else, so that wall seconds are those of the answer. Dollars are
tokens times a stated price; nothing here was billed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from baseline.retrieval import load_bm25
from benchmarks.experiments.answers import Answer, Job
from benchmarks.experiments.rows import BASE, ResultRow, count_range, group_by, mean_count, ordered_architectures
from benchmarks.experiments.runner import COST, Progress, Setting, run_experiment
from inference.counters import CountedEngine
from projection.engine import Engine
from reporting.journal import Recorded

PROMPT_USD, COMPLETION_USD = 1.0, 5.0  # for a million tokens; the list price of the paper's model


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens; nobody was billed."""

    prompt_usd: float = PROMPT_USD
    completion_usd: float = COMPLETION_USD

    def of(self, row: ResultRow) -> float:
        """Dollars of one answer."""
        prompt, completion = row.counts["num_prompt_tokens"], row.counts["num_completion_tokens"]
        return (prompt * self.prompt_usd + completion * self.completion_usd) / 1_000_000


@dataclass(frozen=True, slots=True)
class CostLine:
    """What one architecture costs at one size and ratio: means over its answers that were scored, None without one.

    num_answers: all, those included that were not scored; a refusal takes no time, and would look cheap.
    speedup: mean wall seconds / those of DPM on the same cases; None for DPM itself or without such cases.
    """

    size: str
    ratio: Fraction
    architecture: str
    num_answers: int
    num_not_scored: int
    wall_s: float | None
    engine_s: float | None
    num_calls: float | None
    num_prompt_tokens: float | None
    num_completion_tokens: float | None
    num_cached_tokens: float | None
    num_bytes: float | None
    usd: float | None
    speedup: float | None
    engine_speedup: float | None


@dataclass(frozen=True, slots=True)
class SurfaceLine:
    """What must be kept of one architecture's decisions at one size: calls as ranges, bytes as means."""

    size: str
    architecture: str
    num_answers: int
    memory_calls: str
    decision_calls: int
    total_calls: str
    num_prompt_bytes: float
    num_completion_bytes: float


def run_cost(jobs: Sequence[Job], setting: Setting, progress: Progress, *, schema: str = COST) -> Recorded:
    """Run every job without a row, alone; raises as `run_experiment`."""
    if any(job.architecture.name == "retrieval" for job in jobs):
        load_bm25()  # so that no answer's seconds hold its import
    return run_experiment(schema, jobs, setting, progress, concurrency=1, measure=Stopwatch(setting.engine).measure)


class Stopwatch:
    """Times one job after the other on an engine that nobody else uses meanwhile."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def measure(self, _job: Job, run: Callable[[], Answer]) -> tuple[Answer, dict[str, Any]]:
        """The answer, with its seconds and the tokens that the engine's prefix cache spared it."""
        before, started = self._num_cached(), time.perf_counter()
        answer = run()
        wall_s, after = time.perf_counter() - started, self._num_cached()
        num_cached_tokens = None if before is None or after is None else after - before
        times = {"wall_s": wall_s, "engine_s": answer.meter.engine_s}
        return answer, {"times": times, "num_cached_tokens": num_cached_tokens}

    def _num_cached(self) -> int | None:
        return self._engine.counters().num_cached_tokens if isinstance(self._engine, CountedEngine) else None


def compare_cost(rows: Sequence[ResultRow], price: Price) -> list[CostLine]:
    """Table 2: by size, ratio (tightest first) and architecture (DPM first)."""
    lines = []
    for (size, ratio), group in _sorted_groups(rows):
        base = {row.pair: row for row in group if row.architecture == BASE and row.status == "scored"}
        for architecture in ordered_architectures(group):
            own = [row for row in group if row.architecture == architecture]
            lines.append(_cost_line(size, ratio, architecture, own, base, price))
    return lines


def audit_surface(rows: Sequence[ResultRow]) -> list[SurfaceLine]:
    """Table 4, over the answers that were scored: every call's prompt and completion is something to keep."""
    scored = [row for row in rows if row.status == "scored"]
    lines = []
    for size, of_size in group_by(scored, lambda row: row.size).items():
        for architecture in ordered_architectures(of_size):
            own = [row for row in of_size if row.architecture == architecture]
            lines.append(
                SurfaceLine(
                    size=size,
                    architecture=architecture,
                    num_answers=len(own),
                    memory_calls=count_range(own, "num_memory_calls"),
                    decision_calls=1,
                    total_calls=count_range(own, "num_calls"),
                    num_prompt_bytes=mean_count(own, "num_prompt_bytes"),
                    num_completion_bytes=mean_count(own, "num_completion_bytes"),
                )
            )
    return lines


def _sorted_groups(rows: Sequence[ResultRow]) -> list[tuple[tuple[str, Fraction], list[ResultRow]]]:
    groups = group_by(rows, lambda row: (row.size, row.ratio))
    return sorted(groups.items(), key=lambda item: (item[0][0], -item[0][1]))


def _cost_line(
    size: str,
    ratio: Fraction,
    architecture: str,
    own: Sequence[ResultRow],
    base: dict[tuple[str, str], ResultRow],
    price: Price,
) -> CostLine:
    scored = [row for row in own if row.status == "scored"]
    cached = [row.num_cached_tokens for row in scored if row.num_cached_tokens is not None]
    return CostLine(
        size=size,
        ratio=ratio,
        architecture=architecture,
        num_answers=len(own),
        num_not_scored=len(own) - len(scored),
        wall_s=_mean(row.times["wall_s"] for row in scored),
        engine_s=_mean(row.times["engine_s"] for row in scored),
        num_calls=_mean(row.counts["num_calls"] for row in scored),
        num_prompt_tokens=_mean(row.counts["num_prompt_tokens"] for row in scored),
        num_completion_tokens=_mean(row.counts["num_completion_tokens"] for row in scored),
        num_cached_tokens=_mean(cached) if len(cached) == len(scored) else None,
        num_bytes=_mean(row.counts["num_prompt_bytes"] + row.counts["num_completion_bytes"] for row in scored),
        usd=_mean(price.of(row) for row in scored),
        speedup=None if architecture == BASE else _ratio_of_times(scored, base, "wall_s"),
        engine_speedup=None if architecture == BASE else _ratio_of_times(scored, base, "engine_s"),
    )


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None


def _ratio_of_times(scored: Sequence[ResultRow], base: dict[tuple[str, str], ResultRow], name: str) -> float | None:
    """Seconds of these answers / DPM's seconds on the same cases; only cases that both scored count."""
    pairs = [(row, base[row.pair]) for row in scored if row.pair in base]
    ours = sum(other.times[name] for _, other in pairs)
    return sum(row.times[name] for row, _ in pairs) / ours if ours > 0 else None
