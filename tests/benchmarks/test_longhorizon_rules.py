"""Draws, typed values and the rules of the three domains."""

from __future__ import annotations

from itertools import islice

import pytest

from benchmarks.longhorizon.amounts import Amount, day_number, format_amount, iso_date, parse_amount
from benchmarks.longhorizon.case import DOMAINS, DomainName, Size
from benchmarks.longhorizon.domains import domain_for
from benchmarks.longhorizon.draw import Draw
from benchmarks.longhorizon.rules import MARGINS, Domain, Scale, Target, is_critical
from benchmarks.longhorizon.texts import load_domain_task
from projection.task import FieldType

BOTH: tuple[Size, ...] = ("small", "paper")

MORTGAGE: dict[str, Amount] = {
    "application_number": "LN-2026-11111",
    "loan_amount": 39_840_000,
    "purchase_price": 50_000_000,
    "appraised_value": 49_800_000,
    "qualifying_income": 846_500,
    "monthly_obligations": 380_000,
    "credit_score": 695,
    "reserves": 3,
    "employment_start": "2019-08-12",
    "concessions": 300,
    "lock_expiration": "2026-05-22",
}
CLAIM: dict[str, Amount] = {
    "claim_number": "CLM-2026-11111",
    "date_of_loss": "2025-09-14",
    "inception": "2025-04-01",
    "notice_date": "2025-09-20",
    "dwelling_limit": 38_600_000,
    "deductible": 772_000,
    "roof_cost": 2_000_000,
    "interior_cost": 500_000,
    "roof_age": 9,
    "depreciation": 4_000,
    "seepage_days": 3,
}
PRIOR_AUTH: dict[str, Amount] = {
    "request_number": "PA-2026-111111",
    "diagnosis": "L40.0",
    "bsa": 1_200,
    "pasi": 9,
    "trial_weeks": 14,
    "tb_date": "2025-11-03",
    "weight": 104,
    "dose": 90,
    "service_date": "2026-06-01",
    "coverage_end": "2026-12-31",
    "unit_price": 1_000_000,
}


def test_draws_are_the_same_on_every_machine() -> None:
    draw = Draw(20_260_420, "mortgage", "paper", 0)
    assert [draw.below(1_000_000) for _ in range(5)] == [468449, 576070, 682320, 870291, 922495]
    assert Draw("a", "b").below(2**60) != Draw("ab").below(2**60)


def test_draws_cover_their_range_and_nothing_else() -> None:
    draw = Draw("range")
    assert {draw.between(3, 7) for _ in range(300)} == {3, 4, 5, 6, 7}
    assert sorted(draw.shuffled(range(50))) == list(range(50))


@pytest.mark.parametrize(
    ("text", "type_", "amount"),
    [
        ("$5,000", "money", 500_000),
        ("$5,000.00", "money", 500_000),
        ("$0.05", "money", 5),
        ("48.1%", "percent", 4_810),
        ("48.10%", "percent", 4_810),
        ("1,204", "integer", 1_204),
        ("12.5", "integer", None),
        ("2026-02-28", "date", "2026-02-28"),
        ("2026-02-30", "date", None),
        ("LN-2026-1", "identifier", "LN-2026-1"),
        ("$1.234", "money", None),
    ],
)
def test_a_text_says_one_typed_amount(text: str, type_: FieldType, amount: Amount | None) -> None:
    assert parse_amount(text, type_) == amount


@pytest.mark.parametrize(
    ("amount", "type_", "step", "text"),
    [(500_000, "money", 100, "$5,000"), (500_005, "money", 1, "$5,000.05"), (7, "percent", 1, "0.07%")],
)
def test_amounts_are_written_as_documents_write_them(amount: int, type_: FieldType, step: int, text: str) -> None:
    assert format_amount(amount, type_, step) == text
    assert parse_amount(text, type_) == amount


def test_margins_are_at_on_the_threshold_and_one_unit_beyond() -> None:
    scale = Scale(near=10, far=100)
    assert [scale.margin(slack) for slack in (0, -1, 1, -2, 10, 11, -11)] == [
        "at",
        "at",
        "near",
        "near",
        "near",
        "clear",
        "clear",
    ]
    draw = Draw("margins")
    for margin in MARGINS:
        for holds in (True, False):
            slacks = [scale.draw_slack(draw, holds, margin) for _ in range(50)]
            assert {(slack >= 0, scale.margin(slack)) for slack in slacks} == {(holds, margin)}


@pytest.mark.parametrize(
    ("changed", "outcome", "reasons"),
    [
        ({}, "APPROVE", ()),
        ({"monthly_obligations": 380_925}, "APPROVE", ()),  # 45.00% exactly
        ({"monthly_obligations": 380_926}, "DENY", ("R06",)),
        ({"monthly_obligations": 380_926, "reserves": 6}, "APPROVE", ()),
        ({"loan_amount": 39_840_100}, "COUNTEROFFER", ("R12",)),
        ({"loan_amount": 42_340_000}, "DENY", ("R12",)),
        ({"appraised_value": 49_799_900}, "COUNTEROFFER", ("R12",)),
        ({"credit_score": 679}, "DENY", ("R01",)),
        ({"credit_score": 679, "loan_amount": 39_840_100}, "DENY", ("R01", "R12")),
        ({"employment_start": "2024-04-01"}, "DENY", ("R03",)),
        ({"concessions": 601}, "DENY", ("R14",)),
    ],
)
def test_mortgage_limits(changed: dict[str, Amount], outcome: str, reasons: tuple[str, ...]) -> None:
    verdict = domain_for("mortgage", "paper").judge(MORTGAGE | changed)
    assert (verdict.outcome, verdict.reasons) == (outcome, reasons)


@pytest.mark.parametrize(
    ("changed", "outcome", "reasons", "due_cents"),
    [
        ({}, "PAY_IN_FULL", (), 1_728_000),
        ({"roof_age": 16}, "PAY_IN_PART", ("G05",), 928_000),
        ({"seepage_days": 15}, "PAY_IN_PART", ("G03",), 1_228_000),
        ({"seepage_days": 15, "roof_age": 16}, "PAY_IN_PART", ("G03", "G05"), 428_000),
        ({"date_of_loss": "2025-03-31", "notice_date": "2025-04-02"}, "DENY", ("G01",), None),
        ({"notice_date": "2025-11-14"}, "DENY", ("G02",), None),
        ({"notice_date": "2025-11-13"}, "PAY_IN_FULL", (), 1_728_000),
        ({"deductible": 2_500_000}, "DENY", ("G06",), None),
        ({"deductible": 2_499_999}, "PAY_IN_FULL", (), 1),
        ({"dwelling_limit": 1_000_000}, "PAY_IN_FULL", (), 228_000),
    ],
)
def test_claim_limits(
    changed: dict[str, Amount], outcome: str, reasons: tuple[str, ...], due_cents: int | None
) -> None:
    verdict = domain_for("claim", "paper").judge(CLAIM | changed)
    assert (verdict.outcome, verdict.reasons, verdict.figures.get("due_cents")) == (outcome, reasons, due_cents)


@pytest.mark.parametrize(
    ("changed", "outcome", "reasons", "year_cents"),
    [
        ({}, "APPROVE", (), 10_000_000),
        ({"weight": 100}, "APPROVE_IN_PART", ("N06",), 5_000_000),
        ({"weight": 60, "dose": 45}, "APPROVE", (), 5_000_000),
        ({"tb_date": "2025-05-31"}, "PEND", ("N04",), None),
        ({"tb_date": "2025-05-31", "weight": 100}, "DENY", ("N04", "N06"), None),
        ({"bsa": 999}, "DENY", ("N02",), None),
        ({"bsa": 300, "pasi": 12}, "APPROVE", (), 10_000_000),
        ({"trial_weeks": 11}, "DENY", ("N03",), None),
        ({"coverage_end": "2026-05-31"}, "DENY", ("N05",), None),
        ({"diagnosis": "L20.9"}, "DENY", ("N01",), None),
    ],
)
def test_prior_authorisation_limits(
    changed: dict[str, Amount], outcome: str, reasons: tuple[str, ...], year_cents: int | None
) -> None:
    verdict = domain_for("prior_auth", "paper").judge(PRIOR_AUTH | changed)
    assert (verdict.outcome, verdict.reasons, verdict.figures.get("year_cents")) == (outcome, reasons, year_cents)


def test_a_fact_is_critical_where_the_policy_needs_it_and_only_there() -> None:
    domain = domain_for("mortgage", "paper")
    assert is_critical(domain, MORTGAGE, "credit_score")
    assert not is_critical(domain, MORTGAGE, "lock_expiration")
    assert not is_critical(domain, MORTGAGE, "reserves")  # 44.89% needs none
    assert is_critical(domain, MORTGAGE | {"monthly_obligations": 400_000}, "reserves")


@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("size", BOTH)
def test_the_ends_of_a_range_find_every_critical_fact(name: DomainName, size: Size) -> None:
    """The claim of `rules`, held against random values between the ends."""
    domain, draw = domain_for(name, size), Draw("ends", name, size)
    for index in range(24):
        target = Target(domain.outcomes[index % len(domain.outcomes)], MARGINS[index % 3])
        facts = domain.solve(draw, target)
        vector = domain.judge(facts).vector
        for field in domain.shapes:
            others = islice(_values(draw, domain, field, facts[field]), 40)
            if any(domain.judge({**facts, field: other}).vector != vector for other in others):
                assert is_critical(domain, facts, field), (field, facts)


def _values(draw: Draw, domain: Domain, field: str, true: Amount) -> list[Amount]:
    shape = domain.shapes[field]
    if shape.choices:
        return list(shape.choices)
    wrong = [shape.draw_wrong(draw, true) for _ in range(10)]
    low, high = shape.low, shape.high
    if isinstance(low, int) and isinstance(high, int):
        return [*wrong, *(draw.between(low, high) for _ in range(30))]
    if low == "":
        return wrong
    return [*wrong, *(iso_date(draw.between(day_number(str(low)), day_number(str(high)))) for _ in range(30))]


@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("size", BOTH)
def test_rules_and_task_files_name_the_same_things(name: DomainName, size: Size) -> None:
    domain = domain_for(name, size)
    task = load_domain_task(domain.task_name)
    assert tuple(outcome.name for outcome in task.outcomes) == domain.outcomes
    assert {field.name for field in task.fields} == set(domain.shapes)
    facts = domain.solve(Draw("names"), Target(domain.outcomes[0], "clear"))
    assert {limit.rule for limit in domain.judge(facts).limits} <= {p.id for p in task.provisions}
    assert len(task.fields) in ((3, 4) if size == "small" else range(8, 13))
