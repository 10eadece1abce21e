"""A log of format 1, as it was committed: it verifies and replays, whatever version of this program reads it.

Where this fails, the program has lost the ability to read what it promised to read for ever. The file is not rewritten.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.scripted_engine import ScriptedEngine, ScriptedTokenizer
from projection import log
from projection.case import load_record, replay_record
from projection.engine import Engine
from projection.entry import Stream
from projection.record import template_digest
from projection.replay import Level, ReplayReport, ReplayTools
from projection.store_sqlite import SqliteStore
from tests import format_1

RECORDS = [record["record_id"] for record in format_1.read_vectors()["format-1.db"]["records"]]


def no_engine() -> Engine:
    raise AssertionError("this level needs no engine")


def replayed(record_id: str, level: Level) -> ReplayReport:
    tools = ReplayTools(ScriptedTokenizer, ScriptedEngine if level >= "R2" else no_engine)
    with SqliteStore.open_read_only(format_1.DATABASE) as store:
        return replay_record(store, record_id, level, tools)


def test_every_stream_holds() -> None:
    with SqliteStore.open_read_only(format_1.DATABASE) as store:
        verdicts = {stream: log.verify_stream(store, stream) for stream in store.streams()}
        assert store.find_file_problem() is None
    assert [verdict.holds for verdict in verdicts.values()] == [True, True, True]
    assert [verdict.num_entries for verdict in verdicts.values()] == [5, 2, 1]


@pytest.mark.parametrize("record_id", RECORDS)
def test_a_sealed_decision_replays_at_r0(record_id: str) -> None:
    assert replayed(record_id, "R0").levels == {"R0": "PASS"}


@pytest.mark.parametrize("record_id", RECORDS)
def test_the_higher_levels_pass_while_the_templates_are_those_of_the_record_and_never_drift(record_id: str) -> None:
    with SqliteStore.open_read_only(format_1.DATABASE) as store:
        _, record = load_record(store, record_id)
    report = replayed(record_id, "R3")
    if record.content.template_digest == template_digest():
        assert report.levels == dict.fromkeys(("R0", "R1", "R2", "R3"), "PASS")
    else:
        assert report.levels == {"R0": "PASS", "R1": "INCOMPARABLE"}


def test_the_first_decision_read_less_of_the_log_than_there_is_now() -> None:
    with SqliteStore.open_read_only(format_1.DATABASE) as store:
        positions = [load_record(store, record_id)[1].log_head.position for record_id in RECORDS]
        assert positions == [3, 5]
        assert store.head(Stream(format_1.TENANT, format_1.CASE)).position == 5


def test_the_account_of_how_the_log_was_made_still_gives_its_events(tmp_path: Path) -> None:
    format_1.build(tmp_path / "again.db")
    stream = Stream(format_1.TENANT, format_1.CASE)
    with SqliteStore.open_read_only(tmp_path / "again.db") as again:
        events = log.read(again, stream)
    with SqliteStore.open_read_only(format_1.DATABASE) as store:
        assert log.read(store, stream) == events
