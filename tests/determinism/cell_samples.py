"""Cells for tests of statistics and reports, made from texts alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from pydantic import JsonValue

from determinism.cell import Cell, Observed, tally
from determinism.suite.checks import CHECKS
from determinism.suite.controls import controls_of
from determinism.surface import Surface
from determinism.verdict import Verdict


@lru_cache
def surface(text: str, margin: float = 0.5) -> Surface:
    """One token a character."""
    return Surface.build([ord(char) for char in text], text, [-0.25] * len(text), [margin] * len(text), "stop")


def cell(
    texts: Sequence[str],
    *,
    check: str = "run_to_run",
    workload: str = "mortgage-projection-long",
    engine: str = "vllm smollm2-135m-instruct",
    control: str | None = None,
    verdict: Verdict | None = None,
    expected: Verdict | None = None,
    reason: str | None = None,
    evidence: dict[str, JsonValue] | None = None,
) -> Cell:
    """A cell of one replay a text; verdict and reason follow from the texts unless they are given."""
    surfaces, replays = tally(Observed(f"replay {n}", surface(text), 0.5) for n, text in enumerate(texts, 1))
    found: Verdict = verdict or ("PASS" if len(surfaces) == 1 else "DRIFT")
    return Cell(
        engine=engine,
        engine_identity="ab" * 32,
        check=check,
        workload=workload,
        control=control,
        expected=expected or ("DRIFT" if control else "PASS"),
        verdict=found,
        reason=reason if reason is not None else ("" if found == "PASS" else "other bits than the reference"),
        surfaces=surfaces,
        replays=replays,
        evidence=evidence or {},
        wall_s=0.5 * len(texts),
    )


VIEW = """\
FACTS
- loan application number: LN-2026-0417 [1]
- loan amount: $398,400 [14]
- appraised market value: $520,000 [10]
- back-end debt-to-income ratio: 48.1% [24]
- [12] Form 1004 revised, report AP-26-3308.
REASONING
- [13] Purchase agreement addendum 2: buyer and seller reset the price to $500,000.
COMPLIANCE
- [1] 12 CFR 1002.9(b)(2): The loan is a loan of the nature of a loan of 1003.
"""
WORKLOADS = (
    "mortgage-projection-long",
    "mortgage-decision-long",
    "claim-projection-short-free",
    "claim-decision-short",
)


def whole_suite() -> list[Cell]:
    """A suite as it looks on one machine: every check holds, one cannot be held, every control finds its fault."""
    cells = []
    for check in CHECKS:
        if check.name == "second_server":
            reason = "a second server needs twice the memory"
            cells += [cell([], check=check.name, workload=w, verdict="SKIPPED", reason=reason) for w in WORKLOADS]
            continue
        evidence: dict[str, JsonValue] = {"batch of 8": {"max_num_running": 8, "num_steps": 161}, "num_turns": 2}
        for workload in WORKLOADS:
            replays = [VIEW[: len(VIEW) - 40 * WORKLOADS.index(workload)]] * 8
            cells.append(cell(replays, check=check.name, workload=workload, evidence=evidence))
        for place, control in enumerate(controls_of(check.name)):
            drifted = VIEW[:300] + VIEW[310 + place :]
            texts = [VIEW, VIEW, drifted, drifted, drifted.replace("1003", "1004"), VIEW, drifted, VIEW]
            cells.append(cell(texts, check=check.name, workload=WORKLOADS[0], control=control.name))
    return cells
