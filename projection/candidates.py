"""Which values a slot of the view may take: the anchors of the field's type, best first.

A pure function of (E, T, k): no model is asked. Narrowing to the k best leaves a small model a choice it can make; with
k unlimited every typed anchor of the log is offered. Ranking adds up the rarity of the words that an anchor's sentence
shares with the field's description, weighted by the standing of its event: what corrects another document counts one
and a half times, what a later one supersedes or a party merely states counts half (much of it may still hold, so it is
not dropped). Ties go to the later event.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from projection.anchors import Anchor, find_anchors, find_pattern, find_segments, is_line_value
from projection.events import LoggedEvent
from projection.task import Task, TaskField

_SENTENCE_END = re.compile(r"\n|(?<=[.;!?])\s")
_WORD = re.compile(r"[^\W\d_]{2,}")
_AMOUNT = re.compile(r"(\D*)([0-9][0-9,]*(?:\.[0-9]+)?)(\D*)")
AMOUNT_TYPES = ("money", "percent", "integer")  # of which 5,000 and 5000.00 are one value; a section 4.10 is not 4.1
CORRECTION_LINKS = ("supersedes", "contradicts")
NEAR_WEIGHT = 16  # a word of the anchor's sentence; one that stands right beside it counts double
UNKNOWN = "unknown"  # what a slot offers beside its candidates
STALE, PLAIN, CORRECTING = 1, 2, 3  # the standing of an event, in halves of the score
TYPE_WEIGHT = 8  # a word of the event's type, which names the document but says less than the sentence


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value a slot may take, with the event it is cited from and its rank score."""

    value: str
    position: int
    score: int


Candidates = Mapping[str, Sequence[Candidate]]
"""The candidates of every field, by its name, best first."""


def field_anchors(field: TaskField, event: LoggedEvent) -> tuple[Anchor, ...]:
    """The anchors of one event that a field may take: matches of its pattern, or anchors of its type."""
    if field.pattern is not None:
        return find_pattern(event.text, field.pattern, event.position)
    if field.type == "text":
        return find_segments(event.text, event.position)
    anchors = find_anchors(event.text, event.position)
    return tuple(a for a in anchors if a.kind == field.type and is_line_value(a.value))


def rank_candidates(events: Sequence[LoggedEvent], task: Task, limit: int | None) -> dict[str, tuple[Candidate, ...]]:
    """For each field, its distinct candidate values, best first, at most `limit` of them (None: all).

    Each value is cited from its best-ranked place. Amounts that are equal as numbers are one value. Under a limit, an
    anchor whose sentence shares no word with the description is not offered: `unknown` is the better answer there.
    """
    standing = _standing(events, task.party_statements)
    rarity = _rarity(events)
    sentences = {event.position: _sentence_starts(event.text) for event in events}
    ranked = {}
    for field in task.fields:
        wanted = {word: rarity[word] for word in words(field.description) if word in rarity}
        scored = [
            Candidate(
                a.value, a.position, _score(a, event, sentences[event.position], wanted) * standing[a.position] // 2
            )
            for event in events
            for a in field_anchors(field, event)
        ]
        scored.sort(key=lambda c: (-c.score, -c.position, -len(c.value), c.value))
        if limit is not None:
            scored = [candidate for candidate in scored if candidate.score > 0]
        ranked[field.name] = _distinct_values(scored, field)[:limit]
    return ranked


def words(text: str) -> list[str]:
    """Lower-case word stems of a text; single letters and digits are left out."""
    return [_stem(match[0]) for match in _WORD.finditer(text.replace("_", " "))]


def _distinct_values(candidates: Sequence[Candidate], field: TaskField) -> tuple[Candidate, ...]:
    first: dict[str, Candidate] = {}
    for candidate in candidates:
        key = _as_number(candidate.value) if field.type in AMOUNT_TYPES else candidate.value
        first.setdefault(key, candidate)
    return tuple(first.values())


def _as_number(value: str) -> str:
    """A spelling in which equal amounts are equal: no grouping commas, no zeros at the end of a fraction."""
    match = _AMOUNT.fullmatch(value)
    if match is None:
        return value
    before, number, after = match.groups()
    number = number.replace(",", "")
    shortest = number.rstrip("0").rstrip(".") if "." in number else number
    return f"{before.rstrip()}{shortest}{after.lstrip()}"


def _score(anchor: Anchor, event: LoggedEvent, starts: Sequence[int], wanted: Mapping[str, int]) -> int:
    """Rarity-weighted overlap of the anchor's sentence with the wanted words, nearer words weighing up to double."""
    index = bisect_right(starts, anchor.start)
    end = starts[index] if index < len(starts) else len(event.text)
    nearest: dict[str, int] = {}
    for match in _WORD.finditer(event.text, starts[index - 1], max(end, anchor.end)):
        word = _stem(match[0])
        if word in wanted:
            gap = max(anchor.start - match.end(), match.start() - anchor.end, 0)
            nearest[word] = min(gap, nearest.get(word, gap))
    near = sum(wanted[word] * (NEAR_WEIGHT + NEAR_WEIGHT * 10 // (10 + gap)) for word, gap in nearest.items())
    typed = wanted.keys() & set(words(event.event.type)) - nearest.keys()
    return near + sum(wanted[word] * TYPE_WEIGHT for word in typed)


def _sentence_starts(text: str) -> list[int]:
    return [0, *(match.end() for match in _SENTENCE_END.finditer(text))]


def _stem(word: str) -> str:
    lowered = word.lower()
    return lowered[:-1] if len(lowered) > 3 and lowered.endswith("s") and not lowered.endswith("ss") else lowered


def _rarity(events: Sequence[LoggedEvent]) -> dict[str, int]:
    """Rarity of each word over the events: log2 of (events / events with the word), in eighths, plus one.

    Integers only, so that a ranking is the same on every machine.
    """
    counts = Counter(word for event in events for word in set(words(event.text) + words(event.event.type)))
    return {word: (len(events) ** 8 // count**8).bit_length() for word, count in counts.items()}


def _standing(events: Sequence[LoggedEvent], party_statements: Collection[str]) -> dict[int, int]:
    """The standing of each event, by position. A party's statement corrects nothing and supersedes nothing."""
    documents = [event for event in events if event.event.type not in party_statements]
    superseded = {link.event_id for e in documents for link in e.event.links if link.kind == "supersedes"}
    standing = {event.position: STALE for event in events}
    for event in documents:
        if event.event.event_id not in superseded:
            corrects = any(link.kind in CORRECTION_LINKS for link in event.event.links)
            standing[event.position] = CORRECTING if corrects else PLAIN
    return standing
