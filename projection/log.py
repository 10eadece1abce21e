"""The log: append-only streams of events, each entry chained to the one before it by a hash.

Owns appending, reading and verifying. `entry` owns the bytes; a `Store` only keeps rows.

Promises: an append is whole or absent, refuses a writer who has not seen the head, and returns once the entries are
durable (where the store is). `read` hands out nothing that the chain does not cover. `verify` finds a changed, removed,
moved or inserted entry by itself, and a removed tail against a head that was kept elsewhere. A log that was rewritten
from some entry to its end is consistent with itself: only a kept head exposes that. No clock and no randomness:
`now` and `salt` are arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from projection.canonical import value_digest
from projection.entry import Entry, Head, Salt, Stream, chain, check_entry
from projection.errors import (
    EventError,
    NotFoundError,
    RequestError,
    StalePositionError,
    StorageError,
    VerificationError,
)
from projection.events import AUDIT_CASE_ID, MAX_EVENT_CHARS, Event, LoggedEvent
from projection.ingest import ParsedEvents, check_event, drop_repeats, name_problem, time_problem

HEADS_TAG = "dpm/heads/v1"
MAX_RECORD_CHARS = 268_435_456  # a sealed record holds both calls complete, so it may be far longer than an event
MIN_PREFIX_DIGITS = 4


class Store(Protocol):
    """Keeps rows and promises that they stay; knows nothing of hashes. See `store_memory`, `store_sqlite`.

    Every method raises StorageError where the rows cannot be read or written (`fields["cause"]` says why).
    """

    def head(self, stream: Stream) -> Head:
        """The last entry's position and hash; `Head()` for a stream without entries."""
        ...

    def streams(self) -> list[Stream]:
        """Every stream that has entries, sorted."""
        ...

    def entries(self, stream: Stream, *, after: int = 0, up_to: int | None = None) -> Iterator[Entry]:
        """Entries with after < position <= up_to, in order, a bounded number in memory at a time."""
        ...

    def find_events(self, stream: Stream, event_ids: Sequence[str]) -> Iterator[Entry]:
        """The entries of the stream that have one of these event ids, in any order."""
        ...

    def find_records(self, hash_prefix: str, *, tenant_id: str | None, limit: int) -> list[Entry]:
        """Up to `limit` entries of the audit stream whose hash starts with these hex digits, sorted by hash.

        tenant_id: whose audit stream; None for everybody's.
        """
        ...

    def append(self, stream: Stream, entries: Iterable[Entry], *, expected_position: int) -> Head:
        """Add all entries or none, durably; return the new head. The entries are drawn while the stream is locked.

        Raises:
            StalePositionError: the stream does not end at `expected_position`.
            StorageError: with the cause "refused" where a position or event id is taken.
        """
        ...


def append(
    store: Store,
    stream: Stream,
    events: Sequence[Event],
    *,
    expected_position: int,
    now: str,
    salt: Salt,
    lines: Sequence[int] | None = None,
) -> Head:
    """Append a case's events after `expected_position`; an event that is there already is left alone.

    now: RFC 3339, becomes `recorded_at`. lines: (num_events,), what an error calls each event; 1, 2, ... by default.

    Raises:
        StalePositionError: the stream does not end at `expected_position`.
        EventError: an event that cannot be taken, or whose id has other content; nothing of the batch is written.
    """
    if stream.case_id == AUDIT_CASE_ID:
        raise RequestError(f"the case id {AUDIT_CASE_ID!r} is kept for sealed records: name the case otherwise")
    unique = _check_events(events, range(1, len(events) + 1) if lines is None else lines, MAX_EVENT_CHARS)
    return _append(store, stream, unique, expected_position=expected_position, now=now, salt=salt)


def append_new(store: Store, stream: Stream, parsed: ParsedEvents, *, now: str, salt: Salt) -> Head:
    """Append whatever of a file is not in the stream yet, however many other writers there are.

    Each time another writer was first the stream has grown, so it is read again and the work repeated.
    """
    while True:
        position = store.head(stream).position
        try:
            return append(
                store, stream, parsed.events, expected_position=position, now=now, salt=salt, lines=parsed.lines
            )
        except StalePositionError:
            continue


def append_record(store: Store, tenant_id: str, event: Event, *, now: str, salt: Salt) -> Entry:
    """Seal a record: append it to the tenant's audit stream, after whatever is there. Not for a caller's events."""
    stream = Stream(tenant_id, AUDIT_CASE_ID)
    unique = _check_events([event], [1], MAX_RECORD_CHARS)
    while True:
        position = store.head(stream).position
        try:
            _append(store, stream, dict(unique), expected_position=position, now=now, salt=salt)
        except StalePositionError:
            continue
        return next(store.find_events(stream, [event.event_id]))


_EventsById = dict[str, tuple[Event, int]]
"""Events in order, by id, each with its line."""


def _append(store: Store, stream: Stream, unique: _EventsById, *, expected_position: int, now: str, salt: Salt) -> Head:
    _check_place(stream, now)
    head = store.head(stream)
    if head.position != expected_position:
        message = f"the stream ends at position {head.position}, not {expected_position}: read it again"
        raise StalePositionError(message, expected_position=expected_position, position=head.position)
    if head.position:
        _drop_known(store, stream, unique)
    if not unique:
        return head
    new = (event for event, _ in unique.values())
    return store.append(stream, chain(stream, head, new, now=now, salt=salt), expected_position=head.position)


def _check_place(stream: Stream, now: str) -> None:
    found = [
        ("tenant id", name_problem(stream.tenant_id)),
        ("case id", name_problem(stream.case_id)),
        ("recording time", time_problem(now)),
    ]
    for what, problem in found:
        if problem:
            raise RequestError(f"the {what} {problem}")


def _check_events(events: Sequence[Event], lines: Sequence[int], max_chars: int) -> _EventsById:
    line = 1
    try:
        for event, line in zip(events, lines, strict=True):  # noqa: B007 - the handler below names the line
            check_event(event, max_chars=max_chars)
        return drop_repeats(events, lines)
    except EventError as exc:
        exc.fields.setdefault("line", line)
        raise EventError(f"line {exc.fields['line']}: {exc.message}", **exc.fields) from exc


def _drop_known(store: Store, stream: Stream, unique: _EventsById) -> None:
    """Take out the events that the stream has already."""
    conflicts: list[tuple[int, Entry]] = []
    for entry in store.find_events(stream, list(unique)):
        event, line = unique.pop(entry.event_id)
        if entry.payload is None or entry.to_event() != event:
            conflicts.append((line, entry))
    if conflicts:
        line, entry = min(conflicts, key=lambda conflict: conflict[0])
        state = "its payload was erased" if entry.payload is None else "it has other content"
        message = f"line {line}: the stream has event id {entry.event_id!r} at position {entry.position}, and {state}"
        raise EventError(message, line=line, event_id=entry.event_id, position=entry.position)


def read(store: Store, stream: Stream, *, up_to: int | None = None) -> list[LoggedEvent]:
    """E: the stream's events in order, up to and with position `up_to`, each checked against the chain.

    Raises:
        VerificationError: an entry does not hold, or its payload was erased; `fields["position"]` names it.
        NotFoundError: the stream does not reach `up_to`.
    """
    events: list[LoggedEvent] = []
    head = Head()
    for entry in store.entries(stream, up_to=up_to):
        check_entry(entry, stream, head)
        events.append(LoggedEvent(entry.position, entry.to_event()))
        head = entry.head
    if up_to is not None and head.position < up_to:
        raise NotFoundError(f"{stream} ends at position {head.position}, before {up_to}", position=head.position)
    return events


def find_record(store: Store, hash_prefix: str, *, tenant_id: str | None = None) -> Entry:
    """The sealed record with this id (its entry hash), or the only one whose id starts so.

    Raises:
        RequestError: not hex digits, too few of them, or several records start so.
        NotFoundError: no record starts so.
    """
    prefix = hash_prefix.lower()
    if not re.fullmatch(rf"[0-9a-f]{{{MIN_PREFIX_DIGITS},64}}", prefix):
        raise RequestError(f"a record id is {MIN_PREFIX_DIGITS} to 64 hex digits, and this is {hash_prefix!r}")
    found = store.find_records(prefix, tenant_id=tenant_id, limit=2)
    if not found:
        raise NotFoundError(f"no record has an id that starts with {prefix}", record_id=prefix)
    if len(found) > 1:
        raise RequestError(f"several records have an id that starts with {prefix}: give more digits", record_id=prefix)
    return found[0]


def read_heads(store: Store) -> dict[Stream, Head]:
    """The head of every stream."""
    return {stream: store.head(stream) for stream in store.streams()}


def combined_head(heads: Mapping[Stream, Head]) -> str:
    """One value to keep elsewhere for a whole log: a digest over the heads of all its streams."""
    rows = [[s.tenant_id, s.case_id, head.position, head.entry_hash] for s, head in sorted(heads.items())]
    return value_digest(HEADS_TAG, rows)


@dataclass(frozen=True, slots=True)
class LogVerdict:
    """What verification found.

    num_entries: entries that hold, from position 1 without a gap; head: the last of them.
    first_bad_position: where the log stops holding; None when it holds.
    """

    holds: bool
    num_entries: int
    num_erased: int
    head: Head
    first_bad_position: int | None = None
    reason: str | None = None


def verify(entries: Iterable[Entry], stream: Stream, *, expected_head: Head | str | None = None) -> LogVerdict:
    """Recompute every hash of a stream, holding one entry at a time.

    entries: all of the stream's entries, in the store's order; a page that the store cannot read counts as a bad entry.
    expected_head: a head, or an entry hash alone, that was kept elsewhere; a log that has grown since still holds.
    """
    head, num_erased = Head(), 0
    wanted = _Wanted(expected_head)
    try:
        wanted.see(head)
        for entry in entries:
            check_entry(entry, stream, head)
            wanted.see(entry.head)
            head = entry.head
            num_erased += entry.payload is None
        wanted.check_seen(head)
    except (VerificationError, StorageError) as exc:
        if isinstance(exc, StorageError) and exc.fields.get("cause") != "malformed":
            raise
        return LogVerdict(False, head.position, num_erased, head, head.position + 1, exc.message)
    return LogVerdict(True, head.position, num_erased, head)


def verify_stream(store: Store, stream: Stream, *, expected_head: Head | str | None = None) -> LogVerdict:
    """`verify` on a store.

    Raises:
        NotFoundError: the stream has no entries and no head is expected: there is nothing to hold.
    """
    verdict = verify(store.entries(stream), stream, expected_head=expected_head)
    if verdict.holds and not verdict.num_entries and expected_head is None:
        raise NotFoundError(f"the log has no stream {stream}")
    return verdict


class _Wanted:
    """An expected head, looked for while the entries pass."""

    def __init__(self, expected: Head | str | None) -> None:
        self._expected = expected
        self._is_seen = expected is None

    def see(self, head: Head) -> None:
        expected = self._expected
        if isinstance(expected, Head) and head.position == expected.position and head != expected:
            message = f"position {head.position}: this entry is not the expected head {expected}"
            raise VerificationError(message, position=head.position)
        self._is_seen = self._is_seen or expected in (head, head.entry_hash)

    def check_seen(self, head: Head) -> None:
        if not self._is_seen:
            message = f"position {head.position + 1}: the log ends here, without the expected head {self._expected}"
            raise VerificationError(message, position=head.position + 1)


def parse_expected_head(text: str) -> Head | str:
    """Read `position:hash`, as `str(head)` writes it, or a bare entry hash.

    Raises:
        RequestError: neither.
    """
    matched = re.fullmatch(r"(?:([0-9]{1,15}):)?([0-9a-fA-F]{64})", text)
    if matched is None:
        raise RequestError(f"a head is POSITION:HASH or HASH, with 64 hex digits, and this is {text!r}")
    position, digits = matched.groups()
    return digits.lower() if position is None else Head(int(position), digits.lower())
