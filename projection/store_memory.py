"""A store in memory: the contract of `Store` without durability, for tests and for trying things out."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

from projection.entry import Entry, Head, Stream
from projection.errors import StalePositionError, StorageError
from projection.events import AUDIT_CASE_ID


class MemoryStore:
    """Keeps entries as long as the process lives. Safe with several threads."""

    def __init__(self) -> None:
        self._entries: dict[Stream, list[Entry]] = {}
        self._by_id: dict[tuple[Stream, str], Entry] = {}
        self._lock = threading.Lock()

    def head(self, stream: Stream) -> Head:
        entries = self._entries.get(stream)
        return entries[-1].head if entries else Head()

    def streams(self) -> list[Stream]:
        return sorted(self._entries)

    def entries(self, stream: Stream, *, after: int = 0, up_to: int | None = None) -> Iterator[Entry]:
        yield from self._entries.get(stream, [])[after:up_to]

    def find_events(self, stream: Stream, event_ids: Sequence[str]) -> Iterator[Entry]:
        for event_id in event_ids:
            entry = self._by_id.get((stream, event_id))
            if entry is not None:
                yield entry

    def find_records(self, hash_prefix: str, *, tenant_id: str | None, limit: int) -> list[Entry]:
        audits = [s for s in self.streams() if s.case_id == AUDIT_CASE_ID and tenant_id in (None, s.tenant_id)]
        found = [e for stream in audits for e in self.entries(stream) if e.entry_hash.startswith(hash_prefix)]
        return sorted(found, key=lambda entry: entry.entry_hash)[:limit]

    def append(self, stream: Stream, entries: Iterable[Entry], *, expected_position: int) -> Head:
        with self._lock:
            position = self.head(stream).position
            if position != expected_position:
                message = f"the stream ends at position {position}, not {expected_position}: read it again"
                raise StalePositionError(message, expected_position=expected_position, position=position)
            new = list(entries)
            by_id = {(stream, entry.event_id): entry for entry in new}
            is_taken = len(by_id) < len(new) or not self._by_id.keys().isdisjoint(by_id)
            if is_taken or any(entry.position <= position for entry in new):
                raise StorageError("a position or event id is taken", cause="refused")
            self._by_id |= by_id
            if new:
                self._entries.setdefault(stream, []).extend(new)
            return self.head(stream)
