"""Markdown, read back by a parser of its own: whatever a text holds, it stays text."""

from __future__ import annotations

import html
import re

import pytest
from markdown_it import MarkdownIt

from reporting.document import Badge, Code, Column, Document, Facts, Paragraph, Section, Table
from reporting.markdown import render_markdown
from tests.reporting.documents import everything

HOSTILE = [
    "# heading",
    "1. list",
    "1) list",
    "- list",
    "+ list",
    "=====",
    "a | b || c",
    "**bold** _it_ ~~gone~~ `code` ``two``",
    "[link](http://a.example) ![image](b) <http://c.example>",
    "<script>alert(1)</script> &lt;b&gt; &amp;",
    "back\\slash \\| \\` \\\\",
    "https://d.example www.e.example someone@f.example",
    "| --- | --- |",
    "```\nfence\n```",
    "> quote",
    "    indented",
    "$x^2$",
    "trailing \\",
    "`",
    "|",
]


def shown(markdown: str) -> str:
    return str(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown))


def skeleton(page: str) -> list[str]:
    return re.findall(r"</?[a-z0-9]+", page)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_is_never_markup(text: str) -> None:
    found = shown(render_markdown(everything(text)))
    assert skeleton(found) == skeleton(shown(render_markdown(everything("harmless"))))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_is_read_as_it_is(text: str) -> None:
    table = Table("t", [Column("a"), Column("b")], [[text, Code(text)]])
    found = shown(render_markdown(Document("t", "", [Section(text, [Paragraph(text), table, Facts([(text, text)])])])))
    expected = " ".join(text.split())
    assert html.unescape(re.search(r"<h2>(.*)</h2>", found)[1]) == expected  # type: ignore[index]
    assert next(html.unescape(one) for one in re.findall(r"<p>(.*)</p>", found)) == expected
    cells = [html.unescape(re.sub("</?code>", "", one)) for one in re.findall(r"<td[^>]*>(.*)</td>", found)]
    assert cells == [expected, expected]
    found = shown(render_markdown(Document("t", "", [Section("s", [Facts([(text, Code(text))])])])))
    item = re.search(r"<li>(.*)</li>", found)
    assert item is not None
    assert html.unescape(re.sub("</?code>", "", item[1])) == f"{expected}: {expected}"


def test_addresses_do_not_become_links() -> None:
    """GitHub links bare addresses, which the parser of these tests does not."""
    written = render_markdown(Document("t", "see https://a.example, www.b.example and c@d.example", []))
    assert "https\\://a" in written
    assert "www\\.b" in written
    assert "c\\@d" in written


def test_invisible_characters_are_spelled_out() -> None:
    written = render_markdown(everything("\x00\x1b\u202e\ud800\u2028"))
    assert "&lt;U+0000&gt;&lt;U+001B&gt;&lt;U+202E&gt;&lt;U+D800&gt;&lt;U+2028&gt;" in written
    written.encode("utf-8")


def test_it_reads_like_markdown() -> None:
    table = Table("Cells", [Column("check"), Column("n", is_number=True)], [["run_to_run", "10"]], "A note.")
    section = Section("Numbers", [Paragraph("Prose."), table, Facts([("engine", Code("ab12"))])])
    document = Document("Report", "It holds.", [section], Badge("PASS", "good"), "dpm determinism run")
    assert render_markdown(document) == (
        "# Report **PASS**\n\nIt holds.\n\n## Numbers\n\nProse.\n\n**Cells**\n\n| check | n |\n|---|---:|\n"
        "| run\\_to\\_run | 10 |\n\nA note.\n\n- engine: `ab12`\n\ndpm determinism run\n"
    )
