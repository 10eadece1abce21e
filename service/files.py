"""Reading the files a user names, and choosing the case that events belong to."""

from __future__ import annotations

from pathlib import Path

from projection.entry import Stream
from projection.errors import NotFoundError, RequestError
from projection.events import AUDIT_CASE_ID
from projection.ingest import MAX_BATCH_BYTES, ParsedEvents, parse_events
from projection.log import Store
from projection.task import MAX_TASK_BYTES, Task, parse_task


def read_events(path: Path) -> ParsedEvents:
    """Parse an events file; raises EventError with the line."""
    return parse_events(_read(path, MAX_BATCH_BYTES), source_name=str(path))


def read_task(path: Path) -> Task:
    """Parse a task file; raises TaskError with the line."""
    return parse_task(_read(path, MAX_TASK_BYTES), str(path))


def choose_stream(store: Store, path: Path, parsed: ParsedEvents, tenant: str, case: str | None) -> Stream:
    """The stream that a file's events go to: the named case, else their common subject, else the file's name.

    Raises:
        RequestError: a case chosen by the file's name already holds events that are not in the file: two files of one
            name are more often two cases than one.
    """
    if case is not None or parsed.subject is not None:
        return Stream(tenant, case or parsed.subject or "")
    stream = Stream(tenant, path.name.partition(".")[0] or path.name)
    if stream.case_id == AUDIT_CASE_ID:
        raise RequestError(f"{path}: the case id {AUDIT_CASE_ID!r} is taken; name the case with --case")
    event_ids = {event.event_id for event in parsed.events}
    if any(entry.event_id not in event_ids for entry in store.entries(stream)):
        raise RequestError(
            f"case {stream.case_id!r} (from the file's name) already holds other events; name the case with --case",
            case_id=stream.case_id,
        )
    return stream


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:  # a pipe or a device has no size to ask for
            data = file.read(max_bytes + 1)
    except FileNotFoundError as exc:
        raise NotFoundError(f"{path}: no such file", path=str(path)) from exc
    except OSError as exc:
        raise RequestError(f"{path} cannot be read: {exc.strerror}", path=str(path)) from exc
    if len(data) > max_bytes:
        raise RequestError(f"{path} has over {max_bytes} bytes, which is the limit", path=str(path))
    return data
