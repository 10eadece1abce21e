"""What file is a log, what it is called and holds, and what happens where it may not be written."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from projection.entry import Stream
from projection.errors import NotFoundError, StorageError
from projection.events import Event
from projection.log import read, verify_stream
from projection.store_sqlite import SCHEMA, SqliteStore
from tests.projection.sqlite_edits import edit
from tests.projection.sqlite_log import NUM_EVENTS, run, verdict_on
from tests.projection.trajectories import STREAM, fill, make_event, make_events

# What is not a log


def test_another_database_is_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("CREATE TABLE entry (x)")
    before = path.read_bytes()
    for open_log in (SqliteStore.open, SqliteStore.open_read_only):
        with pytest.raises(StorageError) as caught:
            open_log(path)
        assert caught.value.fields["cause"] == "not_a_log"
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_left_alone(path: Path) -> None:
    path.write_bytes(b'{"type": "note", "text": "x"}\n' * 100)
    before = path.read_bytes()
    for open_log in (SqliteStore.open, SqliteStore.open_read_only):
        with pytest.raises(StorageError) as caught:
            open_log(path)
        assert caught.value.fields["cause"] == "not_a_log"
    assert path.read_bytes() == before


def test_a_log_of_a_later_format_is_refused(filled: Path) -> None:
    edit(filled, "PRAGMA user_version = 2")
    for open_log in (SqliteStore.open, SqliteStore.open_read_only):
        with pytest.raises(StorageError, match="format 2"):
            open_log(filled)


def test_a_path_that_cannot_be_opened_is_an_error_that_says_so(tmp_path: Path) -> None:
    for bad in (tmp_path, tmp_path / "no" / "folder.sqlite"):
        with pytest.raises(StorageError) as caught:
            SqliteStore.open(bad)
        assert caught.value.fields["cause"] == "cannot_open"


def test_reading_does_not_create_a_file(path: Path) -> None:
    with pytest.raises(NotFoundError):
        SqliteStore.open_read_only(path)
    assert not path.exists()


# What is


def test_an_empty_file_becomes_a_log(path: Path) -> None:
    path.touch()
    with SqliteStore.open(path) as store:
        fill(store, make_events(1))
    assert verdict_on(path).holds


@pytest.mark.parametrize("name", ["a b.sqlite", "a?mode=memory", "a#b", "a%20b", "\u00fc.sqlite"])
def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    with SqliteStore.open(tmp_path / name) as store:
        fill(store, make_events(1))
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert verdict_on(tmp_path / name).holds


def test_the_log_is_one_file_that_says_what_it_is(filled: Path) -> None:
    assert [file.name for file in filled.parent.iterdir()] == [filled.name]
    with closing(sqlite3.connect(filled)) as other:
        stored = {sql for (sql,) in other.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
        assert stored == set(SCHEMA)
        assert other.execute("PRAGMA application_id").fetchone() == (int.from_bytes(b"DPM1", "big"),)
        assert other.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_read_log_gives_the_events_that_were_appended(filled: Path) -> None:
    events: list[Event] = make_events(NUM_EVENTS)
    with SqliteStore.open_read_only(filled) as store:
        assert [e.event for e in read(store, STREAM)] == events
        assert store.streams() == [Stream("acme", "LN-7")]


# Write protection


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that another user can reach, which pytest's own cannot be."""
    folder = Path(tempfile.mkdtemp(prefix="dpm-log-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_write_protected_log_is_verified_and_an_append_is_refused(public_folder: Path) -> None:
    """As nobody where the test runs as root, whom no permission stops."""
    path = public_folder / "log.sqlite"
    with SqliteStore.open(path) as store:
        fill(store, make_events(NUM_EVENTS))
    path.chmod(0o444)
    public_folder.chmod(0o555)
    before = path.read_bytes()
    returncode, said = run("verify_unprivileged", path)
    assert said == [["verified", "True", str(NUM_EVENTS), "None"], ["cause", "read_only"]]
    assert returncode == 0
    assert path.read_bytes() == before


def test_an_append_through_a_connection_opened_for_reading_is_refused(filled: Path) -> None:
    with SqliteStore.open_read_only(filled) as store:
        with pytest.raises(StorageError) as caught:
            fill(store, [make_event(NUM_EVENTS + 1)])
        assert caught.value.fields["cause"] == "read_only"
        assert verify_stream(store, STREAM).num_entries == NUM_EVENTS


def test_a_write_protected_log_with_a_cut_off_append_is_not_verified_as_it_stands(public_folder: Path) -> None:
    """Half a batch is in the file, and only somebody who may write can roll it back."""
    path = public_folder / "log.sqlite"
    with SqliteStore.open(path) as store:
        fill(store, make_events(NUM_EVENTS))
    run("kill_in_append", path)
    for file in public_folder.iterdir():
        file.chmod(0o444)
    public_folder.chmod(0o555)
    assert run("verify_unprivileged", path) == (0, [["cause", "cut_off"]])
    public_folder.chmod(0o755)
    for file in public_folder.iterdir():
        file.chmod(0o644)
    assert verdict_on(path).num_entries == NUM_EVENTS
