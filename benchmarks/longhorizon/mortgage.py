"""Mortgage qualification: purchase loans under a made-up credit policy, reasons as in Regulation B's sample form C-1.

Small cases give the ratios; paper-size cases give what the ratios are made of. The limits are the same.
"""

from __future__ import annotations

from benchmarks.longhorizon.amounts import Amount, Facts, day, day_number, iso_date, whole
from benchmarks.longhorizon.draw import Draw
from benchmarks.longhorizon.rules import Domain, Limit, Scale, Shape, Target, Verdict, draw_sides

MAX_DTI_BP, MAX_DTI_WITH_RESERVES_BP, MIN_RESERVES_MONTHS = 4_500, 5_000, 6
MAX_LTV_BP, MAX_COUNTEROFFER_BP = 8_000, 500
MIN_SCORE = 680
LAST_EMPLOYMENT_START = "2024-03-31"
MAX_CONCESSIONS_BP = 600

_DTI = Scale(near=60, far=1_300)
_LTV = Scale(near=60, far=1_400)
_SCORE = Scale(near=8, far=60)
_EMPLOYMENT = Scale(near=20, far=1_200)
_CONCESSIONS = Scale(near=40, far=250)
_SMALL_LIMITS = ("dti", "ltv", "score")
_PAPER_LIMITS = (*_SMALL_LIMITS, "employment", "concessions")
_FORBIDDEN = (r"clear to close", r"suspend", r"adverse action", r"counter-?offer", r"\brefer\b", r"recommends")


def mortgage_small() -> Domain:
    """Four facts: the ratios themselves, the score and the reserves."""
    return Domain(
        name="mortgage",
        task_name="mortgage-small",
        outcomes=("APPROVE", "COUNTEROFFER", "DENY"),
        shapes={
            "dti": Shape(spread=900, low=1, high=9_999),
            "ltv": Shape(spread=1_200, low=1, high=9_999),
            "credit_score": Shape(spread=60, low=300, high=850),
            "reserves": Shape(spread=9, low=0, high=99),
        },
        judge=lambda facts: _judge(whole(facts, "dti"), whole(facts, "ltv"), facts, _ratio_facts(("dti",), ("ltv",))),
        solve=_solve_small,
        forbidden=_FORBIDDEN,
    )


def mortgage_paper() -> Domain:
    """Eleven facts: amounts, dates and identifiers, of which the rules make the ratios."""
    return Domain(
        name="mortgage",
        task_name="mortgage-paper",
        outcomes=("APPROVE", "COUNTEROFFER", "DENY"),
        shapes={
            "application_number": Shape(low="", high=""),
            "loan_amount": Shape(step=10_000, spread=900, low=1_000_000, high=300_000_000),
            "purchase_price": Shape(step=50_000, spread=150, low=1_000_000, high=300_000_000),
            "appraised_value": Shape(step=50_000, spread=150, low=1_000_000, high=300_000_000),
            "qualifying_income": Shape(step=25, spread=9_000, low=10_000, high=99_999_999),
            "monthly_obligations": Shape(step=25, spread=4_000, low=10_000, high=99_999_999),
            "credit_score": Shape(spread=60, low=300, high=850),
            "reserves": Shape(spread=9, low=0, high=99),
            "employment_start": Shape(spread=900, low="1980-01-01", high="2026-02-28"),
            "concessions": Shape(spread=300, low=0, high=5_000),
            "lock_expiration": Shape(spread=45, low="2026-04-01", high="2026-12-31"),
        },
        judge=_judge_paper,
        solve=_solve_paper,
        forbidden=_FORBIDDEN,
    )


def _judge_paper(facts: Facts) -> Verdict:
    lesser = min(whole(facts, "purchase_price"), whole(facts, "appraised_value"))
    dti = -(-whole(facts, "monthly_obligations") * 10_000 // whole(facts, "qualifying_income"))
    ltv = -(-whole(facts, "loan_amount") * 10_000 // lesser)
    names = _ratio_facts(
        ("monthly_obligations", "qualifying_income"), ("loan_amount", "purchase_price", "appraised_value")
    )
    return _judge(dti, ltv, facts, names, lesser)


def _ratio_facts(dti: tuple[str, ...], ltv: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    return {"dti": (*dti, "reserves"), "ltv": ltv}


def _judge(dti: int, ltv: int, facts: Facts, names: dict[str, tuple[str, ...]], lesser: int | None = None) -> Verdict:
    """Source: the policy in the task files, sentence by sentence. Ratios are basis points, rounded up."""
    has_reserves = whole(facts, "reserves") >= MIN_RESERVES_MONTHS
    max_dti = MAX_DTI_WITH_RESERVES_BP if has_reserves else MAX_DTI_BP
    limits = [
        Limit("dti", "Policy 4.2", "R06", names["dti"], max_dti - dti, _DTI),
        Limit("ltv", "Policy 5.1", "R12", names["ltv"], MAX_LTV_BP - ltv, _LTV),
        Limit("score", "Policy 3.1", "R01", ("credit_score",), whole(facts, "credit_score") - MIN_SCORE, _SCORE),
    ]
    if lesser is not None:
        employed = day_number(LAST_EMPLOYMENT_START) - day(facts, "employment_start")
        spare = MAX_CONCESSIONS_BP - whole(facts, "concessions")
        limits.append(Limit("employment", "Policy 4.4", "R03", ("employment_start",), employed, _EMPLOYMENT))
        limits.append(Limit("concessions", "Policy 5.3", "R14", ("concessions",), spare, _CONCESSIONS))
    missed = [limit for limit in limits if not limit.holds]
    reasons = tuple(sorted(limit.reason for limit in missed))
    figures = {"dti_bp": dti, "ltv_bp": ltv} if not missed else {}
    outcome = "DENY" if missed else "APPROVE"
    if reasons == ("R12",) and ltv <= MAX_LTV_BP + MAX_COUNTEROFFER_BP:
        outcome = "COUNTEROFFER"
        offered = lesser and lesser * MAX_LTV_BP // 10_000 // 100 * 100
        figures = {"offered_loan_cents": offered} if offered else {"ltv_bp": MAX_LTV_BP}
    return Verdict(outcome, reasons, figures, tuple(limits))


def _draw_slacks(draw: Draw, target: Target, limits: tuple[str, ...]) -> dict[str, int]:
    missed: list[str] = []
    if target.outcome == "COUNTEROFFER":
        missed = ["ltv"]
    elif target.outcome == "DENY":
        others = [name for name in limits if name != "ltv"]
        missed = [draw.choice(others)]
        if draw.chance(40):
            missed.append(draw.choice([name for name in limits if name not in missed]))
    scales = {"dti": _DTI, "ltv": _LTV, "score": _SCORE, "employment": _EMPLOYMENT, "concessions": _CONCESSIONS}
    sides = draw_sides(draw, limits, missed, target.margin)
    return {name: scales[name].draw_slack(draw, *side) for name, side in sides.items()}


def _solve_shared(draw: Draw, slacks: dict[str, int]) -> tuple[int, dict[str, Amount]]:
    """The allowed debt ratio, and the facts that both sizes have."""
    has_reserves = draw.chance(50)
    reserves = draw.between(MIN_RESERVES_MONTHS, 19) if has_reserves else draw.between(1, MIN_RESERVES_MONTHS - 1)
    facts: dict[str, Amount] = {"credit_score": MIN_SCORE + slacks["score"], "reserves": reserves}
    return MAX_DTI_WITH_RESERVES_BP if has_reserves else MAX_DTI_BP, facts


def _solve_small(draw: Draw, target: Target) -> dict[str, Amount]:
    slacks = _draw_slacks(draw, target, _SMALL_LIMITS)
    max_dti, facts = _solve_shared(draw, slacks)
    return {"dti": max_dti - slacks["dti"], "ltv": MAX_LTV_BP - slacks["ltv"], **facts}


def _solve_paper(draw: Draw, target: Target) -> dict[str, Amount]:
    slacks = _draw_slacks(draw, target, _PAPER_LIMITS)
    max_dti, shared = _solve_shared(draw, slacks)
    lesser = draw.between(560, 1_500) * 50_000  # cents: 280,000 to 750,000 dollars
    other = lesser + draw.between(0, 40) * 50_000
    price, value = draw.shuffled([lesser, other])
    income = draw.between(20_800, 56_000) * 25
    loan = lesser * (MAX_LTV_BP - slacks["ltv"]) // 10_000 // 100 * 100
    return {
        "application_number": f"LN-2026-{draw.between(10_000, 99_999)}",
        "loan_amount": loan,
        "purchase_price": price,
        "appraised_value": value,
        "qualifying_income": income,
        "monthly_obligations": income * (max_dti - slacks["dti"]) // 10_000,
        **shared,
        "employment_start": iso_date(day_number(LAST_EMPLOYMENT_START) - slacks["employment"]),
        "concessions": MAX_CONCESSIONS_BP - slacks["concessions"],
        "lock_expiration": iso_date(day_number("2026-06-01") + draw.between(0, 60)),
    }
