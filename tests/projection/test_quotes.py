"""Quotes: which stretches of an event a view may repeat word for word."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from projection.prompt import visible
from projection.quotes import MAX_QUOTE_CHARS, MIN_QUOTE_CHARS, find_quotes
from tests.projection.cases import odd_texts


def words(first: str, num_chars: int = (MIN_QUOTE_CHARS + MAX_QUOTE_CHARS) // 2) -> str:
    """A stretch of words of exactly this length."""
    return (first + " and verified income" * 10)[: num_chars - 1] + "e"


def test_the_sentences_of_a_text_are_its_quotes_in_order() -> None:
    rows = (
        words("The income $6,100.00") + ".",
        words("It is 46.2 percent"),
        words("the ratio") + "!",
        words("Unended"),
    )
    assert find_quotes(f"{rows[0]} {rows[1]}; {rows[2]}\n\n{rows[3]}") == rows


def test_a_sentence_that_is_too_long_for_a_line_is_offered_in_parts() -> None:
    parts = words("One part"), words("another part")
    assert find_quotes(f"{parts[0]}, {parts[1]}, short, {'x' * (MAX_QUOTE_CHARS + 1)}") == parts


def test_what_is_too_short_or_too_long_or_stands_twice_is_left_out() -> None:
    sentence = words("The income") + "."
    assert find_quotes(f"Yes. {sentence} No. {sentence}") == (sentence,)
    for num_chars in (MIN_QUOTE_CHARS, MAX_QUOTE_CHARS):
        assert find_quotes(words("a", num_chars)) == (words("a", num_chars),)
    for num_chars in (MIN_QUOTE_CHARS - 1, MAX_QUOTE_CHARS + 1):
        assert find_quotes(words("a", num_chars)) == ()


def test_a_sentence_with_hidden_characters_is_no_quote() -> None:
    assert find_quotes(words("An income-based"))
    for hidden in "\u202e\u200b\x00\x07\u00ad\ufe0f\U000e0100\u3164":
        assert find_quotes(words(f"An income{hidden}based")) == ()


@given(odd_texts | st.text(alphabet="ab .,;!?\n\r\t\u2028\u00a0\ufe0f", max_size=300))
def test_every_quote_is_one_visible_line_that_stands_in_the_text(text: str) -> None:
    for quote in find_quotes(text):
        assert quote in text
        assert MIN_QUOTE_CHARS <= len(quote) <= MAX_QUOTE_CHARS
        assert quote.isprintable()
        assert quote == visible(quote) == quote.strip()
        assert len(quote.splitlines()) == 1
