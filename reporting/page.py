"""A document as one self-contained HTML page.

Promises: every text is escaped, with invisible characters spelled out; the page asks for nothing from anywhere and runs
no script (a content security policy inside it says so, too); equal documents give equal bytes. It follows the reader's
light or dark scheme, prints in black on white, and on a narrow screen a wide table scrolls inside its own frame.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from projection.prompt import visible
from reporting.document import (
    Badge,
    Block,
    Code,
    Column,
    Document,
    Facts,
    Figure,
    Inline,
    Notice,
    Paragraph,
    Preformatted,
    Section,
    Table,
)

MAX_UNBROKEN_CHARS = 32


def render_page(document: Document) -> str:
    """The whole page as HTML text."""
    badge = f" {_inline(document.verdict)}" if document.verdict is not None else ""
    numbered = list(enumerate(document.sections, 1))
    links = "".join(f'<a href="#s{number}">{_text(section.title)}</a>' for number, section in numbered)
    body = "\n".join(_section(number, section) for number, section in numbered)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{_text(document.title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<header>\n"
        f'<h1>{_text(document.title)}{badge}</h1>\n<p class="lead">{_text(document.lead)}</p>\n'
        f"<nav>{links}</nav>\n</header>\n"
        f"<main>\n{body}\n</main>\n<footer>{_text(document.footer)}</footer>\n</body>\n</html>\n"
    )


def _section(number: int, section: Section) -> str:
    blocks = "\n".join(_block(block) for block in section.blocks)
    return f'<section id="s{number}">\n<h2>{_text(section.title)}</h2>\n{blocks}\n</section>'


def _block(block: Block) -> str:
    match block:
        case Paragraph(text=text):
            return f"<p>{_text(text)}</p>"
        case Notice(text=text, tone=tone):
            return f'<p class="notice {tone}">{_text(text)}</p>'
        case Preformatted(text=text):
            return f'<div class="frame" tabindex="0"><pre>{_text(text)}</pre></div>'
        case Facts(rows=rows):
            return f"<dl>{''.join(f'<dt>{_text(name)}</dt><dd>{_inline(value)}</dd>' for name, value in rows)}</dl>"
        case Figure(plot=plot, caption=caption):
            shown = f'<div class="frame" tabindex="0">{plot}</div>'
            return f"<figure>{shown}<figcaption>{_text(caption)}</figcaption></figure>"
        case Table():
            return _table(block)


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col"{_class_of(column)}>{_text(column.title)}</th>' for column in table.columns)
    rows = "\n".join(f"<tr>{_row(table.columns, row)}</tr>" for row in table.rows)
    note = f'\n<p class="note">{_text(table.note)}</p>' if table.note else ""
    return (
        f'<h3>{_text(table.title)}</h3>\n<div class="frame" tabindex="0"><table aria-label="{_text(table.title)}">\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>{note}"
    )


def _row(columns: Sequence[Column], row: Sequence[Inline]) -> str:
    (first_column, first), *others = zip(columns, row, strict=True)
    cells = "".join(f"<td{_class_of(column, value)}>{_inline(value)}</td>" for column, value in others)
    return f'<th scope="row"{_class_of(first_column, first)}>{_inline(first)}</th>{cells}'


def _class_of(column: Column, value: Inline | None = None) -> str:
    """Numbers stand to the right; what is short is not broken at its hyphens, what is long is not squeezed."""
    if column.is_number:
        return ' class="number"'
    if value is None:
        return ""
    length = len(value) if isinstance(value, str) else len(value.text)
    return ' class="long"' if length > MAX_UNBROKEN_CHARS else ' class="short"'


def _inline(value: Inline) -> str:
    match value:
        case Badge(text=text, tone=tone):
            return f'<span class="badge {tone}">{_text(text)}</span>'
        case Code(text=text):
            return f"<code>{_text(text)}</code>"
        case str():
            return _text(value)


def _text(text: str) -> str:
    return html.escape(visible(text))


_STYLE = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --ink: #1f2328; --quiet: #59636e; --line: #d5dae0; --shade: #f5f7f9; --link: #0757b8;
  --good: #116329; --good-shade: #dcf5e3; --bad: #a40e26; --bad-shade: #ffe3e3;
  --warning: #7a4b00; --warning-shade: #fff2cc; --plain: #59636e; --plain-shade: #eaeef2;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f1419; --ink: #e3e8ee; --quiet: #9aa5b1; --line: #323b45; --shade: #171d24; --link: #74b4ff;
    --good: #6fdd8b; --good-shade: #12331d; --bad: #ff9a9a; --bad-shade: #481a1e;
    --warning: #f0c05a; --warning-shade: #3b2d0b; --plain: #a7b1bc; --plain-shade: #262e37;
  }
}
* { box-sizing: border-box; }
body {
  max-width: 76rem; margin: 0 auto; padding: 1.5rem clamp(0.9rem, 3vw, 2.5rem) 3rem;
  background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif;
  overflow-wrap: break-word;
}
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0.5rem 0; text-wrap: balance; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 0.6rem; padding-bottom: 0.3rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 0.95rem; margin: 1.4rem 0 0; }
p, dl { max-width: 46rem; margin: 0.6rem 0; }
.lead { font-size: 1.1rem; }
nav { display: flex; flex-wrap: wrap; gap: 0.2rem 1.1rem; font-size: 0.9rem; margin-top: 0.9rem; }
a { color: var(--link); }
.badge {
  display: inline-block; padding: 0.05em 0.55em; border-radius: 0.35em; font-size: 0.8em; font-weight: 650;
  letter-spacing: 0.02em; white-space: nowrap;
}
h1 .badge { font-size: 0.6em; vertical-align: 0.25em; }
.good { color: var(--good); background: var(--good-shade); }
.bad { color: var(--bad); background: var(--bad-shade); }
.warning { color: var(--warning); background: var(--warning-shade); }
.plain { color: var(--plain); background: var(--plain-shade); }
.notice { padding: 0.6rem 0.9rem; border-radius: 0.4rem; border-left: 4px solid currentColor; }
code, pre { font: 0.86em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
code { overflow-wrap: anywhere; unicode-bidi: isolate; }
pre { margin: 0; padding: 0.7rem 0.9rem; background: var(--shade); border-radius: 0.4rem; }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr; gap: 0.25rem 1.2rem; }
dt { color: var(--quiet); }
dd { margin: 0; min-width: 0; }
.frame { overflow-x: auto; margin: 0.4rem 0; }
table { border-collapse: collapse; width: 100%; font-size: 0.875rem; line-height: 1.4; }
th, td { padding: 0.4rem 0.55rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { color: var(--quiet); font-weight: 600; vertical-align: bottom; border-bottom-width: 2px; }
tbody th { font-weight: 500; position: sticky; left: 0; background: var(--page); }
tbody tr:hover > * { background: var(--shade); }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
thead .number { white-space: normal; }
.short { white-space: nowrap; }
.long { min-width: 13rem; }
.note, figcaption { color: var(--quiet); font-size: 0.85rem; max-width: 46rem; margin: 0.2rem 0 1.2rem; }
figure { margin: 1.2rem 0; }
figure svg { display: block; width: 100%; max-width: 50rem; min-width: 34rem; height: auto; color: var(--ink); }
footer { margin-top: 3rem; padding-top: 0.8rem; border-top: 1px solid var(--line); color: var(--quiet); }
footer { font-size: 0.85rem; }
@media (max-width: 40rem) {
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 0.5rem; }
  th, td { padding: 0.35rem 0.5rem; }
  tbody th.short, tbody th.long { min-width: 30vw; max-width: 40vw; white-space: normal; }
}
@media print {
  :root {
    color-scheme: light;
    --page: #fff; --ink: #000; --quiet: #444; --line: #bbb; --shade: #f4f4f4; --link: #000;
    --good: #0b4a1d; --good-shade: #fff; --bad: #8a0a1e; --bad-shade: #fff;
    --warning: #5e3a00; --warning-shade: #fff; --plain: #444; --plain-shade: #fff;
  }
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav { display: none; }
  .badge { border: 1px solid currentColor; }
  .frame { overflow: visible; }
  table { font-size: 7.5pt; }
  th, td { padding: 0.2rem 0.35rem; }
  tbody th { position: static; }
  .short { white-space: normal; }
  .long { min-width: 0; }
  figure svg { min-width: 0; max-height: 22cm; }
  tr, figure, .notice { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
}
"""
