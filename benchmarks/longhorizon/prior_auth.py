"""Prior authorisation: a biologic drug for psoriasis under a made-up coverage policy.

Small cases have the clinical criteria; paper-size cases also have dose, dates of coverage and price.
"""

from __future__ import annotations

from benchmarks.longhorizon.amounts import Amount, Facts, day, day_number, iso_date, whole
from benchmarks.longhorizon.draw import Draw
from benchmarks.longhorizon.rules import Domain, Limit, Scale, Shape, Target, Verdict, draw_sides

COVERED_CODES = ("L40.0", "L40.1", "L40.50")
OTHER_CODES = ("L20.9", "L30.0", "L28.0", "L43.9", "L21.8")
MIN_BSA_BP, MIN_BSA_WITH_PASI_BP, MIN_PASI = 1_000, 300, 12
MIN_TRIAL_WEEKS = 12
FIRST_SCREENING = "2025-06-01"
LOW_DOSE_MG, HIGH_DOSE_MG, MIN_HIGH_DOSE_KG = 45, 90, 101
DOSES_PER_YEAR = 5

_CLOSED = Scale(near=1, far=1_000)
_FAR = 1_000  # the slack of a limit that has no near: a code is on a list or is not
_BSA = Scale(near=60, far=280)
_TRIAL = Scale(near=3, far=10)
_SCREENING = Scale(near=15, far=200)
_COVERAGE = Scale(near=8, far=120)
_WEIGHT = Scale(near=4, far=40)
_SCALES = {"severity": _BSA, "trial": _TRIAL, "screening": _SCREENING, "coverage": _COVERAGE, "dose": _WEIGHT}
_FORBIDDEN = (
    r"\bauthori[sz]ed\b",
    r"medically necessary",
    r"\bnecessity\b",
    r"\bcriteri\w+ (?:is|are|was|were)\b",
    r"\bpended\b",
)


def prior_auth_small() -> Domain:
    """Four facts: two measures of severity, the length of the trial, the date of screening."""
    return Domain(
        name="prior_auth",
        task_name="prior_auth-small",
        outcomes=("APPROVE", "PEND", "DENY"),
        shapes={
            "bsa": Shape(spread=600, low=0, high=9_999),
            "pasi": Shape(spread=9, low=0, high=72),
            "trial_weeks": Shape(spread=10, low=0, high=99),
            "tb_date": Shape(spread=240, low="2023-01-01", high="2026-02-28"),
        },
        judge=_judge_small,
        solve=_solve_small,
        forbidden=_FORBIDDEN,
    )


def prior_auth_paper() -> Domain:
    """Eleven facts: clinical, of the plan, and of the order."""
    return Domain(
        name="prior_auth",
        task_name="prior_auth-paper",
        outcomes=("APPROVE", "APPROVE_IN_PART", "PEND", "DENY"),
        shapes={
            "request_number": Shape(low="", high=""),
            "diagnosis": Shape(choices=(*COVERED_CODES, *OTHER_CODES)),
            "bsa": Shape(spread=600, low=0, high=9_999),
            "pasi": Shape(spread=9, low=0, high=72),
            "trial_weeks": Shape(spread=10, low=0, high=99),
            "tb_date": Shape(spread=240, low="2023-01-01", high="2026-02-28"),
            "weight": Shape(spread=25, low=40, high=220),
            "dose": Shape(step=LOW_DOSE_MG, low=LOW_DOSE_MG, high=HIGH_DOSE_MG),
            "service_date": Shape(spread=90, low="2026-03-01", high="2027-12-31"),
            "coverage_end": Shape(spread=120, low="2026-03-01", high="2027-12-31"),
            "unit_price": Shape(step=25, spread=9_000, low=10_000, high=9_999_999),
        },
        judge=_judge_paper,
        solve=_solve_paper,
        forbidden=_FORBIDDEN,
    )


def _clinical_limits(facts: Facts) -> list[Limit]:
    """Source: the policy of both task files, sentence by sentence."""
    min_bsa = MIN_BSA_WITH_PASI_BP if whole(facts, "pasi") >= MIN_PASI else MIN_BSA_BP
    screened = day(facts, "tb_date") - day_number(FIRST_SCREENING)
    trial = whole(facts, "trial_weeks") - MIN_TRIAL_WEEKS
    return [
        Limit("severity", "Criterion 2", "N02", ("bsa", "pasi"), whole(facts, "bsa") - min_bsa, _BSA),
        Limit("trial", "Criterion 3", "N03", ("trial_weeks",), trial, _TRIAL),
        Limit("screening", "Criterion 4", "N04", ("tb_date",), screened, _SCREENING),
    ]


def _judge_small(facts: Facts) -> Verdict:
    return _verdict(_clinical_limits(facts), {})


def _judge_paper(facts: Facts) -> Verdict:
    dose, weight = whole(facts, "dose"), whole(facts, "weight")
    listed = _FAR if facts["diagnosis"] in COVERED_CODES else -_FAR
    covered = day(facts, "coverage_end") - day(facts, "service_date")
    spare = weight - MIN_HIGH_DOSE_KG if dose > LOW_DOSE_MG else _FAR
    limits = [
        Limit("diagnosis", "Criterion 1", "N01", ("diagnosis",), listed, _CLOSED),
        *_clinical_limits(facts),
        Limit("coverage", "Plan 2.1", "N05", ("service_date", "coverage_end"), covered, _COVERAGE),
        Limit("dose", "Criterion 5", "N06", ("dose", "weight"), spare, _WEIGHT),
    ]
    given_mg = dose if spare >= 0 else LOW_DOSE_MG
    units = DOSES_PER_YEAR * given_mg // LOW_DOSE_MG
    return _verdict(limits, {"dose_mg": given_mg, "year_cents": units * whole(facts, "unit_price")})


def _verdict(limits: list[Limit], figures: dict[str, int]) -> Verdict:
    reasons = tuple(sorted(limit.reason for limit in limits if not limit.holds))
    outcome = {(): "APPROVE", ("N06",): "APPROVE_IN_PART", ("N04",): "PEND"}.get(reasons, "DENY")
    return Verdict(outcome, reasons, figures if outcome.startswith("APPROVE") else {}, tuple(limits))


def _draw_slacks(draw: Draw, target: Target, limits: tuple[str, ...]) -> dict[str, int]:
    denying = [name for name in limits if name not in ("screening", "dose")]
    missed = {"APPROVE_IN_PART": ["dose"], "PEND": ["screening"], "DENY": [draw.choice(denying)]}.get(
        target.outcome, []
    )
    if target.outcome == "DENY" and draw.chance(40):
        missed.append(draw.choice([name for name in limits if name not in missed]))
    sides = draw_sides(draw, limits, missed, target.margin)
    return {name: _SCALES[name].draw_slack(draw, *side) for name, side in sides.items()}


def _solve_small(draw: Draw, target: Target) -> dict[str, Amount]:
    return _solve_clinical(draw, _draw_slacks(draw, target, ("severity", "trial", "screening")))


def _solve_clinical(draw: Draw, slacks: dict[str, int]) -> dict[str, Amount]:
    has_pasi = draw.chance(50)
    return {
        "bsa": (MIN_BSA_WITH_PASI_BP if has_pasi else MIN_BSA_BP) + slacks["severity"],
        "pasi": draw.between(MIN_PASI, 28) if has_pasi else draw.between(3, MIN_PASI - 1),
        "trial_weeks": MIN_TRIAL_WEEKS + slacks["trial"],
        "tb_date": iso_date(day_number(FIRST_SCREENING) + slacks["screening"]),
    }


def _solve_paper(draw: Draw, target: Target) -> dict[str, Amount]:
    slacks = _draw_slacks(draw, target, ("severity", "trial", "screening", "coverage", "dose"))
    is_listed = target.outcome != "DENY" or draw.chance(75)
    is_high = slacks["dose"] < 0 or _WEIGHT.margin(slacks["dose"]) != "clear" or draw.chance(50)
    service = day_number("2026-05-20") + draw.between(0, 60)
    return {
        "request_number": f"PA-2026-{draw.between(100_000, 999_999)}",
        "diagnosis": draw.choice(COVERED_CODES if is_listed else OTHER_CODES),
        **_solve_clinical(draw, slacks),
        "weight": MIN_HIGH_DOSE_KG + slacks["dose"] if is_high else draw.between(52, 150),
        "dose": HIGH_DOSE_MG if is_high else LOW_DOSE_MG,
        "service_date": iso_date(service),
        "coverage_end": iso_date(service + slacks["coverage"]),
        "unit_price": draw.between(24_000, 96_000) * 25,
    }
