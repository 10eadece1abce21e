"""A document as GitHub-flavoured Markdown, for forges and mail. Plots are left out: they are on the page.

Promises: no text of a document becomes markup, a link or HTML; invisible characters are spelled out; equal documents
give equal bytes.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from projection.prompt import visible
from reporting.document import (
    Badge,
    Block,
    Code,
    Document,
    Facts,
    Figure,
    Inline,
    Notice,
    Paragraph,
    Preformatted,
    Table,
)

_MARKUP = re.compile(r"([\\`*_\[\]|~@$]|:(?=//)|(?<=www)\.)", re.IGNORECASE)
_LINE_START = re.compile(r"^(?=[#+\-=])|^(?<!\d)(\d+)(?=[.)])")


def render_markdown(document: Document) -> str:
    """The whole document as Markdown."""
    verdict = f" {_inline(document.verdict)}" if document.verdict is not None else ""
    parts = [f"# {_text(document.title)}{verdict}", _prose(document.lead)]
    for section in document.sections:
        blocks = [shown for block in section.blocks if (shown := _block(block))]
        parts += [f"## {_text(section.title)}", *blocks] if blocks else []
    parts += [_prose(document.footer)] if document.footer else []
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    match block:
        case Paragraph(text=text):
            return _prose(text)
        case Notice(text=text):
            return f"> {_prose(text)}"
        case Preformatted(text=text):
            return _fenced(text)
        case Facts(rows=rows):
            return "\n".join(f"- {_prose(name)}: {_inline(value)}" for name, value in rows)
        case Table():
            return _table(block)
        case Figure():
            return ""


def _table(table: Table) -> str:
    head = _row([column.title for column in table.columns])
    rule = "|" + "|".join("---:" if column.is_number else "---" for column in table.columns) + "|"
    rows = [_row(row) for row in table.rows]
    note = f"\n\n{_prose(table.note)}" if table.note else ""
    return "\n".join([f"**{_text(table.title)}**", "", head, rule, *rows]) + note


def _row(values: Sequence[Inline]) -> str:
    """A bar ends a cell even inside a code span; elsewhere it is escaped already."""
    cells = [_inline(value).replace("|", r"\|") if isinstance(value, Code) else _inline(value) for value in values]
    return f"| {' | '.join(cells)} |"


def _inline(value: Inline) -> str:
    match value:
        case Badge(text=text):
            return f"**{_text(text)}**" if text else ""
        case Code(text=text):
            return _code(text)
        case str():
            return _text(value)


def _code(text: str) -> str:
    """A code span, fenced by more backticks than the text has in a row."""
    shown = _one_line(text)
    if not shown:
        return ""
    fence = _backticks(shown, 1)
    return f"{fence} {shown} {fence}" if "`" in shown else f"{fence}{shown}{fence}"


def _fenced(text: str) -> str:
    shown = visible(text)
    fence = _backticks(shown, 3)
    return f"{fence}text\n{shown}\n{fence}"


def _backticks(text: str, least: int) -> str:
    """More of them than stand in a row anywhere in the text."""
    return "`" * max(least, 1 + max((len(run) for run in re.findall("`+", text)), default=0))


def _prose(text: str) -> str:
    """A text that begins a line, where some characters would begin a heading or a list."""
    return _LINE_START.sub(r"\1\\", _text(text))


def _text(text: str) -> str:
    return _MARKUP.sub(r"\\\1", html.escape(_one_line(text), quote=False))


def _one_line(text: str) -> str:
    return " ".join(visible(text).split())
