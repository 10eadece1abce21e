"""Rules: how a domain decides. Limits over integers, a verdict, its margin, and the values a fact could have had.

A domain's rules are total on complete facts. What a missing fact leaves open is found by trying the ends of its range:
every limit moves in one direction with every single fact, so a verdict that is the same at both ends, and at the true
value, does not depend on that fact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.longhorizon.amounts import Amount, Facts, day_number, iso_date
from benchmarks.longhorizon.draw import Draw

Margin = Literal["clear", "near", "at"]
MARGINS: tuple[Margin, ...] = ("clear", "near", "at")


@dataclass(frozen=True, slots=True)
class Scale:
    """What near and far mean for one limit, in its own unit (basis points, days, points, cents)."""

    near: int
    far: int

    def margin(self, slack: int) -> Margin:
        """`at`: on the threshold or one unit beyond it. `near`: no further than `near`."""
        if slack in (0, -1):
            return "at"
        return "near" if abs(slack) <= self.near else "clear"

    def draw_slack(self, draw: Draw, holds: bool, margin: Margin) -> int:
        """A slack of that side and margin."""
        low, high = {"at": (0, 0), "near": (1, self.near - 1), "clear": (self.near * 2, self.far)}[margin]
        size = draw.between(low, high)
        return size if holds else -1 - size


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit, applied. slack: how far the facts are from the threshold; it holds where slack >= 0.

    rule: a provision of the task. reason: the code that is given where it does not hold.
    """

    name: str
    rule: str
    reason: str
    facts: tuple[str, ...]
    slack: int
    scale: Scale

    @property
    def holds(self) -> bool:
        return self.slack >= 0

    @property
    def margin(self) -> Margin:
        return self.scale.margin(self.slack)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rules say of complete facts. figures: amounts that follow, units in their names.

    limits: those that were decisive, in the order of the policy.
    """

    outcome: str
    reasons: tuple[str, ...]
    figures: Mapping[str, int]
    limits: tuple[Limit, ...]

    @property
    def vector(self) -> tuple[str, tuple[str, ...], tuple[tuple[str, int], ...]]:
        """Decision, reasons and amounts: what two verdicts must share to be the same."""
        return self.outcome, self.reasons, tuple(sorted(self.figures.items()))

    @property
    def margin(self) -> Margin:
        """That of the tightest limit."""
        found = {limit.margin for limit in self.limits}
        return next(margin for margin in ("at", "near", "clear") if margin in found)


@dataclass(frozen=True, slots=True)
class Shape:
    """How a field's values move: the grid they stand on, how far a wrong one may be, the ends of the range.

    low, high: the least and the greatest value that the rules could meet; for a closed list, `choices` instead.
    """

    step: int = 1
    spread: int = 1
    low: Amount = 0
    high: Amount = 0
    choices: tuple[str, ...] = ()

    def ends(self) -> tuple[Amount, ...]:
        return self.choices or (self.low, self.high)

    def draw_wrong(self, draw: Draw, true: Amount) -> Amount:
        """Another value of the same form, inside the range: mostly close, sometimes far."""
        if self.choices:
            return draw.choice([choice for choice in self.choices if choice != true])
        if self.high == "":
            return _other_digits(draw, str(true))
        reach = max(2, self.spread // draw.choice((1, 1, 3, 10)))
        move = draw.between(1, reach) * (1 if draw.chance(50) else -1)
        first, other = self._moved(true, move), self._moved(true, -move)
        return first if self._allows(first) else other if self._allows(other) else self.draw_wrong(draw, true)

    def _moved(self, true: Amount, move: int) -> Amount:
        return true + self.step * move if isinstance(true, int) else iso_date(day_number(true) + move)

    def _allows(self, amount: Amount) -> bool:
        """Whether the amount lies in the range; ISO dates compare as texts."""
        if isinstance(amount, int) and isinstance(self.low, int) and isinstance(self.high, int):
            return self.low <= amount <= self.high
        return str(self.low) <= str(amount) <= str(self.high)


@dataclass(frozen=True, slots=True)
class Target:
    """The outcome vector to write a case for: decided first, facts second."""

    outcome: str
    margin: Margin


@dataclass(frozen=True, slots=True)
class Domain:
    """A domain at one size: its rules, its shapes, and how facts are found for a target.

    judge: the rules. solve: facts for a target; the caller checks what `judge` says of them and draws again otherwise.
    """

    name: str
    task_name: str
    outcomes: tuple[str, ...]
    shapes: Mapping[str, Shape]
    judge: Callable[[Facts], Verdict]
    solve: Callable[[Draw, Target], dict[str, Amount]]
    forbidden: tuple[str, ...]


def is_critical(domain: Domain, facts: Facts, name: str) -> bool:
    """Whether the verdict is open without this fact: some value that it could have had gives another verdict."""
    vector = domain.judge(facts).vector
    return any(domain.judge({**facts, name: end}).vector != vector for end in domain.shapes[name].ends())


def draw_sides(
    draw: Draw, names: Sequence[str], missed: Sequence[str], margin: Margin
) -> dict[str, tuple[bool, Margin]]:
    """For each limit whether it holds and how clearly: one pivot has the margin, every other limit is clear.

    The pivot is a limit that is missed where there is one: the margin is that of the reason.
    """
    pivot = draw.choice(list(missed) or list(names))
    return {name: (name not in missed, margin if name == pivot else "clear") for name in names}


def _other_digits(draw: Draw, text: str) -> str:
    """The text with its last two digits changed, as of a neighbouring file."""
    head, tail = text[:-2], int(text[-2:])
    return f"{head}{(tail + draw.between(1, 98)) % 100:02d}"
