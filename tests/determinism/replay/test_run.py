"""Replaying a whole log: every record once, the doubtful ones deeper, and nothing twice however often it is cut off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from determinism.near_ties import Limit
from determinism.replay import run as replay_run
from determinism.replay.outcome import Outcome, Tally
from determinism.replay.plan import Job, Plan
from determinism.replay.run import Run, read_audit_heads, read_run, replay_all
from determinism.replay.workers import lanes_of, lanes_without_engine, process_lanes, replay_job, tools_of
from inference.scripted_engine import ScriptedEngine, ScriptedTokenizer
from projection.engine import EngineIdentity, Score
from projection.entry import Entry, Stream
from projection.errors import ConfigurationError, EngineError, PromptTooLongError, RequestError
from projection.replay import ReplayTools
from reporting.journal import JournalError
from tests.determinism.plain_config import PLAIN
from tests.determinism.replay.sealed_log import (
    CountedEngine,
    WobblyEngine,
    filled_store,
    near_tied,
    not_best,
    of_another_engine,
    replayed,
    scratch_record,
    seal_many,
    with_replays,
)
from tests.projection.decided import EditedStore, seal, seal_text

ROOT = Path(__file__).parents[3]
AUDIT = Stream("acme", "audit")


@pytest.fixture
def store() -> EditedStore:
    return filled_store()


def rows_of(directory: Path) -> dict[int, dict[str, Any]]:
    """Every row of every segment, by position; a row that stands twice is a failure."""
    rows: dict[int, dict[str, Any]] = {}
    for file in sorted(directory.glob("segment-*/rows.jsonl")):
        for line in file.read_text().splitlines()[1:]:
            row = json.loads(line)["row"]
            assert row["position"] not in rows
            rows[row["position"]] = row
    return rows


# What is found


def test_a_log_that_holds_passes_with_its_bound(store: EditedStore, tmp_path: Path) -> None:
    seal_many(store, scratch_record(store), 18)
    tally = replayed(store, tmp_path)
    assert (tally.verdicts, tally.exit_code) == ({"PASS": 19}, 0)
    assert tally.drift_rate_bound == pytest.approx(1 - 0.05 ** (1 / 19), abs=1e-9)
    assert sorted(rows_of(tmp_path)) == list(range(1, 20))


def test_each_kind_of_record_comes_to_its_own_verdict(store: EditedStore, tmp_path: Path) -> None:
    record = scratch_record(store)
    drifting, other = seal(store, not_best(record)), seal(store, of_another_engine(record))
    nothing = seal_text(store, "no record at all")
    tally = replayed(store, tmp_path)
    assert (tally.verdicts, tally.exit_code) == ({"DRIFT": 2, "INCOMPARABLE": 1, "PASS": 1}, 1)
    listed = {row["record_id"]: row for row in tally.listed}
    assert set(listed) == {drifting, other, nothing}
    found = listed[drifting]["first_divergence"]
    assert (found["level"], found["what"], found["call"]) == ("R2", "max_tokens", "decision")
    assert listed[nothing]["levels"] == {"R0": "DRIFT"}


EXIT_CODES: dict[str, tuple[list[str], int]] = {
    "all hold": (["PASS"], 0),
    "one drifts": (["PASS", "DRIFT", "INCOMPARABLE", "ERROR"], 1),
    "the engine failed on one": (["PASS", "INCOMPARABLE", "ERROR"], 4),
    "one is incomparable": (["PASS", "INCOMPARABLE"], 3),
    "there is no record": ([], 5),
}


@pytest.mark.parametrize(("verdicts", "code"), EXIT_CODES.values(), ids=EXIT_CODES.keys())
def test_the_exit_code_says_the_worst(verdicts: Sequence[str], code: int) -> None:
    rows: list[dict[str, Any]] = [{"verdict": v, "levels": {}, "cross_identity": None} for v in verdicts]
    assert Tally.of_rows(rows).exit_code == code


def test_an_empty_log_comes_to_nothing(store: EditedStore, tmp_path: Path) -> None:
    tally = replayed(store, tmp_path)
    assert (tally.num_records, tally.drift_rate_bound, tally.exit_code) == (0, None, 5)


def test_a_record_of_another_engine_comes_with_evidence_and_stays_incomparable(
    store: EditedStore, tmp_path: Path
) -> None:
    record = scratch_record(store)
    seal(store, of_another_engine(record))
    num_tokens = len(record.content.projection.token_ids) + len(record.content.decision_call.token_ids)
    tally = replayed(store, tmp_path)
    assert tally.verdicts == {"INCOMPARABLE": 1, "PASS": 1}
    assert (tally.num_positions, tally.num_agreeing) == (num_tokens, num_tokens)
    evidence = tally.listed[0]["cross_identity"]
    assert evidence["engine_identity"] == ScriptedEngine().identity.digest
    assert evidence["disagreements"] == []


def test_a_broken_audit_stream_is_drift_for_all_of_its_records(store: EditedStore, tmp_path: Path) -> None:
    seal_many(store, scratch_record(store), 4)
    store.edited_stream = AUDIT

    def edit(rows: list[Entry]) -> list[Entry]:
        return [*rows[:3], replace(rows[3], payload=(rows[3].payload or b"") + b" "), *rows[4:]]

    store.edit = edit
    engine = CountedEngine()
    tally = replayed(store, tmp_path, engine=engine)
    assert (tally.verdicts, engine.num_scored) == ({"DRIFT": 5}, 0)
    assert {row["first_divergence"]["index"] for row in tally.listed} == {4}


# How far


def test_near_ties_go_up_to_r3_and_the_others_do_not(store: EditedStore, tmp_path: Path) -> None:
    """The margin of the forged near-tie is not what the engine says, which only R3 can find."""
    record = scratch_record(store)
    tied = seal(store, near_tied(record))
    engine = CountedEngine()
    tally = replayed(store, tmp_path, engine=engine)
    assert (tally.verdicts, tally.num_generated) == ({"DRIFT": 1, "PASS": 1}, 1)
    assert (tally.listed[0]["record_id"], tally.listed[0]["because"]) == (tied, "near_tie")
    assert tally.listed[0]["first_divergence"]["what"] == "margins"
    assert engine.num_generated == 1


def test_a_wobbly_engine_is_found_by_a_sample_and_not_without(store: EditedStore, tmp_path: Path) -> None:
    seal_many(store, scratch_record(store), 9)
    assert replayed(store, tmp_path / "none", engine=WobblyEngine()).verdicts == {"PASS": 10}
    tally = replayed(store, tmp_path / "sample", Plan(sample=4), WobblyEngine())
    assert 0 < tally.verdicts["DRIFT"] == tally.num_generated < 10
    assert replayed(store, tmp_path / "all", Plan(level="R3"), WobblyEngine()).verdicts == {"DRIFT": 10}


def test_a_sample_is_chosen_by_record_and_seed_alone(store: EditedStore, tmp_path: Path) -> None:
    seal_many(store, scratch_record(store), 11)

    def chosen(name: str, seed: int, in_flight: int) -> set[int]:
        replayed(store, tmp_path / name, Plan(sample=3, seed=seed), in_flight=in_flight)
        return {position for position, row in rows_of(tmp_path / name).items() if row["because"] == "sample"}

    assert chosen("one", 7, 1) == chosen("two", 7, 5)
    assert chosen("one", 7, 1) != chosen("three", 8, 1)


@pytest.mark.parametrize("level", ["R0", "R1"])
def test_r0_and_r1_ask_no_engine(store: EditedStore, tmp_path: Path, level: Any) -> None:
    seal(store, near_tied(scratch_record(store)))

    def unneeded() -> Any:
        raise AssertionError("asked for")

    lanes = lanes_without_engine(ReplayTools(ScriptedTokenizer, unneeded), Limit())
    run = Run(Plan(level), read_audit_heads(store, None), None)
    tally = replay_all(store, run, lanes.replays, tmp_path, lambda _done, _total: None)
    assert (tally.verdicts, tally.num_generated) == ({"PASS": 2}, 0)
    assert {tuple(row["levels"]) for row in rows_of(tmp_path).values()} == {("R0", "R1")[: int(level[1]) + 1]}


@pytest.mark.parametrize(("since", "num_due"), [("2026-01-01T00:00:00Z", 3), ("2100-01-01T00:00:00+02:00", 0)])
def test_records_before_a_time_are_passed_by(store: EditedStore, tmp_path: Path, since: str, num_due: int) -> None:
    seal_many(store, scratch_record(store), 2)
    seen: list[tuple[int, int]] = []
    tally = replayed(store, tmp_path, Plan(since=since), watch=lambda *progress: seen.append(progress))
    assert tally.num_records == num_due
    assert seen[-1] == (3, 3)


def test_a_time_is_inclusive(store: EditedStore, tmp_path: Path) -> None:
    seal_many(store, scratch_record(store), 2)
    recorded_at = json.loads(next(iter(store.entries(AUDIT))).header)["recorded_at"]
    assert replayed(store, tmp_path, Plan(since=recorded_at)).num_records == 3


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(RequestError, match="RFC 3339"):
        Plan(since="yesterday")


def test_another_tenants_records_are_passed_by(store: EditedStore, tmp_path: Path) -> None:
    scratch_record(store)
    assert replayed(store, tmp_path / "one", Plan(tenant_id="other")).exit_code == 5
    assert replayed(store, tmp_path / "two", Plan(tenant_id="acme")).num_records == 1


# Cut off and continued


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
    assert tally.verdicts == {"PASS": 1, "DRIFT": 1}  # the one of before, and what is left of the log
    assert tally.exit_code == 1


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


# Several at a time


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
