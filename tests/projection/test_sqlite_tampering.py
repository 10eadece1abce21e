"""The log file against whoever writes into it: refused where SQLite can, and found at its position where it cannot."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from projection.errors import NotFoundError, StorageError
from projection.log import append_record, find_record, verify_stream
from projection.store_sqlite import SqliteStore
from tests.projection.sqlite_edits import COLUMNS, EDITS, edit
from tests.projection.sqlite_log import NUM_EVENTS, entries_of, verdict_on
from tests.projection.trajectories import NOW, STREAM, counted_salt, fill, make_event, make_events

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
