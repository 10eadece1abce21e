"""Replay on another engine identity: incomparable, with the fields that differ, and never asked."""

from __future__ import annotations

from typing import Any

import pytest

from inference.scripted_engine import ScriptedEngine
from projection.engine import Completion, EngineIdentity, Score
from projection.replay import Level, differing_fields
from tests.projection.decided import EditedStore, decide_small_case, replay_with


class Renamed(ScriptedEngine):
    """Another identity, in fields that a test names."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self._changes = changes

    @property
    def identity(self) -> EngineIdentity:
        return EngineIdentity({**super().identity.fields, **self._changes})

    def score(self, *args: object) -> Score:
        raise AssertionError("another engine was asked")

    def generate(self, *args: object) -> Completion:
        raise AssertionError("another engine was asked")


@pytest.mark.parametrize("level", ["R2", "R3"])
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"flags": {"max_model_len": 100_000}}, "flags.max_model_len"),
        ({"script": "dpm/script/v2"}, "script"),
        ({"script": "dpm/script/v2", "device": {"kind": "gpu"}}, "device, script"),
        ({"flags": {"max_model_len": 262_144, "seed": 1}}, "flags.seed"),
    ],
)
def test_another_engine_is_incomparable_and_never_asked(
    store: EditedStore, level: Level, changes: dict[str, Any], named: str
) -> None:
    sealed = decide_small_case(store)
    report = replay_with(store, sealed.record_id, level, engine=Renamed(**changes))
    assert (report.verdict, dict(report.levels)) == ("INCOMPARABLE", {"R0": "PASS", "R1": "PASS", "R2": "INCOMPARABLE"})
    found = report.first_divergence
    assert found is not None
    assert (found.level, found.what) == ("R2", "engine_identity")
    assert found.detail == f"the engines differ in {named}"
    assert report.engine_identity == sealed.record.content.engine_identity == found.recorded
    assert replay_with(store, sealed.record_id, "R1", engine=Renamed(**changes)).verdict == "PASS"


def test_a_context_of_another_length_is_another_engine(store: EditedStore) -> None:
    sealed = decide_small_case(store, ScriptedEngine(max_model_len=100_000))
    report = replay_with(store, sealed.record_id)
    assert report.verdict == "INCOMPARABLE"
    assert replay_with(store, sealed.record_id, engine=ScriptedEngine(max_model_len=100_000)).verdict == "PASS"


def test_differing_fields_are_named_from_both_sides_in_order() -> None:
    recorded = {"a": 1, "b": {"c": 2, "d": [1, 2]}, "e": None, "f": {"g": 1}}
    here = {"b": {"c": 2, "d": [2, 1], "x": 0}, "a": 1, "f": 7, "z": 1}
    assert differing_fields(recorded, here) == ["b.d", "b.x", "f", "z"]
    assert differing_fields(recorded, dict(reversed(recorded.items()))) == []
