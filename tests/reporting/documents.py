"""A document with every kind of block, around one text."""

from __future__ import annotations

from reporting.document import (
    Badge,
    Block,
    Code,
    Column,
    Document,
    Facts,
    Figure,
    Notice,
    Paragraph,
    Preformatted,
    Section,
    Table,
)
from reporting.plots import Bars, draw_bars


def everything(text: str) -> Document:
    blocks: list[Block] = [
        Paragraph(text),
        Notice(text, "bad"),
        Preformatted(text),
        Facts([(text, Code(text)), ("plain", text)]),
        Table(
            text, [Column(text), Column("n", is_number=True)], [[Badge(text, "good"), text], [text, Code(text)]], text
        ),
        Figure(draw_bars(text, "rate", [text], [Bars(text, [0.5])]), text),
    ]
    return Document(text, text, [Section(text, blocks), Section("second", [])], Badge(text), text)
