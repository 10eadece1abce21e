"""Replaying a whole log: cut off and continued, nothing is done twice, and it is about the log as it was at first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from determinism.near_ties import Limit
from determinism.replay import run as replay_run
from determinism.replay.outcome import Outcome
from determinism.replay.plan import Job, Plan
from determinism.replay.run import read_audit_heads, read_run, replay_all
from determinism.replay.workers import lanes_of, replay_job, tools_of
from inference.scripted_engine import ScriptedEngine
from projection.engine import Score
from projection.errors import EngineError
from reporting.journal import JournalError
from tests.determinism.replay.sealed_log import (
    AUDIT,
    CountedEngine,
    replayed,
    rows_of,
    scratch_record,
    seal_many,
    with_replays,
)
from tests.projection.decided import EditedStore

ROOT = Path(__file__).parents[3]


class DyingEngine(CountedEngine):
    """Answers so many scores, and then nothing any more."""

    def __init__(self, num_scores: int) -> None:
        super().__init__()
        self._num_left = num_scores

    def score(self, *arguments: Any) -> Score:
        if self._num_left == 0:
            raise EngineError("the engine is gone")
        self._num_left -= 1
        return super().score(*arguments)


def test_a_run_whose_engine_died_continues_without_repeating_a_record(store: EditedStore, tmp_path: Path) -> None:
    seal_many(store, scratch_record(store), 9)
    with pytest.raises(EngineError, match="gone"):
        replayed(store, tmp_path, engine=DyingEngine(8), in_flight=1)
    assert len(rows_of(tmp_path)) == 4
    engine = CountedEngine()
    tally = replayed(store, tmp_path, engine=engine)
    assert tally.verdicts == {"PASS": 10}
    assert engine.num_scored == 2 * 6


KILLED = """
import os, signal, sys
from pathlib import Path
from inference.scripted_engine import ScriptedEngine
from tests.determinism.replay.sealed_log import CountedEngine, replayed
from projection.store_sqlite import SqliteStore

class Killed(CountedEngine):
    def score(self, *arguments):
        if self.num_scored == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().score(*arguments)

with SqliteStore.open_read_only(sys.argv[1]) as store:
    tally = replayed(store, Path(sys.argv[2]), engine=Killed(), in_flight=1)
print(tally.verdicts)
"""


def test_a_killed_run_continues_without_repeating_a_finished_record(tmp_path: Path) -> None:
    from projection.store_sqlite import SqliteStore
    from tests.projection.decided import fill_case

    with SqliteStore.open(tmp_path / "log.sqlite") as log:
        fill_case(log)
        seal_many(log, scratch_record(log), 11)

    def run(num_scores: int) -> subprocess.CompletedProcess[str]:
        places = [str(tmp_path / name) for name in ("log.sqlite", "results")]
        command = [sys.executable, "-c", KILLED, *places, str(num_scores)]
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    for num_rows in (5, 10):
        assert run(2 * 5).returncode == -signal.SIGKILL
        assert len(rows_of(tmp_path / "results")) == num_rows
    done = run(1000)
    assert done.stdout == "{'PASS': 12}\n", done.stderr
    assert sorted(rows_of(tmp_path / "results")) == list(range(1, 13))


def test_two_runs_on_one_folder_are_refused(store: EditedStore, tmp_path: Path) -> None:
    scratch_record(store)
    refused: list[JournalError] = []

    def intrude(job: Job) -> Outcome:
        with pytest.raises(JournalError, match="another run is writing") as caught:
            replayed(store, tmp_path)
        refused.append(caught.value)
        return replay_job(job, tools_of(ScriptedEngine()), Limit())

    with_replays(store, tmp_path, [intrude], ScriptedEngine().identity.digest)
    assert [error.fields["cause"] for error in refused] == ["in_use"]


def test_a_run_on_another_engine_does_not_continue(store: EditedStore, tmp_path: Path) -> None:
    scratch_record(store)
    replayed(store, tmp_path)
    with pytest.raises(JournalError, match="engine_identity"):
        replayed(store, tmp_path, engine=ScriptedEngine(max_model_len=100_000))


def test_a_run_is_about_the_log_as_it_was_when_it_began(store: EditedStore, tmp_path: Path) -> None:
    record = scratch_record(store)
    replayed(store, tmp_path)
    seal_many(store, record, 3)
    lanes = lanes_of([CountedEngine()], 1, Limit())
    tally = replay_all(store, read_run(tmp_path), lanes.replays, tmp_path, lambda _done, _total: None)
    assert tally.num_records == 1
    assert replayed(store, tmp_path / "anew").num_records == 4


def test_a_log_that_was_rewritten_between_two_parts_of_a_run_is_found(store: EditedStore, tmp_path: Path) -> None:
    seal_many(store, scratch_record(store), 3)
    with pytest.raises(EngineError):
        replayed(store, tmp_path, engine=DyingEngine(2), in_flight=1)
    store.edited_stream, store.edit = AUDIT, lambda rows: rows[:2]
    lanes = lanes_of([CountedEngine()], 1, Limit())
    tally = replay_all(store, read_run(tmp_path), lanes.replays, tmp_path, lambda _done, _total: None)
    assert tally.verdicts == {"DRIFT": 2}  # the one of before, and what is left of the log
    assert tally.exit_code == 1


@pytest.mark.parametrize("num_scores", [2 * 2, 2 * 9])
def test_a_finished_record_whose_case_was_rewritten_since_drifts(
    store: EditedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_scores: int
) -> None:
    """Whether its segment was finished or not, and though no engine is asked again."""
    monkeypatch.setattr(replay_run, "SEGMENT_RECORDS", 4)
    seal_many(store, scratch_record(store), 9)
    with pytest.raises(EngineError):
        replayed(store, tmp_path, engine=DyingEngine(num_scores), in_flight=1)
    kept = rows_of(tmp_path)
    assert {row["verdict"] for row in kept.values()} == {"PASS"}
    store.edit = lambda rows: rows[1:]
    engine = CountedEngine()
    tally = replayed(store, tmp_path, engine=engine)
    assert (tally.verdicts, engine.num_scored) == ({"DRIFT": 10}, 0)
    assert kept.items() <= rows_of(tmp_path).items()


def test_a_plan_survives_its_folder(store: EditedStore, tmp_path: Path) -> None:
    scratch_record(store)
    plan = Plan("R3", "2020-01-01T00:00:00Z", "acme", 5, 3, Limit(7, 0.25))
    replayed(store, tmp_path, plan)
    run = read_run(tmp_path)
    assert run.plan == plan
    assert run.heads == read_audit_heads(store, "acme")


def test_segments_that_are_finished_are_not_opened_again(
    store: EditedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_run, "SEGMENT_RECORDS", 4)
    seal_many(store, scratch_record(store), 9)
    with pytest.raises(EngineError):
        replayed(store, tmp_path, engine=DyingEngine(2 * 9), in_flight=1)
    assert len(list(tmp_path.glob("segment-*"))) == 3
    engine = CountedEngine()
    seen: list[tuple[int, int]] = []
    tally = replayed(store, tmp_path, engine=engine, watch=lambda *progress: seen.append(progress))
    assert (tally.verdicts, engine.num_scored) == ({"PASS": 10}, 2)
    assert (seen[0], seen[-1]) == ((4, 10), (10, 10))
    assert len(rows_of(tmp_path)) == 10
