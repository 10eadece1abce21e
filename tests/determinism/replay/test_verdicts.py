"""Replaying a whole log: each record comes to its own verdict, and all of them to one exit code and bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from determinism.replay.outcome import Tally
from inference.scripted_engine import ScriptedEngine
from projection.entry import Entry
from tests.determinism.replay.sealed_log import (
    AUDIT,
    CountedEngine,
    not_best,
    of_another_engine,
    replayed,
    rows_of,
    scratch_record,
    seal_many,
)
from tests.projection.decided import EditedStore, seal, seal_text


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
