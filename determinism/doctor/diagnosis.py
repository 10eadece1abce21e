"""The doctor's method: find what makes a result differ from its reference by turning one thing after the other.

A cause is named only when turning it makes the result agree, and turning it back makes it differ again. Otherwise
nothing is named, and what was tried is listed. Knows neither engines nor records: switches are names, and a probe tells
whether the result agrees when some of them are turned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from projection.errors import EngineError

Probe = Callable[[tuple[str, ...]], bool]
"""Whether the result agrees with its reference when these switches are turned, and no others.

Raises:
    EngineError: this combination cannot be tried here.
"""

Result = Literal["agrees", "differs", "not possible"]


@dataclass(frozen=True, slots=True)
class Trial:
    """What one probe found. turned: the switches; none for the circumstances as they are."""

    turned: tuple[str, ...]
    result: Result
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """causes: switches that must be turned together for the result to agree; empty where none were found.

    is_repeatable: whether the result differed every time that nothing was turned; where it did not, no switch can be
    blamed, for the result changes from run to run.
    """

    causes: tuple[str, ...]
    trials: tuple[Trial, ...]
    is_repeatable: bool = True

    @property
    def ruled_out(self) -> tuple[str, ...]:
        """Switches that were turned while the result still differed, and that are no cause."""
        turned = [name for trial in self.trials if trial.result == "differs" for name in trial.turned]
        return tuple(name for name in dict.fromkeys(turned) if name not in self.causes)


def diagnose(restoring: Sequence[str], others: Sequence[str], probe: Probe) -> Diagnosis:
    """Find the cause of a result that differs when nothing is turned.

    restoring: switches that bring back what is known to be different; they are turned together and then halved, so that
    many of them cost few trials. others: what may matter though nobody says that it is different; one after the other,
    on top of all that can be restored.
    """
    return _Examination(probe).diagnose(tuple(restoring), tuple(others))


class _Examination:
    """One course of trials."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._trials: list[Trial] = []

    def diagnose(self, restoring: tuple[str, ...], others: tuple[str, ...]) -> Diagnosis:
        suspects = self._suspects(restoring, others)
        if not suspects:
            return Diagnosis((), tuple(self._trials))
        is_repeatable = not self._agrees(())
        return Diagnosis(suspects if is_repeatable else (), tuple(self._trials), is_repeatable)

    def _suspects(self, restoring: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
        """Switches with which the result agrees, as few as halving finds."""
        return self._halve(next(filter(self._agrees, self._combinations(restoring, others)), ()))

    def _combinations(self, restoring: tuple[str, ...], others: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """All that is restored, each of it alone, and the others on top of what can be restored."""
        if len(restoring) > 1:
            yield restoring
        for name in restoring:
            yield (name,)
        impossible = {trial.turned for trial in self._trials if trial.result == "not possible"}
        possible = [name for name in restoring if (name,) not in impossible]
        for name in others:
            yield (*possible, name)

    def _halve(self, turned: tuple[str, ...]) -> tuple[str, ...]:
        """The fewest of switches that agree together which halving finds."""
        while len(turned) > 1:
            middle = len(turned) // 2
            half = next((half for half in (turned[:middle], turned[middle:]) if self._agrees(half)), None)
            if half is None:
                return turned  # some of both halves are needed
            turned = half
        return turned

    def _agrees(self, turned: tuple[str, ...]) -> bool:
        try:
            agrees = self._probe(turned)
        except EngineError as exc:
            self._trials.append(Trial(turned, "not possible", exc.message))
            return False
        self._trials.append(Trial(turned, "agrees" if agrees else "differs"))
        return agrees
