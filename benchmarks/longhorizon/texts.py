"""Texts: the words of a domain's documents, from `texts/*.yaml` beside this module, and the writer that fills them.

A template is prose with alternatives `(a|b)` and slots: `{v}` the value of a planned event, `{name}` a name drawn once
for the case, `{today}` and `{date:-30,-1}` days counted from the event's, `{money:400-900}`, `{cents:400-900}`,
`{int:2-30}`, `{pct:100-900}` (basis points), `{id:AP-##-####}` with a digit for each mark.

The writer promises that no true value stands in a text but the one it was asked for, and that one once: it draws again
until that is so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.longhorizon.amounts import Amount, format_amount, iso_date, parse_amount
from benchmarks.longhorizon.draw import Draw
from projection.anchors import Anchor, find_anchors
from projection.task import FieldType, Task, parse_task

_HERE = Path(__file__).parent
_ALTERNATIVES = re.compile(r"\(([^()|]*(?:\|[^()|]*)+)\)")
_SLOT = re.compile(r"\{(\w+)(?::([^{}]*))?\}")
_TYPED_KINDS: dict[str, FieldType] = {"money": "money", "percent": "percent", "integer": "integer", "date": "date"}
MAX_TRIES = 60

AnchorKey = tuple[str, Amount]


@dataclass(frozen=True, slots=True)
class Passage:
    """One sentence that carries a value: the document it stands in, and, of a near miss, what it is really about."""

    kind: str
    text: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """A kind of document: where it comes from, how it opens, what else it may say."""

    source: str
    open: tuple[str, ...]
    more: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FieldPassages:
    """What documents say of one field: at first, when it is settled, by a party, and of something like it."""

    stated: tuple[Passage, ...]
    settled: tuple[Passage, ...]
    said: tuple[Passage, ...]
    near: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class Texts:
    """The words of one domain."""

    names: Mapping[str, tuple[str, ...]]
    kinds: Mapping[str, DocumentKind]
    fields: Mapping[str, FieldPassages]
    common: tuple[str, ...]
    copies: tuple[str, ...]
    replacements: tuple[str, ...]
    injections: tuple[Passage, ...]


class NoCleanTextError(Exception):
    """No draw of a text was free of true values; the caller draws the case again."""


@cache
def load_texts(domain: str) -> Texts:
    """The texts of a domain, with what all domains share."""
    own, shared = _load_yaml(domain), _load_yaml("shared")
    kinds = {name: DocumentKind(k["source"], tuple(k["open"]), tuple(k["more"])) for name, k in own["kinds"].items()}
    fields = {
        name: FieldPassages(**{role: tuple(Passage(*p) for p in roles[role]) for role in FieldPassages.__slots__})
        for name, roles in own["fields"].items()
    }
    return Texts(
        names={name: tuple(names) for name, names in own["names"].items()},
        kinds=kinds,
        fields=fields,
        common=tuple(shared["common"]),
        copies=tuple(shared["copies"]),
        replacements=tuple(shared["replacements"]),
        injections=tuple(Passage(*p) for p in shared["injections"]),
    )


@cache
def load_task_text(task_name: str) -> str:
    """The task file of a domain at one size."""
    return (_HERE / "tasks" / f"{task_name}.yaml").read_text(encoding="utf-8")


@cache
def load_domain_task(task_name: str) -> Task:
    """The same, parsed."""
    return parse_task(load_task_text(task_name), task_name)


def anchor_key(anchor: Anchor) -> AnchorKey:
    """What two anchors share that say the same: kind and typed amount."""
    type_ = _TYPED_KINDS.get(anchor.kind)
    amount = parse_amount(anchor.value, type_) if type_ else None
    return anchor.kind, anchor.value if amount is None else amount


def _anchor_keys(text: str | None) -> list[AnchorKey]:
    return [anchor_key(anchor) for anchor in find_anchors(text)] if text else []


class Writer:
    """Fills templates for one case."""

    def __init__(self, draw: Draw, texts: Texts, true_values: Sequence[str]) -> None:
        self._draw = draw
        self._names = {name: draw.choice(names) for name, names in texts.names.items()}
        self._true_keys = frozenset(key for value in true_values for key in _anchor_keys(value))

    def write(self, templates: Sequence[str], today: int, value: str | None = None, without: str | None = None) -> str:
        """One of the templates, filled for an event of day `today`.

        value: what its slot takes, there once. without: a value that the text must not hold.

        Raises:
            NoCleanTextError: every draw held a true value, or one of these where it should not.
        """
        asked = Counter(_anchor_keys(value))
        watched = self._true_keys.union(asked, _anchor_keys(without))
        for _ in range(MAX_TRIES):
            text = self._fill(self._draw.choice(templates), today, value)
            if Counter(key for key in _anchor_keys(text) if key in watched) == asked:
                return text
        raise NoCleanTextError(templates[0])

    def _fill(self, template: str, today: int, value: str | None) -> str:
        chosen = _ALTERNATIVES.sub(lambda m: self._draw.choice(m[1].split("|")), template)

        def slot(match: re.Match[str]) -> str:
            name, argument = match[1], match[2]
            if name == "v":
                return value or ""
            if name == "today":
                return iso_date(today - self._draw.below(3))
            return _SLOTS[name](self._draw, argument, today) if argument else self._names[name]

        text = _SLOT.sub(slot, chosen)
        return text[0].upper() + text[1:]


def _range(argument: str, separator: str = "-") -> tuple[int, int]:
    low, high = argument.split(separator)
    return int(low), int(high)


def _id(draw: Draw, pattern: str, _today: int) -> str:
    return re.sub("#", lambda _: str(draw.below(10)), pattern)


_SLOTS: dict[str, Callable[[Draw, str, int], str]] = {
    "money": lambda draw, arg, _: format_amount(draw.between(*_range(arg)) * 100, "money", 100),
    "cents": lambda draw, arg, _: format_amount(draw.between(*_range(arg)) * 100 + draw.below(100), "money"),
    "int": lambda draw, arg, _: str(draw.between(*_range(arg))),
    "pct": lambda draw, arg, _: format_amount(draw.between(*_range(arg)), "percent"),
    "date": lambda draw, arg, today: iso_date(today + draw.between(*_range(arg, ","))),
    "id": _id,
}


def _load_yaml(name: str) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((_HERE / "texts" / f"{name}.yaml").read_text(encoding="utf-8"))
    return data
