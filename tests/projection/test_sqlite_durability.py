"""The log file against the world: processes that die or race, edits, flipped bytes, write protection, full disks."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from projection.canonical import sha256_hex
from projection.entry import Entry, Head, Stream
from projection.errors import NotFoundError, StorageError
from projection.events import Event
from projection.log import LogVerdict, append_record, find_record, read, verify_stream
from projection.store_sqlite import SCHEMA, SqliteStore
from tests.projection.log_process import BATCH
from tests.projection.trajectories import NOW, STREAM, counted_salt, fill, make_event, make_events

ROOT = Path(__file__).resolve().parents[2]
NUM_EVENTS = 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite"


@pytest.fixture
def filled(path: Path) -> Path:
    """A log of forty events."""
    with SqliteStore.open(path) as store:
        fill(store, make_events(NUM_EVENTS))
    return path


def command(mode: str, path: Path, argument: str = "") -> list[str]:
    return [sys.executable, "-m", "tests.projection.log_process", mode, str(path), argument]


def start(mode: str, path: Path, argument: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(mode, path, argument), cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def run(mode: str, path: Path, argument: str = "") -> tuple[int, list[list[str]]]:
    """Exit status, and the words of each line it said."""
    done = subprocess.run(command(mode, path, argument), cwd=ROOT, text=True, stdout=subprocess.PIPE, check=False)
    return done.returncode, [line.split() for line in done.stdout.splitlines()]


def verdict_on(path: Path, expected_head: Head | str | None = None) -> LogVerdict:
    with SqliteStore.open_read_only(path) as store:
        return verify_stream(store, STREAM, expected_head=expected_head)


def entries_of(path: Path) -> list[Entry]:
    with SqliteStore.open_read_only(path) as store:
        return list(store.entries(STREAM))


def event_ids(path: Path) -> list[str]:
    return [entry.event_id for entry in entries_of(path)]


# Processes


@pytest.mark.parametrize("num_acknowledged", [1, 2, 7, 25])
def test_every_acknowledged_event_is_there_after_kill_9_and_no_half_batch(path: Path, num_acknowledged: int) -> None:
    with start("append_for_ever", path) as process:
        assert process.stdout is not None
        said = [process.stdout.readline().split() for _ in range(num_acknowledged)]
        process.kill()
    assert said[-1] == ["acknowledged", str(num_acknowledged * BATCH)]
    verdict = verdict_on(path)
    assert verdict.holds
    assert verdict.num_entries >= num_acknowledged * BATCH
    assert verdict.num_entries % BATCH == 0
    with SqliteStore.open(path) as store:
        fill(store, [make_event(1_000_000)])
        assert verify_stream(store, STREAM).holds
        assert store.find_file_problem() is None


def test_a_batch_that_kill_9_cut_off_inside_the_transaction_is_rolled_back(filled: Path) -> None:
    before = entries_of(filled)
    returncode, said = run("kill_in_append", filled)
    assert (returncode, said) == (-9, [])
    assert Path(f"{filled}-journal").stat().st_size > 0
    assert filled.stat().st_size > 1_000_000, (
        "part of the batch must have reached the file for this test to mean anything"
    )
    assert entries_of(filled) == before
    assert not Path(f"{filled}-journal").exists()
    assert verdict_on(filled).holds


def test_the_next_append_after_a_cut_off_one_goes_on_where_the_log_ended(filled: Path) -> None:
    run("kill_in_append", filled)
    with SqliteStore.open(filled) as store:
        assert fill(store, [make_event(NUM_EVENTS + 1)]).position == NUM_EVENTS + 1
        assert verify_stream(store, STREAM).holds


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


# Append-only


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET payload = x'00'",
        "UPDATE entry SET position = position + 100",
        "DELETE FROM entry",
        "DELETE FROM entry WHERE position = 40",
        "INSERT OR REPLACE INTO entry SELECT * FROM entry WHERE position = 3",
        "REPLACE INTO entry (entry_id, tenant_id, case_id, position, event_id, header, entry_hash)"
        " SELECT 3, 'x', 'y', 1, 'z', x'00', zeroblob(32)",
        "REPLACE INTO entry (tenant_id, case_id, position, event_id, header, entry_hash)"
        " SELECT tenant_id, case_id, 3, 'z', x'00', zeroblob(32) FROM entry WHERE position = 3",
        "REPLACE INTO entry (tenant_id, case_id, position, event_id, header, entry_hash)"
        " SELECT tenant_id, case_id, 41, event_id, x'00', zeroblob(32) FROM entry WHERE position = 3",
        "INSERT INTO entry SELECT * FROM entry WHERE position = 3 ON CONFLICT DO UPDATE SET payload = x'00'",
    ],
)
def test_the_file_refuses_to_change_or_remove_a_row(filled: Path, statement: str) -> None:
    before = entries_of(filled)
    with closing(sqlite3.connect(filled)) as other, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        other.execute(statement)
    assert entries_of(filled) == before


# Edits by somebody who owns the file


def edit(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        for (name,) in other.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            other.execute(f"DROP TRIGGER {name}")
        other.execute("PRAGMA ignore_check_constraints = ON")
        other.create_function("sha256", 1, lambda data: bytes.fromhex(sha256_hex(data)))
        for statement in statements:
            other.execute(statement)


COLUMNS = "tenant_id, case_id, position, event_id, header, entry_hash, salt, payload"
OTHER_SOURCE = "header = CAST(replace(CAST(header AS TEXT), 'urn:los', 'urn:LOS') AS BLOB)"
EDITS = {
    "a changed payload": ["UPDATE entry SET payload = CAST('DTI 1.5%' AS BLOB) WHERE position = 5"],
    "a changed salt": ["UPDATE entry SET salt = zeroblob(32) WHERE position = 5"],
    "a lost payload": ["UPDATE entry SET payload = NULL WHERE position = 5"],
    "a lost salt": ["UPDATE entry SET salt = NULL WHERE position = 5"],
    "a changed header": [f"UPDATE entry SET {OTHER_SOURCE} WHERE position = 5"],
    "a changed header with a hash of its own": [
        f"UPDATE entry SET {OTHER_SOURCE} WHERE position = 5",
        "UPDATE entry SET entry_hash = sha256(header) WHERE position = 5",
    ],
    "a changed hash": ["UPDATE entry SET entry_hash = zeroblob(32) WHERE position = 5"],
    "a cut hash": ["UPDATE entry SET entry_hash = x'00' WHERE position = 5"],
    "a changed event id": ["UPDATE entry SET event_id = 'evt-x' WHERE position = 5"],
    "a row moved to another case": ["UPDATE entry SET case_id = 'LN-8' WHERE position = 5"],
    "a deleted row": ["DELETE FROM entry WHERE position = 5"],
    "a deleted row, the rest moved up": [
        "DELETE FROM entry WHERE position = 5",
        "UPDATE entry SET position = -position WHERE position > 5",
        "UPDATE entry SET position = -position - 1 WHERE position < 0",
    ],
    "two swapped rows": [
        "UPDATE entry SET position = -5 WHERE position = 5",
        "UPDATE entry SET position = 5 WHERE position = 9",
        "UPDATE entry SET position = 9 WHERE position = -5",
    ],
    "two swapped payloads with their salts": [
        "UPDATE entry SET (salt, payload) = (SELECT salt, payload FROM entry WHERE position = 9) WHERE position = 5",
    ],
    "a forged row": [
        "UPDATE entry SET position = -position WHERE position >= 5",
        "UPDATE entry SET position = -position + 1 WHERE position < 0",
        f"INSERT INTO entry ({COLUMNS})"
        " SELECT tenant_id, case_id, 5, 'evt-forged', header, entry_hash, salt, payload FROM entry WHERE position = 4",
    ],
}


@pytest.mark.parametrize("statements", EDITS.values(), ids=EDITS.keys())
def test_an_edit_of_the_file_is_found_at_its_position(filled: Path, statements: list[str]) -> None:
    edit(filled, *statements)
    verdict = verdict_on(filled)
    assert (verdict.holds, verdict.num_entries, verdict.first_bad_position) == (False, 4, 5)


def test_a_forged_row_at_the_end_is_found_at_its_position(filled: Path) -> None:
    edit(
        filled,
        f"INSERT INTO entry ({COLUMNS})"
        " SELECT tenant_id, case_id, 41, 'evt-41', header, entry_hash, salt, payload FROM entry WHERE position = 40",
    )
    assert verdict_on(filled).first_bad_position == 41


def test_a_cut_tail_is_found_against_the_head_that_was_kept(filled: Path) -> None:
    head = verdict_on(filled).head
    edit(filled, "DELETE FROM entry WHERE position > 38")
    assert verdict_on(filled).holds
    for expected in (head, head.entry_hash):
        verdict = verdict_on(filled, expected)
        assert (verdict.holds, verdict.num_entries, verdict.first_bad_position) == (False, 38, 39)


def test_an_emptied_log_is_found_against_the_head_that_was_kept(filled: Path) -> None:
    head = verdict_on(filled).head
    edit(filled, "DELETE FROM entry")
    assert verdict_on(filled, head).first_bad_position == 1
    with pytest.raises(NotFoundError):
        verdict_on(filled)


def test_an_erased_payload_is_counted_and_the_file_still_holds(filled: Path) -> None:
    edit(filled, "UPDATE entry SET salt = NULL, payload = NULL WHERE position IN (5, 9)")
    verdict = verdict_on(filled)
    assert (verdict.holds, verdict.num_entries, verdict.num_erased) == (True, NUM_EVENTS, 2)


def test_a_lost_trigger_is_reported_and_nothing_more_is_appended(filled: Path) -> None:
    edit(filled)
    with SqliteStore.open_read_only(filled) as store:
        assert verify_stream(store, STREAM).holds
        problem = store.find_file_problem()
    assert problem is not None
    assert "triggers" in problem
    with pytest.raises(StorageError):
        SqliteStore.open(filled)


def test_an_edited_record_is_found_by_its_id_no_more(path: Path) -> None:
    with SqliteStore.open(path) as store:
        record = append_record(store, "acme", make_event(1), now=NOW, salt=counted_salt())
        assert find_record(store, record.entry_hash) == record
    edit(path, "UPDATE entry SET entry_hash = zeroblob(32)")
    with SqliteStore.open_read_only(path) as store:
        with pytest.raises(NotFoundError):
            find_record(store, record.entry_hash)
        assert verify_stream(store, record.stream).first_bad_position == 1


# Flipped bytes


def flip(path: Path, offset: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


@pytest.mark.parametrize("field", ["payload", "header", "salt", "entry_hash"])
def test_a_flipped_byte_of_an_entry_is_found_at_its_position(filled: Path, field: str) -> None:
    content = filled.read_bytes()
    for entry in entries_of(filled)[::7]:
        value = bytes.fromhex(entry.entry_hash) if field == "entry_hash" else getattr(entry, field)
        assert content.count(value) == 1
        offset = content.index(value)
        for place in {0, len(value) // 2, len(value) - 1}:
            flip(filled, offset + place, bit=place % 8)
            assert verdict_on(filled).first_bad_position == entry.position
            flip(filled, offset + place, bit=place % 8)
    assert verdict_on(filled).holds


def test_a_flipped_bit_anywhere_in_the_file_is_found_or_changes_nothing_that_is_read(
    filled: Path, tmp_path: Path
) -> None:
    """The file may be refused, the stream may fail, or every entry reads as before; nothing else."""
    original = entries_of(filled)
    size = filled.stat().st_size
    draw = random.Random(0)
    damaged = tmp_path / "damaged.sqlite"
    num_found = 0
    for _ in range(600):
        shutil.copyfile(filled, damaged)
        flip(damaged, draw.randrange(size), draw.randrange(8))
        try:
            with SqliteStore.open_read_only(damaged) as store:
                verdict = verify_stream(store, STREAM, expected_head=original[-1].head)
                if verdict.holds:
                    assert list(store.entries(STREAM)) == original
                else:
                    assert verdict.first_bad_position == verdict.num_entries + 1
                    num_found += 1
        except StorageError as exc:
            assert exc.fields["cause"] in ("malformed", "not_a_log")
            num_found += 1
    assert num_found > 100


def test_a_damaged_page_fails_the_verdict_after_the_last_entry_that_holds(filled: Path) -> None:
    with SqliteStore.open(filled) as store:
        fill(store, make_events(1000, first=NUM_EVENTS + 1))
    entry = entries_of(filled)[499]
    assert entry.payload is not None
    content = bytearray(filled.read_bytes())
    page = content.index(entry.header) // 4096 * 4096
    content[page : page + 4096] = bytes(4096)
    filled.write_bytes(content)
    verdict = verdict_on(filled)
    assert not verdict.holds
    assert verdict.first_bad_position == verdict.num_entries + 1
    assert 490 < verdict.num_entries < 500
    with SqliteStore.open_read_only(filled) as store:
        assert store.find_file_problem() is not None


def test_a_file_that_was_cut_off_is_found(filled: Path) -> None:
    with SqliteStore.open(filled) as store:
        fill(store, make_events(1000, first=NUM_EVENTS + 1))
    os.truncate(filled, filled.stat().st_size // 8192 * 4096)
    try:
        verdict = verdict_on(filled)
    except StorageError as exc:
        assert exc.fields["cause"] == "malformed"
    else:
        assert not verdict.holds


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


def test_appends_are_synchronised_to_the_disk(filled: Path) -> None:
    with SqliteStore.open(filled) as store:
        extra = 3
        assert store._connection.execute("PRAGMA synchronous").fetchone() == (extra,)


# Write protection and full disks


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


def check_after_full_disk(path: Path, said: list[list[str]], cause: str) -> None:
    assert said[-1] == ["cause", cause]
    acknowledged = [int(words[1]) for words in said[:-1]]
    assert acknowledged, "at least one batch fits"
    assert verdict_on(path).num_entries == acknowledged[-1]
    assert verdict_on(path).holds


def test_a_file_that_may_not_grow_keeps_every_acknowledged_batch_and_no_half_one(path: Path) -> None:
    """A real failed write (RLIMIT_FSIZE), which works for every user on every file system."""
    returncode, said = run("append_limited", path, str(9_000_000))
    assert returncode == 0
    check_after_full_disk(path, said, "io")
    with SqliteStore.open(path) as store:
        fill(store, [make_event(1_000_000)])
        assert verify_stream(store, STREAM).holds


def test_a_full_disk_keeps_every_acknowledged_batch_and_no_half_one(tmp_path: Path) -> None:
    """A real full file system: nine megabytes of memory, mounted in a name space of the test's own."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare on this machine")
    disk, kept = tmp_path / "disk", tmp_path / "kept.sqlite"
    disk.mkdir()
    log = disk / "log.sqlite"
    mount = 'mount -t tmpfs -o size=9m tmpfs "$1" && echo mounted'
    script = f'{mount} && shift && kept=$1 && shift && "$@" && cp "$0" "$kept"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, str(log), str(disk), str(kept), *command("append_large", log)],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    )
    if not done.stdout.startswith("mounted"):
        pytest.skip("this user may not mount a file system")
    assert done.returncode == 0, done.stderr
    check_after_full_disk(kept, [line.split() for line in done.stdout.splitlines()[1:]], "disk_full")


def test_several_processes_may_open_a_new_log_at_once(path: Path) -> None:
    processes = [start("append_one", path) for _ in range(4)]
    said = [process.communicate()[0] for process in processes]
    assert said == ["acknowledged 1\n"] * 4
    assert verdict_on(path).num_entries == 1


def test_a_read_log_gives_the_events_that_were_appended(filled: Path) -> None:
    events: list[Event] = make_events(NUM_EVENTS)
    with SqliteStore.open_read_only(filled) as store:
        assert [e.event for e in read(store, STREAM)] == events
        assert store.streams() == [Stream("acme", "LN-7")]
