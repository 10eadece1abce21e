"""Typed values: money in cents, percentages in basis points, days, whole numbers, identifiers, and their texts.

`parse_amount` is the only reading of a value's text, so that "$5,000" and "$5,000.00" are one amount. No floats.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping

from projection.task import FieldType

Amount = int | str
"""Cents of a money, basis points of a percent, an integer; the ISO form of a date; the text of any other value."""
Facts = Mapping[str, Amount]

_NUMBER = re.compile(r"(?P<sign>-?)\$?(?P<whole>[0-9][0-9,]*)(?:\.(?P<part>[0-9]{1,2}))?%?")


def format_amount(amount: Amount, type_: FieldType, step: int = 1) -> str:
    """The text of an amount as a document writes it. step: money that moves in whole dollars has no cents."""
    if isinstance(amount, str):
        return amount
    match type_:
        case "money":
            cents = "" if step % 100 == 0 else f".{amount % 100:02d}"
            return f"${amount // 100:,}{cents}"
        case "percent":
            return f"{amount // 100}.{amount % 100:02d}%"
        case _:
            return str(amount)


def parse_amount(text: str, type_: FieldType) -> Amount | None:
    """The amount that a text of this type says; None when it says none."""
    if type_ == "date":
        return text if _is_iso_date(text) else None
    if type_ not in ("money", "percent", "integer"):
        return text
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    whole = int(match["whole"].replace(",", ""))
    if type_ == "integer":
        amount = whole if match["part"] is None else None
    else:
        amount = whole * 100 + int((match["part"] or "0").ljust(2, "0"))
    return -amount if amount is not None and match["sign"] else amount


def whole(facts: Facts, name: str) -> int:
    """A fact that is a number."""
    value = facts[name]
    if not isinstance(value, int):
        raise TypeError(f"{name} is a number, and this is {value!r}")
    return value


def day(facts: Facts, name: str) -> int:
    """A fact that is a date, as its day number."""
    return day_number(str(facts[name]))


def day_number(iso: str) -> int:
    """Days since 0001-01-01 of an ISO date."""
    return datetime.date.fromisoformat(iso).toordinal()


def iso_date(day_number: int) -> str:
    """The ISO date of a day number."""
    return datetime.date.fromordinal(day_number).isoformat()


def _is_iso_date(text: str) -> bool:
    try:
        return len(text) == 10 and bool(datetime.date.fromisoformat(text))
    except ValueError:
        return False
