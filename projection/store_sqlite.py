"""A store in one SQLite file: the log as a thing that can be kept, copied and handed to an auditor.

Promises: `append` returns once its entries are on the disk (rollback journal, `synchronous=EXTRA`), or has changed
nothing; several processes and threads may write at once; triggers refuse UPDATE, DELETE and any INSERT that would
replace a row, in this program and in any other. They protect against accidents: whoever owns the file can drop them,
and then it is `verify` that finds what was done.

There is no write-ahead log, so that nothing but this one file is needed (beside it stands FILE-journal while an append
is under way or was cut off; whoever opens the file next rolls that back). Reading opens the file read-only, so that a
write-protected file or medium can be verified. Rows are read in pages, with no lock held between two pages.
The columns tenant_id, case_id, position and event_id only file a row; what counts is in the hashed header.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from projection.entry import Entry, Head, Stream
from projection.errors import NotFoundError, StalePositionError, StorageError
from projection.events import AUDIT_CASE_ID

APPLICATION_ID = 0x44504D31  # "DPM1", in the file's header
SCHEMA_VERSION = 1
BUSY_TIMEOUT_MS = 60_000
PAGE_ROWS = 256
PAGE_BYTES = 4_194_304
IDS_PER_LOOKUP = 500

SCHEMA = (
    """\
CREATE TABLE entry (
    entry_id INTEGER PRIMARY KEY,
    tenant_id TEXT NOT NULL,
    case_id TEXT NOT NULL,
    position INTEGER NOT NULL CHECK (position >= 1),
    event_id TEXT NOT NULL,
    header BLOB NOT NULL,
    entry_hash BLOB NOT NULL CHECK (length(entry_hash) = 32),
    salt BLOB,
    payload BLOB,
    UNIQUE (tenant_id, case_id, position),
    UNIQUE (tenant_id, case_id, event_id),
    CHECK ((salt IS NULL) = (payload IS NULL))
) STRICT""",
    f"CREATE UNIQUE INDEX record_hash ON entry (entry_hash) WHERE case_id = '{AUDIT_CASE_ID}'",
    """\
CREATE TRIGGER entry_no_update BEFORE UPDATE ON entry
BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END""",
    """\
CREATE TRIGGER entry_no_delete BEFORE DELETE ON entry
BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END""",
    """\
CREATE TRIGGER entry_no_replace BEFORE INSERT ON entry
WHEN EXISTS (SELECT 1 FROM entry WHERE entry_id = NEW.entry_id)
OR EXISTS (SELECT 1 FROM entry WHERE (tenant_id, case_id, position) = (NEW.tenant_id, NEW.case_id, NEW.position))
OR EXISTS (SELECT 1 FROM entry WHERE (tenant_id, case_id, event_id) = (NEW.tenant_id, NEW.case_id, NEW.event_id))
BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END""",
)

_COLUMNS = "tenant_id, case_id, position, event_id, header, entry_hash, salt, payload"
_INSERT = f"INSERT INTO entry ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_OF_STREAM = "tenant_id = ? AND case_id = ?"
_HEAD = f"SELECT position, entry_hash FROM entry WHERE {_OF_STREAM} ORDER BY position DESC LIMIT 1"
_PAGE = f"SELECT {_COLUMNS} FROM entry WHERE {_OF_STREAM} AND position > ? AND position <= ? ORDER BY position LIMIT ?"
_FIRST_STREAM = "SELECT tenant_id, case_id FROM entry ORDER BY tenant_id, case_id LIMIT 1"
_NEXT_STREAM = (
    "SELECT tenant_id, case_id FROM entry WHERE (tenant_id, case_id) > (?, ?) ORDER BY tenant_id, case_id LIMIT 1"
)
_MAX_POSITION = 2**63 - 1

Cause = Literal["read_only", "disk_full", "io", "locked", "cannot_open", "not_a_log", "cut_off", "malformed", "refused"]

_CAUSES: dict[int, tuple[Cause, str]] = {
    sqlite3.SQLITE_READONLY: ("read_only", "the file is write-protected: make it writable, or append to another log"),
    sqlite3.SQLITE_FULL: ("disk_full", "the disk is full: free some space and append again; nothing was written"),
    sqlite3.SQLITE_IOERR: ("io", "the system refused to read or write: look for a full disk, a quota or a fault"),
    sqlite3.SQLITE_BUSY: ("locked", "another program keeps the file locked: end it, or try again"),
    sqlite3.SQLITE_CANTOPEN: ("cannot_open", "the file cannot be opened: look at path, folder and permissions"),
    sqlite3.SQLITE_PERM: ("cannot_open", "the file cannot be opened: look at its permissions"),
    sqlite3.SQLITE_NOTADB: ("not_a_log", "the file is not a log: no SQLite database, or its first page is damaged"),
    sqlite3.SQLITE_CONSTRAINT: ("refused", "the file refuses these rows: a position or event id is taken"),
}
_MALFORMED: tuple[Cause, str] = ("malformed", "the file is damaged: restore a copy, and verify that")


class SqliteStore:
    """A log file. Use `open` to append, `open_read_only` to read, verify and replay; close it, or use `with`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._lock = threading.RLock()  # one transaction at a time on the one connection

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> Self:
        """Open a log to append to it; create it where there is none.

        busy_timeout_ms: how long a call waits while another process has the file locked.

        Raises:
            StorageError: the file cannot be opened, is something else, or has lost its triggers.
        """
        file = Path(path)
        connection = _connect(file, "rwc", busy_timeout_ms)
        try:
            with _storage_errors(file):
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.execute("PRAGMA fullfsync = ON")
                _create_where_empty(connection)
                _check_is_log(connection, file)
                _check_schema(connection, file)
                connection.execute("PRAGMA journal_mode = DELETE").close()
        except BaseException:
            connection.close()
            raise
        return cls(connection, file)

    @classmethod
    def open_read_only(cls, path: str | os.PathLike[str], *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> Self:
        """Open a log without writing to it, but for rolling back an append that was cut off.

        Raises:
            NotFoundError: there is no file.
            StorageError: the file cannot be opened, or is something else.
        """
        file = Path(path)
        if not file.exists():
            raise NotFoundError(f"there is no log {file}", path=str(file))
        try:
            return cls._open_read_only(file, busy_timeout_ms)
        except StorageError as exc:
            if exc.fields["cause"] != "cut_off":
                raise
        with closing(_connect(file, "rw", busy_timeout_ms)) as connection, _storage_errors(file):
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return cls._open_read_only(file, busy_timeout_ms)

    @classmethod
    def _open_read_only(cls, file: Path, busy_timeout_ms: int) -> Self:
        connection = _connect(file, "ro", busy_timeout_ms)
        try:
            with _storage_errors(file):
                _check_is_log(connection, file)
        except BaseException:
            connection.close()
            raise
        return cls(connection, file)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def head(self, stream: Stream) -> Head:
        rows = self._fetch(_HEAD, (stream.tenant_id, stream.case_id))
        if not rows:
            return Head()
        position, entry_hash = rows[0]
        if not isinstance(position, int):
            raise _storage_error(self._path, _MALFORMED, "a position has another type")
        return Head(position, _blob(entry_hash, self._path).hex())

    def streams(self) -> list[Stream]:
        """As the protocol says; a row that is filed under no text at all is a damaged file, not an empty stream."""
        found: list[Stream] = []
        rows = self._fetch(_FIRST_STREAM, ())
        while rows:
            tenant_id, case_id = rows[0]
            if not isinstance(tenant_id, str) or not isinstance(case_id, str):
                raise _storage_error(self._path, _MALFORMED, "a tenant or case id has another type")
            found.append(Stream(tenant_id, case_id))
            rows = self._fetch(_NEXT_STREAM, (tenant_id, case_id))
        return found

    def entries(self, stream: Stream, *, after: int = 0, up_to: int | None = None) -> Iterator[Entry]:
        last = after
        while page := self._page(stream, last, _MAX_POSITION if up_to is None else up_to):
            for entry in page:
                if entry.position <= last:
                    raise _storage_error(self._path, _MALFORMED, "positions are out of order")
                last = entry.position
                yield entry

    def find_events(self, stream: Stream, event_ids: Sequence[str]) -> Iterator[Entry]:
        for start in range(0, len(event_ids), IDS_PER_LOOKUP):
            ids = event_ids[start : start + IDS_PER_LOOKUP]
            marks = ", ".join("?" * len(ids))
            sql = f"SELECT {_COLUMNS} FROM entry WHERE {_OF_STREAM} AND event_id IN ({marks})"
            for row in self._fetch(sql, (stream.tenant_id, stream.case_id, *ids)):
                yield _entry(row, self._path)

    def find_records(self, hash_prefix: str, *, tenant_id: str | None, limit: int) -> list[Entry]:
        first, last = (bytes.fromhex(hash_prefix.ljust(64, digit)) for digit in "0f")
        sql = (
            f"SELECT {_COLUMNS} FROM entry WHERE case_id = '{AUDIT_CASE_ID}' AND entry_hash BETWEEN ? AND ?"
            " AND (? IS NULL OR tenant_id = ?) ORDER BY entry_hash LIMIT ?"
        )
        return [_entry(row, self._path) for row in self._fetch(sql, (first, last, tenant_id, tenant_id, limit))]

    def append(self, stream: Stream, entries: Iterable[Entry], *, expected_position: int) -> Head:
        with self._lock, _storage_errors(self._path), _transaction(self._connection):
            position = self.head(stream).position
            if position != expected_position:
                message = f"the stream ends at position {position}, not {expected_position}: read it again"
                raise StalePositionError(message, expected_position=expected_position, position=position)
            self._connection.executemany(_INSERT, map(_row, entries)).close()
            return self.head(stream)

    def find_file_problem(self) -> str | None:
        """What SQLite's own check of the whole file finds, a lost trigger included; None when it finds nothing.

        It covers what the chain does not: indexes, unused pages, the schema. It reads the whole file and keeps
        writers waiting meanwhile.
        """
        try:
            with self._lock, _storage_errors(self._path):
                _check_schema(self._connection, self._path)
                found = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        except StorageError as exc:
            if exc.fields["cause"] not in ("malformed", "not_a_log"):
                raise
            return exc.message
        return None if found == "ok" else str(found)

    def _page(self, stream: Stream, after: int, up_to: int) -> list[Entry]:
        """Entries after a position: at most PAGE_ROWS, and no more once they hold PAGE_BYTES. Ends its lock.

        Where the file is damaged the page ends before the damage; the next page begins with it, and raises.
        """
        page: list[Entry] = []
        num_bytes = 0
        parameters = (stream.tenant_id, stream.case_id, after, up_to, PAGE_ROWS)
        try:
            with self._lock, _storage_errors(self._path), closing(self._execute(_PAGE, parameters)) as rows:
                for row in rows:
                    entry = _entry(row, self._path)
                    page.append(entry)
                    num_bytes += len(entry.header) + len(entry.payload or b"")
                    if num_bytes >= PAGE_BYTES:
                        break
        except StorageError:
            if not page:
                raise
        return page

    def _fetch(self, sql: str, parameters: Sequence[object]) -> list[Any]:
        with self._lock, _storage_errors(self._path):
            return self._execute(sql, parameters).fetchall()

    def _execute(self, sql: str, parameters: Sequence[object]) -> sqlite3.Cursor:
        try:
            return self._connection.execute(sql, parameters)
        except UnicodeEncodeError:  # half a surrogate pair: no row can hold it
            return self._connection.execute("SELECT 1 WHERE 0")


def _connect(file: Path, mode: Literal["ro", "rw", "rwc"], busy_timeout_ms: int) -> sqlite3.Connection:
    with _storage_errors(file):
        return sqlite3.connect(
            f"{file.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=busy_timeout_ms / 1000,
            isolation_level=None,
            check_same_thread=False,
        )


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # some errors have rolled back already
            connection.execute("ROLLBACK")
        raise


def _create_where_empty(connection: sqlite3.Connection) -> None:
    if not _is_empty(connection):
        return
    with _transaction(connection):
        if _is_empty(connection):  # nobody was faster
            for statement in SCHEMA:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _is_empty(connection: sqlite3.Connection) -> bool:
    return not _pragma(connection, "application_id") and not _stored_schema(connection)


def _check_is_log(connection: sqlite3.Connection, file: Path) -> None:
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise _storage_error(file, ("not_a_log", "the file is a database of something else, not a log"))
    version = _pragma(connection, "user_version")
    if version != SCHEMA_VERSION:
        what = f"the log has format {version}, and this program reads {SCHEMA_VERSION}"
        raise _storage_error(file, ("not_a_log", what))


def _check_schema(connection: sqlite3.Connection, file: Path) -> None:
    if _stored_schema(connection) != set(SCHEMA):
        what = "the tables or append-only triggers are not those of a log: somebody changed them; verify it"
        raise _storage_error(file, ("malformed", what))


def _stored_schema(connection: sqlite3.Connection) -> set[str]:
    return {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _row(entry: Entry) -> tuple[object, ...]:
    return (
        entry.stream.tenant_id,
        entry.stream.case_id,
        entry.position,
        entry.event_id,
        entry.header,
        bytes.fromhex(entry.entry_hash),
        entry.salt,
        entry.payload,
    )


def _entry(row: Sequence[Any], file: Path) -> Entry:
    """A row as an entry; a damaged file may hold values of any type in it."""
    tenant_id, case_id, position, event_id, header, entry_hash, salt, payload = row
    if not isinstance(position, int) or not all(isinstance(name, str) for name in (tenant_id, case_id, event_id)):
        raise _storage_error(file, _MALFORMED, "a key of a row has another type")
    return Entry(
        Stream(tenant_id, case_id),
        position,
        event_id,
        _blob(header, file),
        _blob(entry_hash, file).hex(),
        None if salt is None else _blob(salt, file),
        None if payload is None else _blob(payload, file),
    )


def _blob(value: object, file: Path) -> bytes:
    if not isinstance(value, bytes):
        raise _storage_error(file, _MALFORMED, "a value of a row has another type")
    return value


@contextmanager
def _storage_errors(file: Path) -> Iterator[None]:
    """Wrap SQLite's errors. ProgrammingError is left alone: it is a mistake in this program, not in the file."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except (sqlite3.Error, UnicodeDecodeError) as exc:  # the latter where SQLite quotes a damaged schema
        code = getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        cause = _CAUSES.get(code & 0xFF, _MALFORMED)
        if code == sqlite3.SQLITE_READONLY_ROLLBACK:
            cause = ("cut_off", "an append was cut off: copy the log with its -journal file to where it can be written")
        raise _storage_error(file, cause, str(exc)) from exc


def _storage_error(file: Path, cause: tuple[Cause, str], detail: str = "") -> StorageError:
    name, what = cause
    message = f"{file}: {what} ({detail})" if detail else f"{file}: {what}"
    return StorageError(message, cause=name, path=str(file))
