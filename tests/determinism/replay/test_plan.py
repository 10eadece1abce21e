"""Replaying a whole log: which records are due, and which of them are replayed how deep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from determinism.near_ties import Limit
from determinism.replay.plan import Plan
from determinism.replay.run import Run, read_audit_heads, replay_all
from determinism.replay.workers import lanes_without_engine
from inference.scripted_engine import ScriptedTokenizer
from projection.errors import RequestError
from projection.replay import ReplayTools
from tests.determinism.replay.sealed_log import (
    AUDIT,
    CountedEngine,
    WobblyEngine,
    near_tied,
    replayed,
    rows_of,
    scratch_record,
    seal_many,
)
from tests.projection.decided import EditedStore, seal


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
