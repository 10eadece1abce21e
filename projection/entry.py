"""Entries: the bytes of the log, and what makes each one follow from the one before it.

`docs/format.md` specifies these bytes for someone else's verifier. The header of an entry is hashed; salt and payload
stand beside it, and the header only commits to them, so that a payload can be erased later and the chain still
verifies. Knows no store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from projection.canonical import canonical_string, tagged_digest
from projection.errors import RequestError, VerificationError
from projection.events import Event, Link

FORMAT_VERSION = 1
ENTRY_TAG = "dpm/entry/v1"
PAYLOAD_TAG = "dpm/payload/v1"
SALT_BYTES = 32
ZERO_HASH = "0" * 64  # what the first entry of a stream is chained to

Salt = Callable[[], bytes]
"""Returns 32 fresh random bytes."""


@dataclass(frozen=True, slots=True, order=True)
class Stream:
    """The trajectory of one case of one tenant."""

    tenant_id: str
    case_id: str

    def __str__(self) -> str:
        return f"{self.tenant_id}/{self.case_id}"


@dataclass(frozen=True, slots=True)
class Head:
    """The last entry of a stream. Keep it elsewhere: it pins the stream up to here. An empty stream has position 0."""

    position: int = 0
    entry_hash: str = ZERO_HASH

    def __str__(self) -> str:
        return f"{self.position}:{self.entry_hash}"


@dataclass(frozen=True, slots=True)
class Header:
    """What the entry hash covers."""

    tenant_id: str
    case_id: str
    position: int
    event_id: str
    type: str
    source: str
    occurred_at: str | None
    recorded_at: str
    links: tuple[Link, ...]
    payload_commitment: str

    def to_bytes(self) -> bytes:
        """The canonical bytes that are stored and hashed.

        Members are written in their canonical order instead of sorted each time: a log has one header an event.
        """
        text = canonical_string
        links = ",".join(f'{{"event_id":{text(link.event_id)},"kind":{text(link.kind)}}}' for link in self.links)
        return (
            f'{{"case_id":{text(self.case_id)},"event_id":{text(self.event_id)},"links":[{links}],'
            f'"occurred_at":{"null" if self.occurred_at is None else text(self.occurred_at)},'
            f'"payload_commitment":{text(self.payload_commitment)},"position":{self.position},'
            f'"recorded_at":{text(self.recorded_at)},"source":{text(self.source)},'
            f'"tenant_id":{text(self.tenant_id)},"type":{text(self.type)},"v":{FORMAT_VERSION}}}'
        ).encode()


@dataclass(frozen=True, slots=True)
class Entry:
    """One row as a store keeps it: the keys it is filed under, the hashed bytes, and the payload beside them.

    header: the canonical bytes of a `Header`. salt, payload: both None once erased.
    """

    stream: Stream
    position: int
    event_id: str
    header: bytes = field(repr=False)
    entry_hash: str
    salt: bytes | None = field(repr=False)
    payload: bytes | None = field(repr=False)

    @property
    def head(self) -> Head:
        return Head(self.position, self.entry_hash)

    @property
    def text(self) -> str:
        """The payload, verbatim.

        Raises:
            VerificationError: it was erased, or is not UTF-8.
        """
        if self.payload is None:
            raise _broken(self.position, f"the payload in {self.stream} was erased")
        try:
            return self.payload.decode("utf-8")
        except UnicodeDecodeError as exc:
            raise _broken(self.position, "the payload is not UTF-8") from exc

    def to_event(self) -> Event:
        """The event as it was appended."""
        header = parse_header(self.header, self.position)
        return Event(header.event_id, header.type, header.source, header.occurred_at, self.text, header.links)


def payload_commitment(salt: bytes, payload: bytes) -> str:
    """What the header holds instead of the payload."""
    return tagged_digest(PAYLOAD_TAG, salt, payload)


def entry_hash(prev_hash: str, header: bytes) -> str:
    """The hash of an entry: over the hash of the entry before it, and its own header."""
    return tagged_digest(ENTRY_TAG, bytes.fromhex(prev_hash), header)


def chain(stream: Stream, head: Head, events: Iterable[Event], *, now: str, salt: Salt) -> Iterator[Entry]:
    """The entries that follow `head`: positions, commitments and hashes."""
    for event in events:
        event_salt, payload = salt(), event.text.encode("utf-8")
        if len(event_salt) != SALT_BYTES:
            raise RequestError(f"a salt has {SALT_BYTES} bytes, and this one has {len(event_salt)}")
        header = Header(
            stream.tenant_id,
            stream.case_id,
            head.position + 1,
            event.event_id,
            event.type,
            event.source,
            event.occurred_at,
            now,
            event.links,
            payload_commitment(event_salt, payload),
        ).to_bytes()
        head = Head(head.position + 1, entry_hash(head.entry_hash, header))
        yield Entry(stream, head.position, event.event_id, header, head.entry_hash, event_salt, payload)


def check_entry(entry: Entry, stream: Stream, prev: Head) -> Header:
    """Check one entry of `stream` against the entry before it, and return its header.

    Raises:
        VerificationError: it does not follow `prev`, or its header, hash, salt or payload is not what was logged;
            `fields["position"]` is where the stream stops holding.
    """
    position = prev.position + 1
    if entry.position != position:
        raise _broken(position, f"the entry is missing, the next one is at position {entry.position}")
    header = parse_header(entry.header, position)
    filed = (entry.stream.tenant_id, entry.stream.case_id, entry.position, entry.event_id)
    if entry.stream != stream or filed != (header.tenant_id, header.case_id, header.position, header.event_id):
        raise _broken(position, "the header belongs to another stream, position or event id")
    if entry.entry_hash != entry_hash(prev.entry_hash, entry.header):
        raise _broken(position, "the entry hash does not follow from the header and the entry before it")
    _check_payload(entry, header)
    return header


def _check_payload(entry: Entry, header: Header) -> None:
    if entry.payload is None and entry.salt is None:
        return
    if entry.payload is None or entry.salt is None or len(entry.salt) != SALT_BYTES:
        raise _broken(entry.position, "one of salt and payload is missing, or the salt is cut")
    if header.payload_commitment != payload_commitment(entry.salt, entry.payload):
        raise _broken(entry.position, "payload or salt is not what the header commits to")


def parse_header(data: bytes, position: int) -> Header:
    """Read a stored header, holding it to its canonical bytes.

    Raises:
        VerificationError: these are not the bytes of a header.
    """
    try:
        header = _header(json.loads(data))
        is_canonical = header.to_bytes() == data
    except (ValueError, TypeError, KeyError, RecursionError, RequestError) as exc:
        raise _broken(position, "the header cannot be read") from exc
    if not is_canonical:
        raise _broken(position, "the header is not in canonical form")
    return header


def _header(value: Any) -> Header:
    """Raises KeyError or TypeError for another shape; members that do not belong there are left to the caller."""
    header = Header(
        value["tenant_id"],
        value["case_id"],
        value["position"],
        value["event_id"],
        value["type"],
        value["source"],
        value["occurred_at"],
        value["recorded_at"],
        tuple(Link(link["kind"], link["event_id"]) for link in value["links"]),
        value["payload_commitment"],
    )
    strings = [header.tenant_id, header.case_id, header.event_id, header.type, header.source, header.recorded_at]
    strings += [header.payload_commitment, "" if header.occurred_at is None else header.occurred_at]
    strings += [text for link in header.links for text in (link.kind, link.event_id)]
    if type(header.position) is not int or not all(type(text) is str for text in strings):
        raise TypeError("a member has another type")
    return header


def _broken(position: int, reason: str) -> VerificationError:
    return VerificationError(f"position {position}: {reason}", position=position)
