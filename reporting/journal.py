"""The results of a run that may be killed at any moment: one JSON Lines file, `rows.jsonl`, in a folder of its own.

Line 1 is the header: schema, version, and the parameters that must be equal for the run to be continued. Every other
line is one finished row under its key.

Promises: `append` returns once its row is on the disk; a row is there whole or not at all; a last line that was cut off
by a kill is dropped when the run is continued; a file that is refused is not touched; one writer at a time. Reading
needs no lock, and sees the finished rows of a run that is still going. Nothing here is evidence: rows are not signed,
chained or hashed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from projection.errors import NotFoundError, RequestError, StorageError

FILE_NAME = "rows.jsonl"

Row = Mapping[str, Any]
Cause = Literal["in_use", "not_a_journal", "other_schema", "other_parameters", "damaged", "duplicate_key", "not_json"]


class JournalError(RequestError):
    """The folder cannot take or give these rows; `fields` has `path` and `cause`."""

    def __init__(self, cause: Cause, path: Path, message: str, **fields: object) -> None:
        super().__init__(message, cause=cause, path=str(path), **fields)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a journal holds: the parameters of its run, and its rows by key in the order of writing."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, Row] = field(default_factory=dict)


class Journal:
    """The one writer of a results folder; close it, or use `with`. Safe to use from several threads."""

    def __init__(self, descriptor: int, path: Path, end: int, recorded: Recorded) -> None:
        self._descriptor = descriptor
        self._path = path
        self._end = end
        self._rows = dict(recorded.rows)
        self._lock = threading.Lock()
        self.parameters = recorded.parameters

    @classmethod
    def open(
        cls, directory: str | os.PathLike[str], *, schema: str, version: int, parameters: Mapping[str, Any]
    ) -> Self:
        """Begin a run in `directory`, made where it is missing, or continue the run that was begun there.

        parameters: a JSON value; everything that makes old and new rows parts of one run, engine identity included.

        Raises:
            JournalError: another writer is at work, or the folder holds another schema, other parameters or damage.
            StorageError: the file cannot be opened or written.
        """
        path = Path(directory) / FILE_NAME
        header = _line(path, {"schema": schema, "schema_version": version, "parameters": parameters})
        with _storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _take_lock(descriptor, path)
            with _storage_errors(path):
                _begin(descriptor, header)
                _sync_folder(path.parent)
            recorded = read_journal(directory, schema=schema, version=version)
            _check_parameters(path, recorded.parameters, json.loads(header)["parameters"])
            with _storage_errors(path):
                end = _drop_cut_line(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, path, end, recorded)

    def is_done(self, key: str) -> bool:
        """Whether a row of this key is on the disk."""
        return key in self._rows

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def rows(self) -> Mapping[str, Row]:
        """All finished rows by key, those of earlier runs included; a copy."""
        with self._lock:
            return dict(self._rows)

    def append(self, key: str, row: Row) -> None:
        """Write one finished row, and return when it is on the disk. After an error the file is as it was before.

        Raises:
            JournalError: the key is taken, or the row is no JSON value.
            StorageError: the file cannot be written.
        """
        line = _line(self._path, {"key": key, "row": row})
        with self._lock:
            if key in self._rows:
                raise JournalError(
                    "duplicate_key",
                    self._path,
                    f"{self._path} already has a row {key!r}: ask is_done first, or begin in another folder",
                    key=key,
                )
            self._write(line)
            self._rows[key] = json.loads(line)["row"]

    def _write(self, line: bytes) -> None:
        with _storage_errors(self._path):
            try:
                _write_at(self._descriptor, line, self._end)
            except OSError:
                os.ftruncate(self._descriptor, self._end)
                raise
        self._end += len(line)

    def close(self) -> None:
        """Give the lock back. A second call does nothing."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_journal(directory: str | os.PathLike[str], *, schema: str, version: int) -> Recorded:
    """The parameters and finished rows of a results folder, whether or not a run is going on there.

    Raises:
        NotFoundError: there is no results file.
        JournalError: the file is of another schema or version, or is damaged.
        StorageError: the file cannot be read.
    """
    path = Path(directory) / FILE_NAME
    if not path.exists():
        raise NotFoundError(f"there are no results in {path.parent}: no file {FILE_NAME}", path=str(path))
    with _storage_errors(path):
        data = path.read_bytes()
    lines = data.split(b"\n")[:-1]
    if not lines:
        raise _not_a_journal(path)
    return Recorded(_read_header(path, lines[0], schema, version), _read_rows(path, lines[1:]))


def _read_header(path: Path, line: bytes, schema: str, version: int) -> Mapping[str, Any]:
    match _parse(line):
        case {"schema": str(found), "schema_version": int(found_version), "parameters": dict(parameters)}:
            pass
        case _:
            raise _not_a_journal(path)
    if (found, found_version) != (schema, version):
        raise JournalError(
            "other_schema",
            path,
            f"{path} holds {found} version {found_version}, and this program reads {schema} version {version}: "
            "choose another folder, or read it with the version that wrote it",
            found=[found, found_version],
            expected=[schema, version],
        )
    return parameters


def _read_rows(path: Path, lines: list[bytes]) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for number, line in enumerate(lines, start=2):
        match _parse(line):
            case {"key": str(key), "row": dict(row)} if key not in rows:
                rows[key] = row
            case _:
                raise JournalError(
                    "damaged",
                    path,
                    f"{path}, line {number}: not a row, or a row that was there before. A kill cannot do this: the "
                    "file was changed. Restore a copy, or begin in another folder",
                    line=number,
                )
    return rows


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _line(path: Path, value: Mapping[str, Any]) -> bytes:
    """ASCII, so that no character of a model's text can end a line and a lone surrogate comes back as it was."""
    try:
        return json.dumps(value, allow_nan=False).encode("ascii") + b"\n"
    except (TypeError, ValueError, RecursionError) as exc:
        raise JournalError("not_json", path, f"this cannot be written to {path}, it is no JSON value: {exc}") from exc


def _begin(descriptor: int, header: bytes) -> None:
    """Write the header where there is none, or the beginning of this one; what holds anything else is left alone."""
    if header.startswith(_content(descriptor)):
        _write_at(descriptor, header, 0)


def _drop_cut_line(descriptor: int) -> int:
    """Drop a last line that was cut off; returns the file's length. For a file that was found to be this run's."""
    data = _content(descriptor)
    end = data.rfind(b"\n") + 1
    if end < len(data):
        os.ftruncate(descriptor, end)
    return end


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)
    os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _take_lock(descriptor: int, path: Path) -> None:
    """Held until the descriptor is closed, hence also given back by a process that is killed."""
    with _storage_errors(path):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            if exc.errno != errno.EWOULDBLOCK:
                raise
            raise JournalError(
                "in_use",
                path,
                f"another run is writing to {path.parent}: wait until it has ended, or choose another folder",
            ) from exc


def _check_parameters(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    differing = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
    if differing:
        listed = "; ".join(f"{name} was {found.get(name)!r} and is {wanted.get(name)!r}" for name in differing)
        raise JournalError(
            "other_parameters",
            path,
            f"{path.parent} holds another run, which this one cannot continue: {listed}. Choose another folder",
            parameters=differing,
        )


def _not_a_journal(path: Path) -> JournalError:
    return JournalError(
        "not_a_journal", path, f"{path} is no results file: its first line is no header. Choose another folder"
    )


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise StorageError(f"the results file {path} cannot be used: {exc.strerror}", path=str(path)) from exc
