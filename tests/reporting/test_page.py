"""The HTML page: whatever a text holds, it stays text; nothing is asked of anybody; equal documents, equal bytes."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from reporting.document import Column, Document, Section, Table
from reporting.page import render_page
from tests.reporting.documents import everything

HOSTILE = [
    "<script>alert(1)</script>",
    "</style></svg><img src=x onerror=alert(1)>",
    '"><a href="javascript:alert(1)">',
    "&lt;b&gt; &#60;b&#62;",
    "\x00\x08\x1b[31m\u202e\u2028\ufeff\ufffe\ud800",
    "--> ]]> <!-- ",
]
VOID = frozenset(["meta", "path", "use"])


class Reader(HTMLParser):
    """What a browser sees: elements, attributes, and the text of each element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(data)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_adds_no_element_and_no_attribute(text: str) -> None:
    harmless, hostile = Reader(render_page(everything("harmless"))), Reader(render_page(everything(text)))
    assert hostile.tags == harmless.tags
    assert [name for name, _ in hostile.attributes] == [name for name, _ in harmless.attributes]


@pytest.mark.parametrize("text", HOSTILE[:4])
def test_a_text_is_read_as_it_is(text: str) -> None:
    found = Reader(render_page(everything(text)))
    for tag in ("title", "h2", "p", "dt", "pre", "h3", "code", "figcaption", "footer"):
        assert text in found.texts[tag], tag


def test_invisible_characters_are_spelled_out() -> None:
    page = render_page(everything(HOSTILE[4]))
    assert "&lt;U+0000&gt;&lt;U+0008&gt;&lt;U+001B&gt;[31m&lt;U+202E&gt;&lt;U+2028&gt;&lt;U+FEFF&gt;" in page
    assert "&lt;U+D800&gt;" in page
    page.encode("utf-8")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\ufeff]", page)


def test_the_page_asks_nobody_for_anything() -> None:
    page = render_page(everything("a"))
    assert "default-src 'none'" in page
    found = Reader(page)
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(found.tags)
    for name, value in found.attributes:
        if name in {"src", "href", "xlink:href", "action"}:
            assert value is not None
            assert value.startswith("#")
        assert not name.startswith("on")
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_links_lead_to_the_sections() -> None:
    page = render_page(everything("a"))
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert {target[1:] for target in re.findall(r'<a href="([^"]*)"', page)} == {"s1", "s2"}
    assert {"s1", "s2"} <= set(ids)


def test_equal_documents_are_equal_pages() -> None:
    assert render_page(everything("a")) == render_page(everything("a"))


def test_a_row_of_another_length_is_refused() -> None:
    table = Table("t", [Column("a"), Column("b")], [["1"]])
    with pytest.raises(ValueError, match="shorter"):
        render_page(Document("t", "", [Section("s", [table])]))


def test_a_page_without_sections_is_a_page() -> None:
    assert Reader(render_page(Document("t", "lead", []))).texts["h1"] == ["t"]
