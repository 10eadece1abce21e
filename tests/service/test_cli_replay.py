"""`dpm replay`: it stops at its level, says drift and incomparable by exit code and place, and needs no fixed place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from inference.scripted_engine import ScriptedEngine
from projection.case import decide_case
from projection.entry import Stream
from projection.store_sqlite import SqliteStore
from projection.task import parse_task
from projection.view_grammar import Profile
from tests.projection.cases import TASK_YAML
from tests.projection.trajectories import NOW, counted_salt
from tests.service.conftest import Dpm


@pytest.mark.parametrize("level", ["R0", "R1", "R2", "R3"])
def test_a_replay_stops_at_its_level(dpm: Dpm, decided: Path, record_id: str, level: str) -> None:
    levels = dpm("replay", record_id[:10], "--level", level, "--json").document["levels"]
    assert levels == {name: "PASS" if name <= level else None for name in ("R0", "R1", "R2", "R3")}


def test_a_replay_on_another_engine_is_incomparable_and_names_the_field(dpm: Dpm, case: Path) -> None:
    dpm("log", "append", "events.jsonl")
    with SqliteStore.open(case / "dpm.sqlite") as store:
        sealed = decide_case(
            store, Stream("default", "LN-7"), ScriptedEngine(max_model_len=100_000), parse_task(TASK_YAML), 1338,
            Profile(2), now=lambda: NOW, salt=counted_salt(),
        )  # fmt: skip
    result = dpm("replay", sealed.record_id, "--json")
    assert (result.code, result.document["verdict"]) == (3, "INCOMPARABLE")
    assert result.document["levels"] == {"R0": "PASS", "R1": "PASS", "R2": "INCOMPARABLE", "R3": None}
    assert "flags.max_model_len" in result.document["first_divergence"]["detail"]
    assert "flags.max_model_len" in dpm("replay", sealed.record_id).stdout
    assert dpm("replay", sealed.record_id, "--level", "R1", "--json").code == 0


def test_a_drift_is_exit_1_and_names_the_first_point(dpm: Dpm, case: Path) -> None:
    class Flipped(ScriptedEngine):
        """Says one letter otherwise, under the identity of the scripted engine."""

        def script(self, *args: Any) -> tuple[int, ...]:
            script = list(super().script(*args))
            rationale = bytes(script[:-1]).find(b"Rationale: ")
            if rationale >= 0:
                script[rationale + len("Rationale: ")] ^= 0x20  # a capital letter becomes a small one
            return tuple(script)

    dpm("log", "append", "events.jsonl")
    with SqliteStore.open(case / "dpm.sqlite") as store:
        sealed = decide_case(
            store, Stream("default", "LN-7"), Flipped(), parse_task(TASK_YAML), 1338, Profile(2),
            now=lambda: NOW, salt=counted_salt(),
        )  # fmt: skip
    result = dpm("replay", sealed.record_id, "--json")
    assert (result.code, result.document["verdict"]) == (1, "DRIFT")
    found = result.document["first_divergence"]
    assert (found["level"], found["what"], found["call"]) == ("R2", "token_ids", "decision")
    assert "first divergence: R2 token_ids of the decision call at" in dpm("replay", sealed.record_id).stdout


def test_a_log_may_be_moved_and_replayed_where_it_is(dpm: Dpm, decided: Path, record_id: str, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "log of May.db"
    moved.parent.mkdir()
    shutil.move(decided, moved)
    assert dpm("replay", record_id, "--db", moved, "--json").document["verdict"] == "PASS"
