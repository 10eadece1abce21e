"""The values that a report is made of, before it becomes a page or a text.

Texts are plain and may come from anywhere: whoever renders a document escapes them. A `Table` has at least one column,
and rows as long as its columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reporting.plots import Svg

Tone = Literal["good", "bad", "warning", "plain"]


@dataclass(frozen=True, slots=True)
class Badge:
    """A short word that is seen first: a verdict. Its tone is a colour; the word must say the same without it."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Code:
    """Text of a machine or a model: digests, commands, tokens."""

    text: str


Inline = str | Badge | Code


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Prose."""

    text: str


@dataclass(frozen=True, slots=True)
class Notice:
    """A paragraph that must not be overlooked."""

    text: str
    tone: Tone = "warning"


@dataclass(frozen=True, slots=True)
class Preformatted:
    """Lines that keep their breaks and spaces, such as a command."""

    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and their values, below each other."""

    rows: Sequence[tuple[str, Inline]]


@dataclass(frozen=True, slots=True)
class Column:
    """A heading; numbers stand to the right."""

    title: str
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows as long as `columns`; the first column names the row. note: how to read it, in small print."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Inline]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot and what it shows."""

    plot: Svg
    caption: str


Block = Paragraph | Notice | Preformatted | Facts | Table | Figure


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report. lead: the answer in one or two sentences. footer: what made it, for instance a command."""

    title: str
    lead: str
    sections: Sequence[Section]
    verdict: Badge | None = None
    footer: str = ""
