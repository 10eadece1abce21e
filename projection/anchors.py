"""Typed anchors: every numeral, amount, date and identifier of an event, with its place.

`find_anchors` promises that each ASCII digit of a text lies inside exactly one anchor, so "no number is invented" can
be checked by comparing anchors. It reads text as written: no locale, no arithmetic, no normalisation of values.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import regex

from projection.errors import TaskError

AnchorKind = Literal["money", "percent", "date", "decimal", "integer", "identifier", "pattern", "text"]
PATTERN_TIMEOUT_S = 1.0  # per event; a house pattern that needs longer is refused, never half applied
MAX_PATTERN_REPEATS = 10_000  # the product of its counted repeats, which the compiler writes out
MAX_VALUE_CHARS = 80  # a longer match is no value that a view line could carry

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    r"|Nov(?:ember)?|Dec(?:ember)?)\.?"
)
_TIME = r"[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?(?:Z|[+-][0-9]{2}:[0-9]{2})?"
_NUMBER = r"(?>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
_WHOLE = r"(?>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_SIGN = r"(?:(?<![^\s(])[-+\u2212\u2013])?"
_ENDS = r"(?![^\W_]|[.,'\u2019]?[0-9])"  # no letter or digit goes on
_STANDS = (
    rf"(?:(?=[-/][a-z]{{2,}}(?![\w-]))|{_ENDS}(?![-/_.:*\#][A-Za-z0-9*]))"  # "24" of "24-month", not "620" of "620-639"
)
_ANCHOR = re.compile(
    rf"""(?<![^\W_])(?<![0-9][,'\u2019])(?<!\.)(?:
      (?P<date>(?:[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:[T\ ]{_TIME})?
              |[0-9]{{1,2}}/[0-9]{{1,2}}/(?:[0-9]{{4}}|[0-9]{{2}})
              |{_MONTH}\ [0-9]{{1,2}},?\ [0-9]{{4}}
              |[0-9]{{1,2}}\ {_MONTH}\ [0-9]{{4}})(?![^\W_]|[-/][0-9]))
    | (?P<money>(?:{_SIGN}[$€£]\ ?-?|(?:USD|EUR|GBP)\ ){_NUMBER}(?:[kKM]|\ (?:thousand|million|billion))?{_ENDS})
    | (?P<percent>{_SIGN}{_NUMBER}(?:\ ?%|\ percent|\ per\ cent)(?![^\W_]))
    | (?P<decimal>{_SIGN}{_WHOLE}?\.[0-9]+{_STANDS})
    | (?P<integer>{_WHOLE}{_STANDS})
    )
    | (?P<identifier>[A-Za-z0-9#*](?:[A-Za-z0-9*]|[-/_.:\#](?=[A-Za-z0-9*])|(?<=[0-9])[,'\u2019](?=[0-9]))*)
    """,
    re.VERBOSE,
)
_DIGIT = re.compile(r"[0-9]")
_SEGMENT = re.compile(r"(?:[^.;:,()\[\]\n]|(?<=[0-9])[.,:](?=[0-9]))+")
_KINDS: tuple[AnchorKind, ...] = ("date", "money", "percent", "decimal", "integer", "identifier")


@dataclass(frozen=True, slots=True)
class Anchor:
    """A typed value that stands verbatim in event `position` at characters [start, end)."""

    value: str
    kind: AnchorKind
    position: int
    start: int
    end: int


def find_anchors(text: str, position: int = 0) -> tuple[Anchor, ...]:
    """All anchors of a text in order. Words without a digit are none."""
    found = []
    for match in _ANCHOR.finditer(text):
        kind = next(kind for kind in _KINDS if match[kind] is not None)
        if _DIGIT.search(match[0]):
            found.append(Anchor(match[0], kind, position, match.start(), match.end()))
    return tuple(found)


def compile_pattern(pattern: str) -> regex.Pattern[str]:
    """A house pattern between its guards: no letter or digit touches a match, and it is part of no longer number.

    Raises:
        TaskError: not a regular expression.
    """
    problem = _dear_pattern(pattern)
    if problem is not None:
        raise TaskError(f"pattern {pattern!r} {problem}", pattern=pattern)
    try:
        regex.compile(pattern)  # by itself, too: what closes the guard's bracket is no pattern
        return regex.compile(rf"(?<![\w$€£]|[0-9][.,])(?:{pattern})(?!\w|[.,][0-9])")
    except regex.error as exc:
        raise TaskError(f"pattern is not a regular expression: {exc}", pattern=pattern) from exc


def _dear_pattern(pattern: str) -> str | None:
    """Why a pattern cannot be compiled or matched in bounded time and place; None when it can."""
    if re.search(r"\(\?(?:R|[0-9]|&|P>)|\\K", pattern):
        return "recurses or moves the start of its match (\\K); write it out"
    product = 1
    for first, last in re.findall(r"\{([0-9]*),?([0-9]*)\}", pattern):
        product *= max(int(first or 1), int(last or 1), 1)
    if product > MAX_PATTERN_REPEATS:
        return f"repeats up to {product} times; the limit is {MAX_PATTERN_REPEATS}"
    return None


def find_pattern(text: str, pattern: str, position: int = 0) -> tuple[Anchor, ...]:
    """All matches of a house pattern that stand alone and can stand in a line of a view.

    Raises:
        TaskError: the pattern is none, or needs more than `PATTERN_TIMEOUT_S` on this text.
    """
    try:
        matches = list(compile_pattern(pattern).finditer(text, timeout=PATTERN_TIMEOUT_S))
    except (TimeoutError, MemoryError) as exc:
        raise TaskError(
            f"pattern {pattern!r} took over {PATTERN_TIMEOUT_S} s on event [{position}]; write one that does not "
            "backtrack (no nested repetition)",
            pattern=pattern,
            position=position,
        ) from exc
    return tuple(
        Anchor(m.group(), "pattern", position, m.start(), m.end()) for m in matches if is_line_value(m.group())
    )


def find_segments(text: str, position: int = 0) -> tuple[Anchor, ...]:
    """Short stretches between punctuation marks: the candidates of a `text` field that has no pattern."""
    found = []
    for match in _SEGMENT.finditer(text):
        value = match[0].strip()
        if is_line_value(value):
            start = match.start() + match[0].index(value)
            found.append(Anchor(value, "text", position, start, start + len(value)))
    return tuple(found)


def find_invented(text: str, allowed: Collection[str]) -> str | None:
    """The first value of a text that is none of the allowed ones, or the first numeral outside any value; else None."""
    invented = (anchor.value for anchor in find_anchors(text) if anchor.value not in allowed)
    return next(invented, None) or find_loose_numeral(text)


def find_loose_numeral(text: str) -> str | None:
    """The first numeral of any script that lies in no anchor, such as a fraction sign; None when there is none."""
    inside = {index for anchor in find_anchors(text) for index in range(anchor.start, anchor.end)}
    return next((c for i, c in enumerate(text) if i not in inside and unicodedata.category(c).startswith("N")), None)


def is_line_value(value: str) -> bool:
    """Whether a value can stand in one line of a view: short, printable, neither empty nor padded."""
    return 0 < len(value) <= MAX_VALUE_CHARS and value.isprintable() and value == value.strip()
