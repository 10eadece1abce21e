"""Grammars as values: finite languages that an engine decodes under, that can be measured, sampled and printed.

A `Grammar` is a set of named rules over five kinds of node. It has no recursion, so its longest sentence is a number
(`max_chars`), which is how a budget can hold by construction. `to_ebnf` prints the dialect that xgrammar reads.
What the sentences mean is none of its business: `projection.view_grammar` and `projection.decision` build them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from projection.canonical import tagged_digest


@dataclass(frozen=True, slots=True)
class Lit:
    """Exactly this text."""

    text: str


@dataclass(frozen=True, slots=True)
class Chars:
    """Between `min_count` and `max_count` characters, each a member of `members` (listed one by one, no ranges)."""

    members: str
    min_count: int
    max_count: int


@dataclass(frozen=True, slots=True)
class Seq:
    """The parts, one after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of the options; never empty."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Rep:
    """Between `min_count` and `max_count` times the node."""

    node: Node
    min_count: int
    max_count: int


@dataclass(frozen=True, slots=True)
class Ref:
    """The rule of this name."""

    name: str


Node = Lit | Chars | Seq | Alt | Rep | Ref


def seq(*parts: Node | str) -> Seq:
    """A sequence; plain strings are literals."""
    return Seq(tuple(Lit(p) if isinstance(p, str) else p for p in parts))


def alt(*options: Node | str) -> Alt:
    """A choice; plain strings are literals."""
    return Alt(tuple(Lit(o) if isinstance(o, str) else o for o in options))


def opt(node: Node) -> Rep:
    """The node, or nothing."""
    return Rep(node, 0, 1)


@dataclass(frozen=True)
class Grammar:
    """Named rules; `root` is the start rule. Rules may refer to each other but never in a circle."""

    rules: Mapping[str, Node]
    root: str = field(default="root")

    @cached_property
    def max_chars(self) -> int:
        """Characters of the longest sentence."""
        return self.longest(Ref(self.root))

    def longest(self, node: Node) -> int:
        """Characters of the longest text that `node` can produce."""
        return _longest(node, self.rules, self._rule_lengths)

    @cached_property
    def _rule_lengths(self) -> dict[str, int]:
        """The longest text of each rule. Rules that refer to later rules are the most, so the last comes first."""
        known: dict[str, int] = {}
        for name in reversed(list(self.rules)):
            _longest(Ref(name), self.rules, known)
        return known

    @cached_property
    def ebnf(self) -> str:
        """The grammar in xgrammar's EBNF (start rule `root`)."""
        return "".join(f"{name} ::= {_to_ebnf(node)}\n" for name, node in self.rules.items())

    @cached_property
    def digest(self) -> str:
        """Digest of the EBNF text."""
        return tagged_digest("dpm/grammar/v1", self.ebnf.encode("utf-8"))


def _longest(node: Node, rules: Mapping[str, Node], known: dict[str, int]) -> int:
    match node:
        case Lit(text):
            return len(text)
        case Chars(_, _, max_count):
            return max_count
        case Seq(parts):
            return sum(_longest(part, rules, known) for part in parts)
        case Alt(options):
            return max(_longest(option, rules, known) for option in options)
        case Rep(inner, _, max_count):
            return max_count * _longest(inner, rules, known)
        case Ref(name):
            if name not in known:
                known[name] = _longest(rules[name], rules, known)
            return known[name]


def _to_ebnf(node: Node) -> str:
    match node:
        case Lit(text):
            return json.dumps(text, ensure_ascii=False)
        case Chars(members, min_count, max_count):
            return f"{_char_class(members)}{{{min_count},{max_count}}}"
        case Seq(parts):
            return " ".join(_to_ebnf(part) for part in parts) if parts else '""'
        case Alt(options):
            return "(" + " | ".join(_to_ebnf(option) for option in options) + ")"
        case Rep(inner, min_count, max_count):
            suffix = "?" if (min_count, max_count) == (0, 1) else f"{{{min_count},{max_count}}}"
            return f"({_to_ebnf(inner)}){suffix}"
        case Ref(name):
            return name


def _char_class(members: str) -> str:
    """`members` as a bracket expression, runs of three and more written as ranges."""
    codes = sorted({ord(char) for char in members})
    runs: list[tuple[int, int]] = []
    for code in codes:
        if runs and code == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], code)
        else:
            runs.append((code, code))
    return "[" + "".join(_class_run(first, last) for first, last in runs) + "]"


def _class_run(first: int, last: int) -> str:
    if last - first < 2:
        return "".join(_class_char(code) for code in range(first, last + 1))
    return f"{_class_char(first)}-{_class_char(last)}"


def _class_char(code: int) -> str:
    char = chr(code)
    return "\\" + char if char in "\\]^-[" else char
