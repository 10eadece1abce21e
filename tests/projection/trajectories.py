"""Event logs for the tests: events by number, salts that repeat, and a whole log in a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from projection.canonical import sha256_hex
from projection.entry import Entry, Head, Stream, chain
from projection.events import Event, Link
from projection.log import Store, append

NOW = "2026-01-31T09:30:00Z"
STREAM = Stream("acme", "LN-7")


def make_event(number: int, text: str | None = None) -> Event:
    """The event of a number; the same number gives the same event."""
    links = (Link("supersedes", f"evt-{number - 1}"),) if number % 3 == 0 else ()
    text = f"event {number}: DTI {number}.5%" if text is None else text
    return Event(f"evt-{number}", "loan.note", "urn:los", "2026-01-30T08:00:00Z" if number % 2 else None, text, links)


def make_events(num_events: int, first: int = 1) -> list[Event]:
    return [make_event(number) for number in range(first, first + num_events)]


def counted_salt() -> Callable[[], bytes]:
    """A salt source of its own that gives the same 32 bytes at the same call."""
    num_calls = 0

    def salt() -> bytes:
        nonlocal num_calls
        num_calls += 1
        return bytes.fromhex(sha256_hex(num_calls.to_bytes(8, "big")))

    return salt


def make_entries(num_events: int = 8) -> list[Entry]:
    """The entries of a log of that many events, in no store yet."""
    return list(chain(STREAM, Head(), make_events(num_events), now=NOW, salt=counted_salt()))


def fill(store: Store, events: Sequence[Event], stream: Stream = STREAM) -> Head:
    """Append events to a stream after whatever is there."""
    position = store.head(stream).position
    return append(store, stream, events, expected_position=position, now=NOW, salt=counted_salt())
