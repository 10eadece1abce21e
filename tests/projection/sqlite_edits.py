"""What somebody who owns a log file can do to it: every edit is about position 5 of a log of at least nine events."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from projection.canonical import sha256_hex


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
