"""What another architecture remembers: free text as numbered lines, and the calls that built it.

A `TextMemory` is decided from as a `MemoryView` is: the decision prompt lists its lines, and reasons cite them. Nothing
is promised about what its lines say; only a view is verified. `keep_within` is the one place where a text is cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from projection.anchors import find_anchors
from projection.engine import Completion, Engine, Watch, unwatched
from projection.errors import RequestError
from projection.events import LoggedEvent
from projection.grammar import Grammar
from projection.prompt import visible
from projection.task import Task
from projection.view import SECTIONS, Memory
from projection.view_grammar import Profile

NOTHING = "(nothing is remembered)"  # the one line of an empty memory, so that a reason has a line to cite
_CITATION = re.compile(r"^\s*(?:- )?\[[0-9]+\]")


@dataclass(frozen=True, slots=True)
class TextLine:
    """One line of a memory; `number` counts from 1 over all lines that are neither blank nor a view's heading."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class TextMemory:
    """A memory that is only text."""

    text: str

    @property
    def lines(self) -> tuple[TextLine, ...]:
        """At least one: an empty memory says that it is empty."""
        rows = [row for row in self.text.split("\n") if row.strip() and row not in SECTIONS] or [NOTHING]
        return tuple(TextLine(number, row) for number, row in enumerate(rows, start=1))

    @property
    def value_texts(self) -> list[str]:
        """The lines without the citation that a line may begin with."""
        return [_CITATION.sub("", line.text) for line in self.lines]


@dataclass(frozen=True, slots=True)
class MemoryCall:
    """One model call that changed the memory. `memory_text` is the memory after it, within the budget.

    name: "event 7", "projection". grammar: None where the model wrote freely.
    """

    name: str
    prompt_token_ids: tuple[int, ...]
    grammar: Grammar | None
    max_tokens: int
    completion: Completion
    memory_text: str


@dataclass(frozen=True, slots=True)
class BuiltMemory:
    """A memory at decision time and every call that it took, in order. `text` has at most B characters."""

    memory: Memory
    text: str
    calls: tuple[MemoryCall, ...]


class BuildMemory(Protocol):
    """A memory architecture: (E, T, B) to a memory, with as many calls as it needs.

    A pure function of its arguments and the engine's answers: every call goes through `engine`, and nothing is kept
    between two memories. That is what lets a replay run it again against recorded answers.
    """

    def __call__(
        self,
        engine: Engine,
        events: Sequence[LoggedEvent],
        task: Task,
        budget_chars: int,
        profile: Profile,
        watch: Watch = unwatched,
    ) -> BuiltMemory: ...


@dataclass(frozen=True, slots=True)
class Architecture:
    """A memory architecture by name. `parameters` is a JSON value: what else decides its memories."""

    name: str
    parameters: dict[str, Any]
    build_memory: BuildMemory


def keep_within(text: str, budget_chars: int, *, is_complete: bool) -> str:
    """What a memory keeps of a completion: all of it, or its longest beginning of whole words within the budget.

    A text that ended by itself and fits is kept whole. Otherwise the last word that is kept ends before a space within
    the budget that stands inside no value, so that no amount or date is cut in two; a text that hit its token limit
    loses the word it broke off in.
    """
    if is_complete and len(text) <= budget_chars:
        return text
    spans = [(anchor.start, anchor.end) for anchor in find_anchors(text)]
    for end in range(min(budget_chars, len(text) - 1), -1, -1):
        if text[end].isspace() and not any(first < end < last for first, last in spans):
            return text[:end]
    return ""


def event_line(event: LoggedEvent) -> str:
    """An event as a memory holds it verbatim: its position, type and day, and its text as a model reads it.

    Further lines of the text stand behind a bar, so that none can pass for a line of the memory's own.
    """
    when = f" {event.event.occurred_at[:10]}" if event.event.occurred_at else ""
    text = visible(event.text).replace("\n", "\n| ")
    return f"[{event.position}] {visible(event.event.type)}{when}: {text}"


def append_line(text: str, line: str) -> str:
    """A memory and one more line."""
    return f"{text}\n{line}" if text and not text.endswith("\n") else text + line


def check_events(events: Sequence[LoggedEvent]) -> None:
    """Refuse a case that has nothing to remember."""
    if not events:
        raise RequestError("the case has no events; append some first")
