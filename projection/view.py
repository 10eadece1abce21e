"""The memory view M: parsed from its text, and verified from its text alone.

`verify_view` knows nothing of grammars, models or engines. It holds a text against the events and the task, as an
auditor with a pencil would: every citation exists, every value and every further fact stands verbatim in the event it
cites, every number elsewhere is an anchor of the cited event, every provision is one of the task's, and the budget is
kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from projection.anchors import AnchorKind, find_anchors, find_invented
from projection.candidates import UNKNOWN, field_anchors
from projection.errors import VerificationError
from projection.events import LoggedEvent
from projection.quotes import find_quotes
from projection.task import Task, TaskField

Section = Literal["FACTS", "REASONING", "COMPLIANCE"]
SECTIONS: tuple[Section, ...] = ("FACTS", "REASONING", "COMPLIANCE")
_CITED = re.compile(r"- \[(?P<position>[1-9][0-9]{0,8})\] (?P<words>.+)")
_SLOT_VALUE = re.compile(r"(?P<value>.+) \[(?P<position>[1-9][0-9]{0,8})\]")


class MemoryLine(Protocol):
    """One line of a memory; `number` counts from 1: the `L1` a reason cites."""

    @property
    def number(self) -> int: ...

    @property
    def text(self) -> str: ...


class Memory(Protocol):
    """What a decision is made from. A `MemoryView` is one; what other architectures remember can be one too."""

    @property
    def lines(self) -> Sequence[MemoryLine]:
        """At least one."""
        ...

    @property
    def value_texts(self) -> Sequence[str]:
        """The texts whose values a rationale may repeat."""
        ...


@dataclass(frozen=True, slots=True)
class Fact:
    """The value of one field and the event it is cited from; both None when the view says unknown."""

    name: str
    value: str | None
    position: int | None


@dataclass(frozen=True, slots=True)
class ViewLine:
    """One line of a view; `number` counts from 1 over all lines that are not headings (the `L1` a reason cites)."""

    number: int
    section: Section
    text: str
    position: int | None
    provision_id: str | None
    words: str | None


@dataclass(frozen=True, slots=True)
class MemoryView:
    """A parsed view. `text` is the evidence; everything else is read from it."""

    text: str
    facts: tuple[Fact, ...]
    lines: tuple[ViewLine, ...]

    @property
    def num_chars(self) -> int:
        return len(self.text)

    @property
    def value_texts(self) -> list[str]:
        """The values of the fields, and the words of the free lines."""
        values = [fact.value for fact in self.facts if fact.value is not None]
        return values + [line.words for line in self.lines if line.words is not None]


@dataclass(frozen=True, slots=True)
class Omission:
    """An anchor of the log that the view leaves out, with every event it stands in."""

    value: str
    kind: AnchorKind
    positions: tuple[int, ...]


def parse_view(text: str, task: Task) -> MemoryView:
    """Read a view's sections and lines.

    Raises:
        VerificationError: the text has not the form of a view; `fields["line"]` is its 1-based line.
    """
    if not text.endswith("\n"):
        raise VerificationError("the view does not end with a line feed", line=text.count("\n") + 1)
    rows = text[:-1].split("\n")
    sections = _sections(rows)
    facts, lines = [], []
    for index, (row_number, section, row) in enumerate(sections):
        field = task.fields[index] if index < len(task.fields) else None
        if field is not None:
            fact = _slot(row, section, field, row_number)
            facts.append(fact)
            lines.append(ViewLine(index + 1, section, row, fact.position, None, None))
        else:
            lines.append(_free_line(index + 1, row, section, task, row_number))
    if len(facts) < len(task.fields):
        missing = task.fields[len(facts)]
        raise VerificationError(f"the view has no line for field {missing.name!r}", field=missing.name, line=len(rows))
    return MemoryView(text, tuple(facts), tuple(lines))


def verify_view(text: str, events: Sequence[LoggedEvent], task: Task, budget_chars: int) -> MemoryView:
    """Hold a view against the log, from its text alone, and return it parsed.

    Raises:
        VerificationError: the first line that does not hold, and why.
    """
    if len(text) > budget_chars:
        raise VerificationError(
            f"the view has {len(text)} characters; its budget is {budget_chars}",
            num_chars=len(text),
            budget_chars=budget_chars,
        )
    view = parse_view(text, task)
    by_position = {event.position: event for event in events}
    for line in view.lines:
        if line.position is not None and line.position not in by_position:
            raise VerificationError(
                f"line L{line.number} cites [{line.position}], which the log does not have",
                line=line.number,
                position=line.position,
            )
        if line.words is not None and line.position is not None:
            _verify_words(line, by_position[line.position])
    for fact, field in zip(view.facts, task.fields, strict=True):
        if fact.position is not None:
            _verify_fact(fact, field, by_position[fact.position])
    return view


def find_omissions(view: MemoryView, events: Sequence[LoggedEvent]) -> tuple[Omission, ...]:
    """The log's anchors whose value appears nowhere in the view, in order of first appearance."""
    values = [fact.value for fact in view.facts if fact.value is not None]
    shown = {*values, *(anchor.value for text in view.value_texts for anchor in find_anchors(text))}
    places: dict[tuple[str, AnchorKind], list[int]] = {}
    for event in events:
        for anchor in find_anchors(event.text, event.position):
            if anchor.value not in shown:
                positions = places.setdefault((anchor.value, anchor.kind), [])
                if event.position not in positions:
                    positions.append(event.position)
    return tuple(Omission(value, kind, tuple(positions)) for (value, kind), positions in places.items())


def _sections(rows: Sequence[str]) -> list[tuple[int, Section, str]]:
    """(row number, section, row) of every row that is not a heading; the three headings stand once, in order."""
    if not rows or rows[0] != SECTIONS[0]:
        raise VerificationError(f"the view does not begin with {SECTIONS[0]}", line=1)
    current, found = 0, []
    for number, row in enumerate(rows[1:], start=2):
        if row in SECTIONS:
            current += 1
            if current == len(SECTIONS) or row != SECTIONS[current]:
                raise VerificationError(f"heading {row} stands in the wrong place", line=number)
        else:
            found.append((number, SECTIONS[current], row))
    if current != len(SECTIONS) - 1:
        raise VerificationError(f"the view has no section {SECTIONS[current + 1]}", line=len(rows))
    return found


def _slot(row: str, section: Section, field: TaskField, row_number: int) -> Fact:
    prefix = f"- {field.description}: "
    if section != "FACTS" or not row.startswith(prefix):
        raise VerificationError(f"the view should have a line {prefix!r} here", field=field.name, line=row_number)
    rest = row[len(prefix) :]
    if rest == UNKNOWN:
        return Fact(field.name, None, None)
    match = _SLOT_VALUE.fullmatch(rest)
    if match is None:
        raise VerificationError(f"field {field.name!r} has neither a cited value nor {UNKNOWN}", line=row_number)
    return Fact(field.name, match["value"], int(match["position"]))


def _free_line(number: int, row: str, section: Section, task: Task, row_number: int) -> ViewLine:
    match = _CITED.fullmatch(row)
    if match is None:
        raise VerificationError("a free line must be '- [number] words'", line=row_number)
    words, provision_id = match["words"], None
    if section == "COMPLIANCE":
        provision_id = next((p.id for p in task.provisions if words.startswith(f"{p.id}: ")), None)
        if provision_id is None:
            raise VerificationError("a COMPLIANCE line must name a provision of the task", line=row_number)
        words = words[len(provision_id) + 2 :]
    return ViewLine(number, section, row, int(match["position"]), provision_id, words)


def _verify_words(line: ViewLine, event: LoggedEvent) -> None:
    """Words are a sentence of the cited event; or every number in them is an anchor of that event."""
    if line.words in find_quotes(event.text):
        return
    if line.section == "FACTS":
        raise VerificationError(f"line L{line.number} is no sentence of event [{event.position}]", line=line.number)
    invented = find_invented(line.words or "", {anchor.value for anchor in find_anchors(event.text)})
    if invented is not None:
        raise VerificationError(
            f"line L{line.number} says {invented!r}, which does not stand as a value in the event it cites, "
            f"[{event.position}]",
            line=line.number,
            value=invented,
            position=event.position,
        )


def _verify_fact(fact: Fact, field: TaskField, event: LoggedEvent) -> None:
    if fact.value not in {anchor.value for anchor in field_anchors(field, event)}:
        raise VerificationError(
            f"field {fact.name!r} is given as {fact.value!r}, which is no {field.type} of event [{event.position}]",
            field=fact.name,
            value=fact.value,
            position=event.position,
        )
