"""Ingest: bytes of a file become events, or an error that names the line.

Reads CloudEvents 1.0 and a minimal form, one JSON object per line (JSON Lines) or as one JSON array:

- CloudEvents: `id`, `source`, `type`, optional `time` and `subject`. The text is `data` where that is a string, else
  `data.text`; links are `data.links` or the extension attribute `links`. Other context and extension attributes
  (`datacontenttype`, `traceparent`, ...) belong to the envelope and are not kept; other members of `data` are refused,
  because they would be lost.
- Minimal: `{"type", "time", "text"}`, optionally `id`, `source` and `links`, nothing else. Without an id the event gets
  one from its content, so that the same file read twice holds the same events.

Promises: text is kept character for character, whatever it holds (NUL, right-to-left marks, a model's control tokens,
headings); nothing is trimmed, normalised or repaired. Within a stream an id alone names an event: two events with one
id must be equal (then one of them is kept), also where CloudEvents would tell them apart by source.
It does not read files and knows no log.
"""

from __future__ import annotations

import datetime
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from projection.canonical import value_digest
from projection.errors import EventError
from projection.events import LINK_KINDS, MAX_EVENT_CHARS, Event, Link, LinkKind

MAX_BATCH_BYTES = 268_435_456  # one file; a longer trajectory is appended in parts
MAX_NAME_CHARS = 256  # of an id, type, source, subject, tenant id or case id
MAX_LINKS = 256  # of one event
UNSTATED_SOURCE = "unstated"  # of a minimal event without a source

_MINIMAL_KEYS = frozenset({"type", "time", "text", "id", "source", "links"})
_DATA_KEYS = frozenset({"text", "links"})
_LINK_KEYS = frozenset({"kind", "event_id"})
_UTF8_BOM = b"\xef\xbb\xbf"
_JSON_SPACE = re.compile(r"[ \t\r\n]*")
_CONTROL_OR_SURROGATE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d{1,18})?"
    r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class ParsedEvents:
    """The events of one file, in its order.

    lines: (num_events,), the 1-based line on which each event starts.
    subject: the CloudEvents subject that every event of the file has, else None.
    """

    events: tuple[Event, ...]
    lines: tuple[int, ...]
    subject: str | None


def parse_events(data: bytes, *, source_name: str) -> ParsedEvents:
    """Read every event of a file, or none.

    source_name: what to call the file in an error.

    Raises:
        EventError: with the line, for anything that cannot be taken.
    """
    events: list[Event] = []
    lines: list[int] = []
    subjects: set[str | None] = set()
    line = 1
    try:
        for line, value in _json_values(_decode(data)):
            event, subject = _event(value)
            check_event(event)
            events.append(event)
            lines.append(line)
            subjects.add(subject)
        if not events:
            raise EventError("the file holds no events: write one JSON object per line, or one JSON array")
        unique = drop_repeats(events, lines)
    except EventError as exc:
        exc.fields.setdefault("line", line)
        message = f"{source_name}, line {exc.fields['line']}: {exc.message}"
        raise EventError(message, **exc.fields) from exc
    kept = tuple(unique.values())
    subject = subjects.pop() if len(subjects) == 1 else None
    return ParsedEvents(tuple(event for event, _ in kept), tuple(line for _, line in kept), subject)


def drop_repeats(events: Sequence[Event], lines: Sequence[int]) -> dict[str, tuple[Event, int]]:
    """The events by id, in order, each with its line; an event that comes twice is kept once.

    Raises:
        EventError: one id with two contents.
    """
    unique: dict[str, tuple[Event, int]] = {}
    for event, line in zip(events, lines, strict=True):
        first, first_line = unique.setdefault(event.event_id, (event, line))
        if first is not event and first != event:
            message = f"event id {event.event_id!r} stands on line {first_line} with other content: use another id"
            raise EventError(message, line=line, first_line=first_line, event_id=event.event_id)
    return unique


def check_event(event: Event, *, max_chars: int = MAX_EVENT_CHARS) -> None:
    """Refuse an event that no log may hold.

    Raises:
        EventError: an unfit id, type, source, time, text or link.
    """
    for what, name in (("id", event.event_id), ("type", event.type), ("source", event.source)):
        _check_name(what, name)
    if event.occurred_at is not None:
        problem = time_problem(event.occurred_at)
        if problem:
            raise EventError(f"the event's time {problem}")
    _check_text(event.text, max_chars)
    if len(event.links) > MAX_LINKS:
        raise EventError(f"the event has {len(event.links)} links; at most {MAX_LINKS} are taken")
    for link in event.links:
        if link.kind not in LINK_KINDS:
            raise EventError(f"unknown link kind {link.kind!r}: use one of {', '.join(LINK_KINDS)}")
        _check_name("link's event_id", link.event_id)


def name_problem(name: object) -> str | None:
    """What is wrong with an id, type, source, subject, tenant id or case id; None when nothing is."""
    if not isinstance(name, str) or not name:
        return "must be a string that is not empty"
    if len(name) > MAX_NAME_CHARS:
        return f"has {len(name)} characters; at most {MAX_NAME_CHARS} are taken"
    if _CONTROL_OR_SURROGATE.search(name):
        return "holds a control character or half a surrogate pair"
    return None


def time_problem(time: object) -> str | None:
    """What is wrong with a time (RFC 3339, section 5.6); None when nothing is."""
    wanted = "is not RFC 3339, as in 2026-01-31T09:30:00Z"
    matched = _RFC3339.fullmatch(time) if isinstance(time, str) else None
    if matched is None:
        return wanted
    year, month, day = matched.groups()
    try:
        datetime.date(int(year), int(month), int(day))
    except ValueError:
        return f"{wanted} (no such day)"
    return None


def _check_name(what: str, name: object) -> None:
    problem = name_problem(name)
    if problem:
        raise EventError(f"the event's {what} {problem}")


def _check_text(text: str, max_chars: int) -> None:
    if not text or text.isspace():
        raise EventError("the event has no text")
    if len(text) > max_chars:
        message = f"the event's text has {len(text)} characters; at most {max_chars} are taken: append it in parts"
        raise EventError(message, num_chars=len(text), max_chars=max_chars)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise EventError(f"the event's text holds half a surrogate pair at character {exc.start}") from exc


# From bytes to JSON values with their lines


def _decode(data: bytes) -> str:
    if len(data) > MAX_BATCH_BYTES:
        message = f"the file has {len(data)} bytes; at most {MAX_BATCH_BYTES} are taken: append it in parts"
        raise EventError(message, line=1, num_bytes=len(data), max_bytes=MAX_BATCH_BYTES)
    data = data.removeprefix(_UTF8_BOM)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        line = 1 + data.count(b"\n", 0, exc.start)
        raise EventError(f"this is not UTF-8 (byte {exc.start}): {exc.reason}", line=line) from exc


def _json_values(text: str) -> Iterator[tuple[int, Any]]:
    start = _skip_space(text, 0)
    return _array_elements(text, start) if text.startswith("[", start) else _json_lines(text)


def _json_lines(text: str) -> Iterator[tuple[int, Any]]:
    """Lines end with a line feed and nothing else: U+2028 may stand inside a JSON string. Blank lines are skipped."""
    for line, ended in enumerate(io.StringIO(text, newline="\n"), start=1):
        content = ended.removesuffix("\n")
        start = _skip_space(content, 0)
        if start == len(content):
            continue
        value, end = _parse_value(content, start, line)
        if _skip_space(content, end) != len(content):
            raise EventError("something follows the JSON object: write one object per line", line=line)
        yield line, value


def _array_elements(text: str, start: int) -> Iterator[tuple[int, Any]]:
    line, counted = 1, 0
    position = _skip_space(text, start + 1)
    more = not text.startswith("]", position)
    while more:
        line, counted = line + text.count("\n", counted, position), position
        value, end = _parse_value(text, position, line)
        yield line, value
        position = _skip_space(text, end)
        more = text.startswith(",", position)
        if more:
            position = _skip_space(text, position + 1)
    line += text.count("\n", counted, position)
    if not text.startswith("]", position):
        raise EventError("invalid JSON: the array wants ',' or ']' here", line=line)
    if _skip_space(text, position + 1) != len(text):
        raise EventError("something follows the JSON array", line=line)


def _parse_value(text: str, start: int, line: int) -> tuple[Any, int]:
    """The JSON value that starts at `start`, on `line`, and the index after it."""
    try:
        return _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as exc:
        found_on = line + text.count("\n", start, exc.pos)
        raise EventError(f"invalid JSON: {exc.msg} (column {exc.colno})", line=found_on) from exc
    except (ValueError, RecursionError) as exc:
        raise EventError(f"invalid JSON: {exc}", line=line) from exc


def _skip_space(text: str, start: int) -> int:
    matched = _JSON_SPACE.match(text, start)
    return matched.end() if matched else start


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice in one object")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)


# From JSON values to events


def _event(value: Any) -> tuple[Event, str | None]:
    if not isinstance(value, dict):
        raise EventError(f"an event is a JSON object, and this is {_json_type(value)}")
    return _cloud_event(value) if "specversion" in value else (_minimal_event(value), None)


def _cloud_event(value: dict[str, Any]) -> tuple[Event, str | None]:
    """Source: CloudEvents 1.0.2, sections 3.1 and 3.3, and its JSON format, section 2."""
    if value["specversion"] != "1.0":
        raise EventError(f"specversion is {value['specversion']!r}: only CloudEvents 1.0 is read")
    text, links = _cloud_event_data(value)
    event = Event(
        event_id=_string(value, "id"),
        type=_string(value, "type"),
        source=_string(value, "source"),
        occurred_at=_optional_string(value, "time"),
        text=text,
        links=_links(links),
    )
    subject = _optional_string(value, "subject")
    if subject is not None:
        _check_name("subject", subject)
    return event, subject


def _cloud_event_data(value: dict[str, Any]) -> tuple[str, Any]:
    """The text and the raw links of a CloudEvent."""
    data, links = value.get("data"), value.get("links")
    if isinstance(data, str):
        return data, links
    if not isinstance(data, dict):
        raise EventError("the event has no text: put it into data, or into data.text")
    _refuse_other_keys("data", data, _DATA_KEYS)
    if links is not None and data.get("links") is not None:
        raise EventError("links stand both in data.links and in the attribute links: keep one")
    return _string(data, "text"), data.get("links") if links is None else links


def _minimal_event(value: dict[str, Any]) -> Event:
    _refuse_other_keys("the event", value, _MINIMAL_KEYS)
    event_id, source = _optional_string(value, "id"), _optional_string(value, "source")
    event = Event(
        event_id="pending" if event_id is None else event_id,
        type=_string(value, "type"),
        source=UNSTATED_SOURCE if source is None else source,
        occurred_at=_optional_string(value, "time"),
        text=_string(value, "text"),
        links=_links(value.get("links")),
    )
    return replace(event, event_id=_content_id(event)) if event_id is None else event


def _content_id(event: Event) -> str:
    check_event(event)
    content = {"type": event.type, "time": event.occurred_at, "text": event.text}
    return f"sha256:{value_digest('dpm/event-id/v1', content)[:32]}"


def _links(value: Any) -> tuple[Link, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise EventError('links are a list of {"kind", "event_id"}')
    return tuple(_link(item) for item in value)


def _link(value: Any) -> Link:
    if not isinstance(value, dict):
        raise EventError('a link is an object {"kind", "event_id"}')
    _refuse_other_keys("a link", value, _LINK_KEYS)
    kind = cast(LinkKind, _string(value, "kind"))  # check_event holds it to the list
    return Link(kind, _string(value, "event_id"))


def _string(value: dict[str, Any], key: str) -> str:
    found = value.get(key)
    if found is None:
        raise EventError("the event has no text" if key == "text" else f"{key!r} is missing")
    if not isinstance(found, str):
        raise EventError(f"{key!r} must be a string, and this is {_json_type(found)}")
    return found


def _optional_string(value: dict[str, Any], key: str) -> str | None:
    """None where the key is absent or null (CloudEvents JSON format, section 2.2)."""
    return None if value.get(key) is None else _string(value, key)


def _refuse_other_keys(what: str, value: dict[str, Any], known: frozenset[str]) -> None:
    other = sorted(value.keys() - known)
    if other:
        names = ", ".join(repr(key) for key in other)
        raise EventError(f"{what} has {names}, which would be lost; known are {', '.join(sorted(known))}")


def _json_type(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
