"""Replay of a whole log: every sealed record up to a level, the doubtful ones and a sample of the rest up to R3.

Owns the run and its results folder. Promises that a run is about the log as it was when it began; that records are read
one after the other and never held together; that a run which continues asks no engine about a finished record again,
and holds it at R0 again, since the log may have been changed meanwhile: then the record is a DRIFT, whatever its row
says; and that each audit stream's chain is verified as a whole, once, before its records. `replay.plan` owns what is
replayed, `replay.workers` and `replay.ray_workers` own the engines.

In the folder, `rows.jsonl` has one row for each segment of an audit stream, and each segment has a folder of its own
with one row for each record.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from determinism.replay.outcome import Outcome, Place, Tally
from determinism.replay.plan import Job, Plan, find_jobs
from projection.canonical import value_digest
from projection.case import find_chain_break
from projection.entry import Head, Stream
from projection.events import AUDIT_CASE_ID
from projection.log import Store
from projection.replay import Divergence
from reporting.journal import Journal, Row, read_journal

SCHEMA = "dpm/replay-all"
SEGMENT_SCHEMA = "dpm/replay-all-segment"
VERSION = 1
SEGMENT_RECORDS = 10_000

Replay = Callable[[Job], Outcome]
"""Replays one record on an engine. One thread calls it; an engine with several in flight has several of them."""

Watch = Callable[[int, int], None]
"""Told how many records are done, those of an earlier run included, and how many there are; called by any thread."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a run is about. heads: of the audit streams as it began. engine_identity: None where no engine is asked."""

    plan: Plan
    heads: Mapping[str, Head]
    engine_identity: str | None

    def parameters(self) -> dict[str, Any]:
        """As the folder keeps it: a run that continues must have the same."""
        heads = {tenant: [head.position, head.entry_hash] for tenant, head in self.heads.items()}
        return {"plan": self.plan.to_value(), "heads": heads, "engine_identity": self.engine_identity}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Self:
        heads = {tenant: Head(*head) for tenant, head in parameters["heads"].items()}
        return cls(Plan.from_value(parameters["plan"]), heads, parameters["engine_identity"])


def read_audit_heads(store: Store, tenant_id: str | None) -> dict[str, Head]:
    """The heads of the audit streams, by tenant."""
    audits = [stream for stream in store.streams() if stream.case_id == AUDIT_CASE_ID]
    return {s.tenant_id: store.head(s) for s in audits if tenant_id in (None, s.tenant_id)}


def read_run(directory: Path) -> Run:
    """What the run in a folder is about, so that it can be continued.

    Raises:
        NotFoundError: there is none. JournalError: the folder holds something else.
    """
    return Run.from_parameters(read_journal(directory, schema=SCHEMA, version=VERSION).parameters)


@dataclass(frozen=True, slots=True)
class _Segment:
    """A stretch of one audit stream: the positions after < position <= up_to."""

    stream: Stream
    after: int
    up_to: int

    @property
    def key(self) -> str:
        return f"{self.stream.tenant_id}:{self.after + 1}-{self.up_to}"

    @property
    def folder(self) -> str:
        """A file name, whatever the tenant is called."""
        return f"segment-{value_digest('dpm/replay-segment/v1', self.key)[:16]}"


def _segments(heads: Mapping[str, Head]) -> Iterator[_Segment]:
    for tenant_id, head in sorted(heads.items()):
        for after in range(0, head.position, SEGMENT_RECORDS):
            yield _Segment(Stream(tenant_id, AUDIT_CASE_ID), after, min(after + SEGMENT_RECORDS, head.position))


def replay_all(store: Store, run: Run, replays: Sequence[Replay], directory: Path, watch: Watch) -> Tally:
    """Replay what the folder does not hold yet, and count all of it.

    Raises:
        JournalError: another run is at work in the folder, or it holds a run about something else.
        EngineError: an engine failed; what was finished is kept. StorageError: log or folder cannot be used.
    """
    progress = _Progress(watch, sum(head.position for head in run.heads.values()))
    breaks: dict[Stream, Divergence | None] = {}
    with Journal.open(directory, schema=SCHEMA, version=VERSION, parameters=run.parameters()) as segments:
        total = Tally()
        for segment in _segments(run.heads):
            stream = segment.stream
            if stream not in breaks:
                breaks[stream] = find_chain_break(store, stream, run.heads[stream.tenant_id], "audit stream")
            tally = _replay_segment(store, run, segment, breaks[stream], replays, directory, progress)
            if not segments.is_done(segment.key):
                segments.append(segment.key, tally.to_value())
            total += tally
        return total


def _replay_segment(
    store: Store,
    run: Run,
    segment: _Segment,
    audit_break: Divergence | None,
    replays: Sequence[Replay],
    directory: Path,
    progress: _Progress,
) -> Tally:
    parameters = {"segment": segment.key, **run.parameters()}
    with Journal.open(
        directory / segment.folder, schema=SEGMENT_SCHEMA, version=VERSION, parameters=parameters
    ) as rows:
        kept = rows.rows
        progress.add(len(kept))
        found = find_jobs(
            store,
            segment.stream,
            segment.after,
            segment.up_to,
            run.plan,
            audit_break,
            lambda at: row_key(at) in kept,
        )
        broken = _unreadable(kept, audit_break) if audit_break else {}
        changed = _work_off(_Jobs(found, progress), replays, rows, progress)
        return Tally.of_rows({**rows.rows, **broken, **changed}.values())


def _unreadable(kept: Mapping[str, Row], audit_break: Divergence) -> dict[str, Row]:
    """Rows for records that were done before their stream was broken; some may be gone from it."""
    places = {key: Place(*(row[name] for name in Place._fields)) for key, row in kept.items()}
    return {key: Outcome.unreadable(place, audit_break).to_row() for key, place in places.items()}


def _work_off(jobs: _Jobs, replays: Sequence[Replay], rows: Journal, progress: _Progress) -> dict[str, Row]:
    """One thread for each replay; the first error stops them all, after the record that each is at.

    Returns new rows, which are not kept, of records that were done already and do not hold any more.
    """
    stop = threading.Event()
    changed: dict[str, Row] = {}

    def work(replay: Replay) -> None:
        while not stop.is_set() and (job := jobs.take()) is not None:
            outcome = job if isinstance(job, Outcome) else replay(job)
            key = row_key(outcome.place.position)
            if not rows.is_done(key):
                rows.append(key, outcome.to_row())
                progress.add(1)
            elif outcome.verdict != "PASS":
                changed[key] = outcome.to_row()

    with ThreadPoolExecutor(len(replays)) as pool:
        working = [pool.submit(work, replay) for replay in replays]
        try:
            for done in as_completed(working):
                done.result()
        finally:
            stop.set()
    return changed


def row_key(position: int) -> str:
    """The key of a record's row in its segment's folder."""
    return str(position)


class _Jobs:
    """Jobs for several threads, read one at a time; what the plan passes by is only counted."""

    def __init__(self, found: Iterator[Job | Outcome | None], progress: _Progress) -> None:
        self._found, self._progress = found, progress
        self._lock = threading.Lock()

    def take(self) -> Job | Outcome | None:
        """The next one; None when there is no more."""
        with self._lock:
            for job in self._found:
                if job is not None:
                    return job
                self._progress.add(1)
            return None


class _Progress:
    """Counts what is done, for several threads."""

    def __init__(self, watch: Watch, num_records: int) -> None:
        self._watch, self._num_records = watch, num_records
        self._num_done = 0
        self._lock = threading.Lock()

    def add(self, num_done: int) -> None:
        with self._lock:
            self._num_done += num_done
            self._watch(self._num_done, self._num_records)
