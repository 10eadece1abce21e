"""Events: what a case's trajectory is made of.

An `Event` is what a caller hands in; a `LoggedEvent` is the same with its place in the log. Both are frozen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from projection.canonical import value_digest

LinkKind = Literal["supersedes", "derived_from", "supports", "contradicts"]
LINK_KINDS: tuple[LinkKind, ...] = ("supersedes", "derived_from", "supports", "contradicts")
MAX_EVENT_CHARS = 262_144  # one event; a longer document is appended in parts
AUDIT_CASE_ID = "audit"  # the stream of sealed records; no case may take the name


@dataclass(frozen=True, slots=True)
class Link:
    """A typed reference from one event to another event of the same stream, by event id."""

    kind: LinkKind
    event_id: str


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened in a case.

    `occurred_at` is the time it was true or happened, RFC 3339, as the caller wrote it (None when unknown).
    `text` is the payload, verbatim: nothing is trimmed, normalised or interpreted.
    """

    event_id: str
    type: str
    source: str
    occurred_at: str | None
    text: str
    links: tuple[Link, ...] = ()

    def content(self) -> dict[str, Any]:
        """The event as a JSON value: what two events must share to be the same event."""
        return {
            "event_id": self.event_id,
            "type": self.type,
            "source": self.source,
            "occurred_at": self.occurred_at,
            "text": self.text,
            "links": [{"kind": link.kind, "event_id": link.event_id} for link in self.links],
        }


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event at its 1-based position in a stream: the `[position]` that a memory view cites."""

    position: int
    event: Event

    @property
    def text(self) -> str:
        return self.event.text


def numbered(events: Iterable[Event]) -> tuple[LoggedEvent, ...]:
    """The events at the positions 1, 2, 3 ... of a stream that holds only them."""
    return tuple(LoggedEvent(position, event) for position, event in enumerate(events, start=1))


def events_digest(events: Sequence[LoggedEvent]) -> str:
    """Digest of E: positions and contents, without salts or recording times, so that equal trajectories are equal."""
    return value_digest("dpm/events/v1", [{"position": e.position, **e.event.content()} for e in events])
