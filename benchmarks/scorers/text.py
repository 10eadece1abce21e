"""Typed values in free text: what a scorer may call the same value, and where a text states one.

A value is found as a whole anchor of the field's type, never as a run of characters: `$1,000` does not stand in
`$11,000`, and `695` (a score) does not stand in `$695`. Equal amounts and dates are equal however they are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from fractions import Fraction

from projection.anchors import find_anchors, find_pattern
from projection.task import TaskField

_NUMBER = re.compile(r"[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+")
_SCALES = {"k": 10**3, "thousand": 10**3, "m": 10**6, "million": 10**6, "billion": 10**9}
_SCALE = re.compile(r"[0-9] ?(k|M|thousand|million|billion)\b")
_CURRENCIES = {"$": "USD", "€": "EUR", "£": "GBP"}
_DATE_FORMS = ("%m/%d/%Y", "%m/%d/%y", "%B %d %Y", "%b %d %Y", "%d %B %Y", "%d %b %Y")
_CITATION = re.compile(r"\[([1-9][0-9]{0,8})\]")
_LEADING = re.compile(r"\s*(?:[-*] )?(?:\[[1-9][0-9]{0,8}\] ?)+")
_SENTENCE_END = re.compile(r"\n+|(?<=[.!?])\s+|;\s+")


@dataclass(frozen=True, slots=True)
class Statement:
    """A stretch of a memory that is judged as one.

    line: 1-based, of the memory. words: its text with citations and rule ids blanked out, so that none of them is read
    as a value. cited: the events it names as [i]. rules: the ids it names of the rules that were asked for.
    """

    line: int
    words: str
    cited: frozenset[int]
    rules: frozenset[str]


def value_key(kind: str, value: str) -> object:
    """What two spellings of one value have in common; unequal keys are unequal values.

    kind: an anchor's kind or a field's type. Amounts and dates are compared as such, everything else as written.
    """
    if kind in ("money", "percent", "integer"):
        return _amount(value)
    if kind == "date":
        return _day(value) or value
    return " ".join(value.split())


def anchor_keys(text: str) -> list[tuple[str, object]]:
    """Kind and key of every value of a text, in order."""
    return [(anchor.kind, value_key(anchor.kind, anchor.value)) for anchor in find_anchors(text)]


def is_same_value(field: TaskField, one: str, other: str) -> bool:
    """Whether two spellings are one value of a field."""
    kind = "pattern" if field.pattern is not None else field.type
    return value_key(kind, one) == value_key(kind, other)


def find_values(field: TaskField, text: str) -> list[str]:
    """Every value of the field's type that stands in a text, in order, as written."""
    if field.pattern is not None:
        return [anchor.value for anchor in find_pattern(text, field.pattern)]
    return [anchor.value for anchor in find_anchors(text) if anchor.kind == field.type]


def states_value(field: TaskField, text: str, value: str) -> bool:
    """Whether a text states this value, as a whole and of this type."""
    if field.pattern is None and field.type == "text":
        words = re.escape(" ".join(value.split())).replace(r"\ ", r"\s+")
        return re.search(rf"(?<!\w){words}(?!\w)", text) is not None
    return any(is_same_value(field, found, value) for found in find_values(field, text))


def read_statements(lines: Iterable[str], rule_ids: Iterable[str]) -> list[Statement]:
    """The sentences of a memory's lines, each with its citations and the rules it names.

    A line that begins with citations (`- [3] ...`, `[3] ...`) cites those in all of its sentences and no others: what
    brackets its words hold are the event's own. The same goes for the lines behind a bar that follow it.
    """
    patterns = {rule: re.compile(rf"(?<!\w){re.escape(rule)}(?!\w|\.\w)") for rule in rule_ids}
    found: list[Statement] = []
    leading: frozenset[int] = frozenset()
    for number, line in enumerate(lines, start=1):
        if not line.startswith("| "):
            leading = _positions(_LEADING.match(line))
        for part in _SENTENCE_END.split(line):
            if part.strip():
                rules = frozenset(rule for rule, pattern in patterns.items() if pattern.search(part))
                cited = leading or frozenset(map(int, _CITATION.findall(part)))
                found.append(Statement(number, _blank(part, [_CITATION, *patterns.values()]), cited, rules))
    return found


def _blank(text: str, patterns: Iterable[re.Pattern[str]]) -> str:
    for pattern in patterns:
        text = pattern.sub(lambda match: " " * len(match[0]), text)
    return text


def _positions(match: re.Match[str] | None) -> frozenset[int]:
    return frozenset(map(int, _CITATION.findall(match[0]))) if match else frozenset()


def _amount(value: str) -> tuple[str, Fraction] | str:
    number, scale = _NUMBER.search(value), _SCALE.search(value)
    if number is None:
        return value
    unit = "%" if "%" in value or "cent" in value else _currency(value)
    sign = -1 if any(mark in value[: number.start()] for mark in "-\u2212\u2013") else 1
    times = _SCALES[scale[1].lower()] if scale else 1
    return unit, sign * times * Fraction(number[0].replace(",", ""))


def _currency(value: str) -> str:
    code = re.search(r"USD|EUR|GBP", value)
    return code[0] if code else next((name for mark, name in _CURRENCIES.items() if mark in value), "")


def _day(value: str) -> date | None:
    """The day of a date in any form that the anchors know; month first where only digits are given."""
    plain = " ".join(value.replace(",", " ").replace(".", " ").split()).replace("Sept ", "Sep ")
    try:
        return date.fromisoformat(value[:10])
    except ValueError:
        pass
    for form in _DATE_FORMS:
        try:
            return datetime.strptime(plain, form).date()
        except ValueError:
            continue
    return None
