"""Property claims: wind and hail losses under a made-up homeowners policy in the layout of form HO-3.

Small cases have one estimate; paper-size cases have roof and interior apart, and the dates that term and notice turn
on.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.longhorizon.amounts import Amount, Facts, day, day_number, iso_date, whole
from benchmarks.longhorizon.draw import Draw
from benchmarks.longhorizon.rules import Domain, Limit, Scale, Shape, Target, Verdict, draw_sides

SMALL_INCEPTION = "2025-07-01"
MAX_NOTICE_DAYS = 60
MAX_SEEPAGE_DAYS = 14
MAX_FULL_VALUE_AGE = 15
SMALL_SCHEDULE_BP = 4_000

_TERM = Scale(near=8, far=150)
_NOTICE = Scale(near=6, far=45)
_SEEPAGE = Scale(near=3, far=12)
_ROOF = Scale(near=3, far=12)
_NET = Scale(near=300, far=30_000)
_SCALES = {"term": _TERM, "notice": _NOTICE, "seepage": _SEEPAGE, "roof": _ROOF, "net": _NET}
_OUTCOMES = ("PAY_IN_FULL", "PAY_IN_PART", "DENY")
_FORBIDDEN = (
    r"\bpaya?ble\b",
    r"\bwe pay\b",
    r"\bcoverage (?:is|was) (?:afforded|confirmed)",
    r"\bnet (?:claim|payment)\b",
)


def claim_small() -> Domain:
    """Four facts: date of loss, estimate, deductible and age of the roof."""
    return Domain(
        name="claim",
        task_name="claim-small",
        outcomes=_OUTCOMES,
        shapes={
            "loss": Shape(spread=120, low="2024-01-01", high="2026-02-28"),
            "estimate": Shape(step=100, spread=9_000, low=10_000, high=9_999_900),
            "deductible": Shape(step=100, spread=4_000, low=10_000, high=9_999_900),
            "age": Shape(spread=12, low=1, high=60),
        },
        judge=_judge_small,
        solve=_solve_small,
        forbidden=_FORBIDDEN,
    )


def claim_paper() -> Domain:
    """Eleven facts of the policy, the loss and the repair."""
    return Domain(
        name="claim",
        task_name="claim-paper",
        outcomes=_OUTCOMES,
        shapes={
            "claim_number": Shape(low="", high=""),
            "date_of_loss": Shape(spread=120, low="2024-01-01", high="2026-03-01"),
            "inception": Shape(spread=200, low="2023-01-01", high="2026-12-31"),
            "notice_date": Shape(spread=90, low="2025-01-01", high="2026-12-31"),
            "dwelling_limit": Shape(step=100_000, spread=120, low=10_000_000, high=200_000_000),
            "deductible": Shape(step=1_000, spread=900, low=10_000, high=99_000_000),
            "roof_cost": Shape(step=50, spread=9_000, low=10_000, high=99_000_000),
            "interior_cost": Shape(step=50, spread=6_000, low=10_000, high=99_000_000),
            "roof_age": Shape(spread=12, low=1, high=60),
            "depreciation": Shape(spread=1_500, low=0, high=10_000),
            "seepage_days": Shape(spread=16, low=0, high=200),
        },
        judge=_judge_paper,
        solve=_solve_paper,
        forbidden=_FORBIDDEN,
    )


def _judge_small(facts: Facts) -> Verdict:
    """Source: the policy of tasks/claim-small.yaml, sentence by sentence."""
    slack = day(facts, "loss") - day_number(SMALL_INCEPTION)
    first = [Limit("term", "Declarations", "G01", ("loss",), slack, _TERM)]
    estimate, age = whole(facts, "estimate"), whole(facts, "age")
    is_old = age > MAX_FULL_VALUE_AGE
    settled = estimate * (10_000 - SMALL_SCHEDULE_BP) // 10_000 if is_old else estimate
    cents = settled - whole(facts, "deductible")
    net = Limit("net", "Deductible", "G06", ("estimate", "age", "deductible"), _net_slack(cents), _NET)
    return _verdict(first, [_roof_limit("age", age), net], cents)


def _judge_paper(facts: Facts) -> Verdict:
    """Source: the policy of tasks/claim-paper.yaml, sentence by sentence."""
    loss = day(facts, "date_of_loss")
    notice = MAX_NOTICE_DAYS - (day(facts, "notice_date") - loss)
    first = [
        Limit("term", "Declarations", "G01", ("date_of_loss", "inception"), loss - day(facts, "inception"), _TERM),
        Limit("notice", "Condition B", "G02", ("date_of_loss", "notice_date"), notice, _NOTICE),
    ]
    seeped, age = whole(facts, "seepage_days"), whole(facts, "roof_age")
    roof, interior = whole(facts, "roof_cost"), whole(facts, "interior_cost")
    if age > MAX_FULL_VALUE_AGE:
        roof = roof * (10_000 - whole(facts, "depreciation")) // 10_000
    if seeped > MAX_SEEPAGE_DAYS:
        interior = 0
    cents = min(roof + interior, whole(facts, "dwelling_limit")) - whole(facts, "deductible")
    names = ("roof_cost", "interior_cost", "depreciation", "deductible")
    then = [
        Limit("seepage", "Exclusion 7", "G03", ("seepage_days",), MAX_SEEPAGE_DAYS - seeped, _SEEPAGE),
        _roof_limit("roof_age", age),
        Limit("net", "Deductible", "G06", names, _net_slack(cents), _NET),
    ]
    return _verdict(first, then, cents)


def _roof_limit(name: str, age: int) -> Limit:
    return Limit("roof", "Form RS 10", "G05", (name,), MAX_FULL_VALUE_AGE - age, _ROOF)


def _net_slack(cents: int) -> int:
    """Whole dollars beyond the first cent that is due; -1 where nothing is."""
    return -(-cents // 100) - 1


def _verdict(first: Sequence[Limit], then: Sequence[Limit], cents: int) -> Verdict:
    """Term and notice come first; where one is missed, nothing else is decided."""
    is_open = all(limit.holds for limit in first)
    limits = (*first, *then) if is_open else tuple(first)
    reasons = tuple(sorted(limit.reason for limit in limits if not limit.holds))
    if not is_open or "G06" in reasons:
        return Verdict("DENY", reasons, {}, limits)
    return Verdict("PAY_IN_PART" if reasons else "PAY_IN_FULL", reasons, {"due_cents": cents}, limits)


def _missed(draw: Draw, outcome: str, early: tuple[str, ...], parts: tuple[str, ...]) -> list[str]:
    """Which limits are missed under an outcome."""
    if outcome == "PAY_IN_FULL":
        return []
    if outcome == "PAY_IN_PART":
        return list(parts) if draw.chance(30) else [draw.choice(parts)]
    missed = draw.choice((*early, "net"))
    return [missed, draw.choice(parts)] if missed == "net" and draw.chance(40) else [missed]


def _draw_slacks(draw: Draw, target: Target, early: tuple[str, ...], parts: tuple[str, ...]) -> dict[str, int]:
    missed = _missed(draw, target.outcome, early, parts)
    sides = draw_sides(draw, (*early, *parts, "net"), missed, target.margin)
    return {name: _SCALES[name].draw_slack(draw, *side) for name, side in sides.items()}


def _solve_small(draw: Draw, target: Target) -> dict[str, Amount]:
    slacks = _draw_slacks(draw, target, ("term",), ("roof",))
    age = MAX_FULL_VALUE_AGE - slacks["roof"]
    estimate = draw.between(40, 480) * 5_000  # cents, in steps of 50 dollars, so that 60 of 100 parts are whole dollars
    settled = estimate * (10_000 - SMALL_SCHEDULE_BP) // 10_000 if age > MAX_FULL_VALUE_AGE else estimate
    return {
        "loss": iso_date(day_number(SMALL_INCEPTION) + slacks["term"]),
        "deductible": _draw_deductible(draw, settled, slacks["net"], 100),
        "estimate": estimate,
        "age": age,
    }


def _solve_paper(draw: Draw, target: Target) -> dict[str, Amount]:
    slacks = _draw_slacks(draw, target, ("term", "notice"), ("seepage", "roof"))
    inception = day_number("2025-04-01") + draw.between(0, 60)
    loss = inception + slacks["term"]
    roof_age = MAX_FULL_VALUE_AGE - slacks["roof"]
    seepage_days = MAX_SEEPAGE_DAYS - slacks["seepage"]
    roof, interior = draw.between(9_000, 60_000) * 50, draw.between(3_000, 20_000) * 50
    depreciation = draw.between(20, 70) * 100 + draw.below(100)
    settled = roof * (10_000 - depreciation) // 10_000 if roof_age > MAX_FULL_VALUE_AGE else roof
    settled += 0 if seepage_days > MAX_SEEPAGE_DAYS else interior
    return {
        "claim_number": f"CLM-2026-{draw.between(10_000, 99_999)}",
        "date_of_loss": iso_date(loss),
        "inception": iso_date(inception),
        "notice_date": iso_date(loss + MAX_NOTICE_DAYS - slacks["notice"]),
        "dwelling_limit": draw.between(240, 700) * 100_000,
        "deductible": _draw_deductible(draw, settled, slacks["net"], 100),
        "roof_cost": roof,
        "interior_cost": interior,
        "roof_age": roof_age,
        "depreciation": depreciation,
        "seepage_days": seepage_days,
    }


def _draw_deductible(draw: Draw, settled: int, slack: int, step: int) -> int:
    """A deductible that leaves the slack, where it is near; else an ordinary one. In whole steps, rounded up."""
    if _NET.margin(slack) == "clear" and slack > 0:
        return draw.between(20, 140) * 5_000
    return -(-(settled - (slack + 1) * 100) // step) * step
