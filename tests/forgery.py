"""Damage and forgery: what the owner of a log file can do to it, down to records whose digests all fit.

An `Edit` works on the open database, a `RecordEdit` on the JSON of a sealed record. Everything is computed with the
independent verifier's functions, as a forger would who knows the format page.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from projection.canonical import canonical_bytes
from projection.store_sqlite import SCHEMA
from tests import format_1
from tests.independent_verifier import tagged, tagged_json

CASE, AUDIT = (format_1.TENANT, format_1.CASE), (format_1.TENANT, "audit")
ZERO_HASH = "0" * 64

Edit = Callable[[sqlite3.Connection], None]
RecordEdit = Callable[[dict[str, Any]], None]


@contextmanager
def opened_by_its_owner(database: Path) -> Iterator[sqlite3.Connection]:
    """The file without its triggers, which are put back afterwards."""
    triggers = [statement for statement in SCHEMA if statement.startswith("CREATE TRIGGER")]
    with closing(sqlite3.connect(database)) as connection:
        for statement in triggers:
            connection.execute(f"DROP TRIGGER {statement.split()[2]}")
        yield connection
        for statement in triggers:
            connection.execute(statement)
        connection.commit()


def change(column: str, value: str, position: int, stream: tuple[str, str] = CASE) -> Edit:
    """An UPDATE of one value of one entry; `value` is SQL."""
    where = "tenant_id = ? AND case_id = ? AND position = ?"
    return lambda db: db.execute(f"UPDATE entry SET {column} = {value} WHERE {where}", (*stream, position)).close()


def in_turn(*edits: Edit) -> Edit:
    def edit(db: sqlite3.Connection) -> None:
        for one in edits:
            one(db)

    return edit


def delete(position: int) -> Edit:
    return lambda db: db.execute("DELETE FROM entry WHERE case_id = ? AND position = ?", (CASE[1], position)).close()


def insert_at_end(db: sqlite3.Connection) -> None:
    """A copy of the last entry behind it, with a chain that follows but a header of the place it was copied from."""
    columns = "header, salt, payload, entry_hash"
    row = db.execute(
        f"SELECT {columns} FROM entry WHERE case_id = ? ORDER BY position DESC LIMIT 1", CASE[1:]
    ).fetchone()
    entry_hash = bytes.fromhex(tagged("dpm/entry/v1", row[3] + row[0]))
    db.execute(
        "INSERT INTO entry (tenant_id, case_id, position, event_id, header, entry_hash, salt, payload)"
        " VALUES (?, ?, 6, 'forged', ?, ?, ?, ?)",
        (*CASE, row[0], entry_hash, *row[1:3]),
    )


def rechain(db: sqlite3.Connection, stream: tuple[str, str] = CASE) -> None:
    """What a forger does last: recompute every commitment and hash of a stream."""
    where = "WHERE tenant_id = ? AND case_id = ? ORDER BY position"
    rows = db.execute(f"SELECT entry_id, header, salt, payload FROM entry {where}", stream).fetchall()
    previous = ZERO_HASH
    for entry_id, header_bytes, salt, payload in rows:
        header = json.loads(header_bytes)
        if payload is not None:
            header["payload_commitment"] = tagged("dpm/payload/v1", salt + payload)
        data = canonical_bytes(header)
        previous = tagged("dpm/entry/v1", bytes.fromhex(previous) + data)
        new = (data, bytes.fromhex(previous), entry_id)
        db.execute("UPDATE entry SET header = ?, entry_hash = ? WHERE entry_id = ?", new)


def set_header(position: int, edit: Callable[[dict[str, Any]], bytes]) -> Edit:
    """Rewrite one header; the hashes of the stream are left as they are."""

    def apply(db: sqlite3.Connection) -> None:
        where = "WHERE case_id = ? AND position = ?"
        (data,) = db.execute(f"SELECT header FROM entry {where}", (CASE[1], position)).fetchone()
        db.execute(f"UPDATE entry SET header = ? {where}", (edit(json.loads(data)), CASE[1], position))

    return apply


def swap_payloads(db: sqlite3.Connection) -> None:
    rows = db.execute(
        "SELECT position, salt, payload FROM entry WHERE case_id = ? AND position < 3", CASE[1:]
    ).fetchall()
    (_, *first), (_, *second) = rows
    for position, values in ((1, second), (2, first)):
        db.execute(
            "UPDATE entry SET salt = ?, payload = ? WHERE case_id = ? AND position = ?", (*values, CASE[1], position)
        )


def erase(position: int, stream: tuple[str, str] = CASE) -> Edit:
    return change("(salt, payload)", "(NULL, NULL)", position, stream)


def forge(database: Path, edit: RecordEdit, *, keep: str = "") -> str:
    """Change the second record, make every digest fit but `keep`, seal it again; returns the new record id."""
    with opened_by_its_owner(database) as db:
        (payload,) = db.execute("SELECT payload FROM entry WHERE case_id = 'audit' AND position = 2").fetchone()
        record = json.loads(payload)
        edit(record)
        refit(record, keep)
        new = canonical_bytes(record)
        db.execute("UPDATE entry SET payload = ? WHERE case_id = 'audit' AND position = 2", (new,))
        rechain(db, AUDIT)
        (entry_hash,) = db.execute("SELECT entry_hash FROM entry WHERE case_id = 'audit' AND position = 2").fetchone()
    return bytes(entry_hash).hex()


def refit(record: dict[str, Any], keep: str) -> None:
    content = record["content"]
    text: str = content["projection"]["text"]
    fitting = {
        "task_digest": tagged_json("dpm/task/v1", content["task"]),
        "engine_identity": tagged_json("dpm/engine-identity/v1", record["engine"]),
        "view_digest": tagged("dpm/view/v1", text.encode("utf-8")),
    }
    content.update({name: value for name, value in fitting.items() if name != keep})
    if keep != "used_chars":
        content["budget"]["used_chars"] = len(text)
    if keep != "content_digest":
        record["content_digest"] = tagged_json("dpm/content/v1", content)


def in_view(old: str, new: str) -> RecordEdit:
    return _in_text("projection", old, new)


def in_decision(old: str, new: str, **parsed: Any) -> RecordEdit:
    """Change the decision's text, and what the record says it says."""

    def edit(record: dict[str, Any]) -> None:
        _in_text("decision_call", old, new)(record)
        record["content"]["decision"].update(parsed)

    return edit


def _in_text(call: str, old: str, new: str) -> RecordEdit:
    def edit(record: dict[str, Any]) -> None:
        text = record["content"][call]["text"]
        assert text.count(old) == 1, (old, text)
        record["content"][call]["text"] = text.replace(old, new)

    return edit


def chop(record: dict[str, Any], call: str) -> None:
    record["content"][call]["text"] = record["content"][call]["text"][:-1]


def put(path: str, value: Any) -> RecordEdit:
    """Set one member, by its dotted name."""

    def edit(record: dict[str, Any]) -> None:
        *parents, name = path.split(".")
        for parent in parents:
            record = record[parent]
        record[name] = value

    return edit


def drop(path: str) -> RecordEdit:
    def edit(record: dict[str, Any]) -> None:
        *parents, name = path.split(".")
        for parent in parents:
            record = record[parent]
        del record[name]

    return edit
