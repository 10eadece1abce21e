"""How far a run of the suite has come, and when it will end at the pace so far.

Counted in comparisons, a control as one. Checks differ in what a comparison costs, so the time left is a guess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from determinism.cell import Cell
from determinism.suite.run import LanePlan


class Pace:
    """What a run wants and has. finished: cells of it that were there before."""

    def __init__(self, plans: Iterable[LanePlan], finished: Iterable[Cell]) -> None:
        listed = list(plans)
        keys = [key for plan in listed for key in plan.cell_keys()]
        self._wanted = {(plan.label, check.name): plan.num_wanted(check) for plan in listed for check in plan.checks}
        self._has = dict.fromkeys(self._wanted, 0)
        self._num_unfinished = Counter((key.engine, key.check) for key in keys if key.control is None)
        self._num_controls = 0
        self.num_cells = 0
        self.num_wanted = sum(self._wanted.values()) + sum(key.control is not None for key in keys)
        for cell in finished:
            self._has[cell.engine, cell.check] += 0 if cell.control else cell.num_comparisons
            self.finish(cell)
        self._num_before = self.num_done

    @property
    def num_done(self) -> int:
        """Of `num_wanted`: a check that is finished has all it wanted, whatever it could compare."""
        return self._num_controls + sum(
            min(self._has[key], wanted) if self._num_unfinished[key] else wanted for key, wanted in self._wanted.items()
        )

    def compare(self, engine: str, check: str, num_comparisons: int) -> str:
        """Take in how many comparisons a check has; it in words."""
        self._has[engine, check] = num_comparisons
        return f"{check}: {num_comparisons} of {self._wanted[engine, check]} comparisons"

    def finish(self, cell: Cell) -> None:
        """Take in a cell that is on the disk."""
        self.num_cells += 1
        if cell.control is None:
            self._num_unfinished[cell.engine, cell.check] -= 1
        else:
            self._num_controls += 1

    def left_s(self, passed_s: float) -> float | None:
        """Seconds left; None before anything was done."""
        num_done = self.num_done - self._num_before
        return passed_s / num_done * (self.num_wanted - self.num_done) if num_done else None
