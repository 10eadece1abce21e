"""Several processes on one log file: each event gets in once, and nobody waits for a reader."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from projection.errors import StorageError
from projection.store_sqlite import SqliteStore
from tests.projection.sqlite_log import NUM_EVENTS, entries_of, start, verdict_on
from tests.projection.trajectories import STREAM, fill, make_event


def event_ids(path: Path) -> list[str]:
    return [entry.event_id for entry in entries_of(path)]


def write_events(path: Path, numbers: range) -> Path:
    lines = [f'{{"id": "evt-{n}", "type": "note", "text": "event {n}"}}\n' for n in numbers]
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("first_range", "second_range"),
    [(range(120), range(120)), (range(120), range(120, 240)), (range(120), range(60, 180))],
    ids=["the same file", "different files", "files that overlap"],
)
def test_two_processes_that_append_at_once_get_each_event_in_once(
    path: Path, tmp_path: Path, first_range: range, second_range: range
) -> None:
    files = [write_events(tmp_path / f"{number}.jsonl", r) for number, r in enumerate([first_range, second_range])]
    processes = [start("append_files", path, str(file)) for file in files]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert all("cause" not in text for text in said)
    wanted = {f"evt-{number}" for number in {*first_range, *second_range}}
    assert sorted(event_ids(path)) == sorted(wanted)
    verdict = verdict_on(path)
    assert (verdict.holds, verdict.num_entries) == (True, len(wanted))


def test_several_processes_may_open_a_new_log_at_once(path: Path) -> None:
    processes = [start("append_one", path) for _ in range(4)]
    said = [process.communicate()[0] for process in processes]
    assert said == ["acknowledged 1\n"] * 4
    assert verdict_on(path).num_entries == 1


def test_a_file_that_another_program_keeps_locked_is_said_to_be_locked(filled: Path) -> None:
    with closing(sqlite3.connect(filled, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for open_log in (SqliteStore.open, SqliteStore.open_read_only):
            with pytest.raises(StorageError) as caught:
                open_log(filled, busy_timeout_ms=0)
            assert caught.value.fields["cause"] == "locked"
        other.execute("ROLLBACK")
    assert verdict_on(filled).holds


def test_a_reader_between_two_pages_does_not_keep_a_writer_waiting(filled: Path) -> None:
    with SqliteStore.open_read_only(filled) as reader, SqliteStore.open(filled, busy_timeout_ms=0) as writer:
        entries = reader.entries(STREAM)
        assert next(entries).position == 1
        fill(writer, [make_event(NUM_EVENTS + 1)])
        assert len(list(entries)) == NUM_EVENTS
