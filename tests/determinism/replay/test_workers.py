"""Replaying a whole log with several at a time: threads, engines that fail on a record, and processes that end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from determinism.near_ties import Limit
from determinism.replay.outcome import Outcome
from determinism.replay.plan import Job, Plan
from determinism.replay.run import Run, read_audit_heads, read_run, replay_all
from determinism.replay.workers import lanes_of, process_lanes, replay_job, tools_of
from inference.scripted_engine import ScriptedEngine
from projection.engine import EngineIdentity, Score
from projection.entry import Entry, Stream
from projection.errors import ConfigurationError, EngineError, PromptTooLongError
from tests.determinism.plain_config import PLAIN
from tests.determinism.replay.sealed_log import (
    AUDIT,
    CountedEngine,
    not_best,
    replayed,
    rows_of,
    scratch_record,
    seal_many,
    with_replays,
)
from tests.projection.decided import EditedStore, seal


def test_records_are_read_one_at_a_time(store: EditedStore, tmp_path: Path) -> None:
    """Never more than one record for each that is being replayed, however long the log is."""
    seal_many(store, scratch_record(store), 19)
    store.edited_stream = AUDIT
    drawn: list[int] = []
    entries = store.entries

    def counted(stream: Stream, *, after: int = 0, up_to: int | None = None) -> Iterator[Entry]:
        for entry in entries(stream, after=after, up_to=up_to):
            if up_to is not None and stream == AUDIT:
                drawn.append(entry.position)
            yield entry

    num_done = 0

    def one(job: Job) -> Outcome:
        nonlocal num_done
        assert len(drawn) - num_done == 1
        num_done += 1
        return replay_job(job, tools_of(ScriptedEngine()), Limit())

    store.entries = counted  # type: ignore[method-assign]
    assert with_replays(store, tmp_path, [one]).num_records == 20


def test_several_engines_work_at_the_same_time(store: EditedStore, tmp_path: Path) -> None:
    """Each thread waits in its first score until all four are there: one after the other they would wait for ever."""
    seal_many(store, scratch_record(store), 7)
    together, seen = threading.Barrier(4, timeout=60), threading.local()

    class Waiting(CountedEngine):
        def score(self, *arguments: Any) -> Score:
            if not hasattr(seen, "is_known"):
                seen.is_known = True
                together.wait()
            return super().score(*arguments)

    engines = [Waiting(), Waiting()]
    lanes = lanes_of(engines, 2, Limit())
    run = Run(Plan(), read_audit_heads(store, None), lanes.engine_identity)
    tally = replay_all(store, run, lanes.replays, tmp_path, lambda _done, _total: None)
    assert tally.verdicts == {"PASS": 8}
    assert all(engine.num_scored >= 2 for engine in engines)


class Renamed(ScriptedEngine):
    @property
    def identity(self) -> EngineIdentity:
        return EngineIdentity({**super().identity.fields, "device": {"kind": "another"}})


def test_engines_of_several_identities_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be one engine"):
        lanes_of([ScriptedEngine(), Renamed()], 1, Limit())


class Fussy(CountedEngine):
    """Fails on every second record, and goes on answering."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error, self._num_asked = error, 0

    def score(self, *arguments: Any) -> Score:
        self._num_asked += len(arguments[1]) > 1
        if self._num_asked % 4 == 3:
            self._num_asked += 1
            raise self._error
        return super().score(*arguments)


@pytest.mark.parametrize("error", [EngineError("two are equally likely"), PromptTooLongError("too long")], ids=str)
def test_a_record_that_an_engine_cannot_take_is_an_error_and_the_run_goes_on(
    store: EditedStore, tmp_path: Path, error: Exception
) -> None:
    seal_many(store, scratch_record(store), 5)
    tally = replayed(store, tmp_path, engine=Fussy(error), in_flight=1)
    assert (tally.verdicts, tally.exit_code) == ({"PASS": 3, "ERROR": 3}, 4)
    assert {row["error"] for row in tally.listed} == {str(error)}


def test_engines_in_processes_of_their_own_replay_too(store: EditedStore, tmp_path: Path) -> None:
    record = scratch_record(store)
    seal_many(store, record, 5)
    seal(store, not_best(record))
    with process_lanes(2, "scripted", PLAIN, 2, Limit()) as lanes:
        assert len(lanes.replays) == 4
        tally = with_replays(store, tmp_path, lanes.replays, lanes.engine_identity)
    assert tally.verdicts == {"PASS": 6, "DRIFT": 1}
    assert active_children() == []


def test_an_engine_that_cannot_be_started_in_its_process_is_named() -> None:
    with (
        pytest.raises(ConfigurationError, match="there is no engine 'other'"),
        process_lanes(1, "other", PLAIN, 1, Limit()),
    ):
        pass
    assert active_children() == []


def test_a_process_that_ends_by_itself_ends_the_run_and_keeps_what_was_finished(
    store: EditedStore, tmp_path: Path
) -> None:
    seal_many(store, scratch_record(store), 5)
    with process_lanes(1, "scripted", PLAIN, 1, Limit()) as lanes:
        (process,) = active_children()

        def killing(job: Job) -> Outcome:
            if job.place.position == 4:
                process.kill()
                process.join()
            return lanes.replays[0](job)

        with pytest.raises(EngineError, match="ended by itself"):
            with_replays(store, tmp_path, [killing], lanes.engine_identity)
    assert sorted(rows_of(tmp_path)) == [1, 2, 3]
    assert read_run(tmp_path).engine_identity == ScriptedEngine().identity.digest
