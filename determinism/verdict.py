"""Verdicts of determinism checks and gates, and the exit code that stands for several of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

Verdict = Literal["PASS", "DRIFT", "INCOMPARABLE", "MISSING", "UNUSED", "ERROR", "SKIPPED"]
VERDICTS: tuple[Verdict, ...] = ("PASS", "DRIFT", "INCOMPARABLE", "MISSING", "UNUSED", "ERROR", "SKIPPED")
"""PASS: the same bits. DRIFT: other bits. INCOMPARABLE: of another engine identity, hence no statement.
MISSING: there is no golden. UNUSED: nothing asked for a golden. ERROR: the engine failed, or the check was vacuous.
SKIPPED: not possible here, with the reason.
"""

HOLDS, DOES_NOT_HOLD, INCOMPARABLE_ENGINE, ENGINE_FAILED, NOTHING_RAN = 0, 1, 3, 4, 5
EXIT_CODES: dict[Verdict, int] = {
    "PASS": HOLDS,
    "UNUSED": HOLDS,
    "DRIFT": DOES_NOT_HOLD,
    "MISSING": DOES_NOT_HOLD,
    "INCOMPARABLE": INCOMPARABLE_ENGINE,
    "ERROR": ENGINE_FAILED,
}
_WORST_FIRST = (DOES_NOT_HOLD, ENGINE_FAILED, INCOMPARABLE_ENGINE, HOLDS)


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """The exit code of a run: a drift outweighs a failure, a failure what is incomparable; 5 when nothing ran."""
    codes = {EXIT_CODES[verdict] for verdict in verdicts if verdict != "SKIPPED"}
    return next((code for code in _WORST_FIRST if code in codes), NOTHING_RAN)
