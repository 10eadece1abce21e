"""Quotes: the sentences of an event that a view may repeat word for word."""

from __future__ import annotations

import re

from projection.prompt import visible

MIN_QUOTE_CHARS, MAX_QUOTE_CHARS = 24, 80
_SENTENCE_END = re.compile(r"\n+|(?<=[.!?])\s+|;\s+")
_PART_END = re.compile(r",\s+")


def find_quotes(text: str) -> tuple[str, ...]:
    """The sentences of a text in order, each once; one that is too long for a line is offered in its comma parts.

    Each quote stands verbatim in the text, in one line, and holds only characters that can be seen.
    """
    found: dict[str, None] = {}
    for sentence in _SENTENCE_END.split(text):
        parts = [sentence] if len(sentence.strip()) <= MAX_QUOTE_CHARS else _PART_END.split(sentence)
        for part in parts:
            quote = part.strip()
            if MIN_QUOTE_CHARS <= len(quote) <= MAX_QUOTE_CHARS and quote.isprintable() and quote == visible(quote):
                found[quote] = None
    return tuple(found)
