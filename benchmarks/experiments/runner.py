"""Runs the jobs of an experiment into a results folder: several at a time, resumable, with progress.

A row is written when its job is done, so that a killed run loses what was in flight and nothing else; begun again with
the same parameters it does what is left. Jobs are independent, and an answer does not depend on its neighbours, so the
rows of eight jobs at a time are those of one at a time, in another order of lines.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from baseline.record import baseline_template_digest
from benchmarks.experiments.answers import Answer, Job, build_row, run_job, verify_rows
from projection.engine import Engine
from projection.view_grammar import Profile
from reporting.journal import Journal, Recorded

SCHEMA_VERSION = 1
SCORER_VERSION = 1  # raise it when a formula changes: rows of two formulas cannot be in one table
QUALITY, COST, SCALING = "dpm.bench.quality", "dpm.bench.cost", "dpm.bench.scaling"
JUDGE, FAILURES = "dpm.bench.judge", "dpm.bench.failures"
J = TypeVar("J")


class Progress(Protocol):
    """Told how far a run is, from several threads."""

    def begin(self, total_work: float, done_work: float) -> None:
        """Once, before the first job; `done_work` was done by an earlier run."""

    def advance(self, work: float) -> None:
        """Some work was done."""

    def tell(self, row: Mapping[str, Any]) -> None:
        """A row was written."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all jobs of a run share."""

    engine: Engine
    profile: Profile
    directory: Path


def run_parameters(setting: Setting) -> dict[str, Any]:
    """What must be equal for rows to stand in one file: the engine, the prompts and grammars, the formulas."""
    return {
        "engine_identity": setting.engine.identity.digest,
        "identity": dict(setting.engine.identity.fields),
        "slot_candidates": setting.profile.slot_candidates,
        "template_digest": baseline_template_digest(),
        "scorer_version": SCORER_VERSION,
    }


def run_experiment(
    schema: str,
    jobs: Sequence[Job],
    setting: Setting,
    progress: Progress,
    *,
    concurrency: int,
    measure: Callable[[Job, Callable[[], Answer]], tuple[Answer, dict[str, Any]]] = lambda _job, run: (run(), {}),
) -> Recorded:
    """Run every job that has no row yet, and return all rows of the folder.

    measure: runs a job and returns its answer with further columns; for experiments that take the time.

    Raises:
        JournalError: the folder holds rows of another experiment, engine, prompt or formula, or is in use.
        RequestError: a row of the folder is of another engine than its header.
        EngineError: the engine failed; rows that were done are kept.
    """
    with Journal.open(
        setting.directory, schema=schema, version=SCHEMA_VERSION, parameters=run_parameters(setting)
    ) as journal:
        verify_rows(setting.directory, Recorded(journal.parameters, journal.rows))
        left, stop = [job for job in jobs if not journal.is_done(job.key)], threading.Event()
        total = sum(job.work for job in jobs)
        progress.begin(total, total - sum(job.work for job in left))

        def run_one(job: Job) -> None:
            ticker = _Ticker(job, progress, stop)
            answer, further = measure(job, lambda: run_job(job, setting.engine, setting.profile, ticker.on_call))
            row = {**build_row(job, answer, setting.engine.identity.digest), **further}
            journal.append(job.key, row)
            ticker.finish()
            progress.tell(row)

        run_all(left, run_one, concurrency, stop)
        return Recorded(journal.parameters, journal.rows)


class _StoppedError(Exception):
    """This job is given up, because the run has ended."""


def run_all(jobs: Sequence[J], run_one: Callable[[J], None], concurrency: int, stop: threading.Event) -> None:
    """All jobs, `concurrency` at a time, in their order. After an error or an interrupt `stop` is set, and no other
    begins."""
    if concurrency == 1:
        for job in jobs:
            run_one(job)
        return

    def run_or_stop_all(job: J) -> None:
        try:
            run_one(job)
        except _StoppedError:
            return
        except BaseException:
            stop.set()  # at once, and not when the waiting thread wakes up
            raise

    pool = ThreadPoolExecutor(max_workers=concurrency)
    try:
        running: list[Future[None]] = [pool.submit(run_or_stop_all, job) for job in jobs]
        done, _ = wait(running, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


class _Ticker:
    """Turns the calls of one job into progress that adds up to the job's work, and ends a job that nobody waits for."""

    def __init__(self, job: Job, progress: Progress, stop: threading.Event) -> None:
        self._stop = stop
        self._left = job.work
        self._step = job.work / (job.expected_calls + 1)
        self._progress = progress
        self._lock = threading.Lock()

    def on_call(self) -> None:
        if self._stop.is_set():
            raise _StoppedError
        self._advance(self._step)

    def finish(self) -> None:
        self._advance(self._left)

    def _advance(self, work: float) -> None:
        with self._lock:
            step = min(work, self._left)
            self._left -= step
        self._progress.advance(step)
