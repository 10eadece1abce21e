"""The small case that the demonstrations of failure run on: two tool calls in flight at once, and a second tenant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baseline.memory import Architecture, BuiltMemory
from baseline.run import ArchitectureRun, run_architecture
from benchmarks.example_cases import long_case
from projection.engine import Engine
from projection.events import Event, LoggedEvent, numbered
from projection.task import Task, parse_task
from projection.view_grammar import Profile

CONCURRENT_AT = 3  # events 3 and 4 are answers to tool calls that were in flight together: either may arrive first
BUDGET_CHARS = 400  # half of the case
_TASK = b"""
question: Decide application LN-7 on the latest verified figures.
fields:
  - {name: income, type: money, description: verified monthly income}
  - {name: score, type: integer, description: representative credit score}
  - {name: dti, type: percent, description: debt-to-income ratio}
outcomes:
  - {name: APPROVE, reasons: none}
  - {name: DENY, reasons: required}
reasons:
  - {code: R05, text: Income insufficient for amount of credit requested}
  - {code: R06, text: Excessive obligations in relation to income}
provisions:
  - {id: Policy 4.2, text: back-end ratio limit}
policy: The debt-to-income ratio is at most 45.0%.
"""
_TYPES = (
    "loan.application",
    "appraisal.report",
    "tool.credit",
    "tool.employment",
    "underwriting.worksheet",
    "rate.lock",
)
_DAYS = tuple(f"2026-03-{day}T10:00:00Z" for day in ("02", "06", "10", "10", "12", "13"))


@dataclass(frozen=True, slots=True)
class CaseInput:
    """What a decision is a function of, besides its engine: (E, T, B), and the profile of the view's form."""

    events: Sequence[LoggedEvent]
    task: Task
    budget_chars: int
    profile: Profile


def demonstration_case(profile: Profile) -> CaseInput:
    """The case of the first tenant."""
    events = _log(
        "Application LN-7. Stated monthly income $7,250.00, loan amount $212,000, purchase of 18 Mill Lane.",
        "Form 1004, report AP-1180: appraised value $268,000 as of 2026-03-06, condition C3, no repairs required.",
        "Credit report CR-4471: representative credit score 688, revolving balances $9,310, no late payments.",
        "Employer confirms by telephone a verified monthly income of $6,100.00 since 2021-07-01, position permanent.",
        "Worksheet: obligations $2,818.20 a month, debt-to-income ratio 46.2% on the verified monthly income.",
        "Rate lock confirmation: 30-year fixed at 6.375%, locked 2026-03-13, expires 2026-05-12.",
    )
    return CaseInput(events, parse_task(_TASK), BUDGET_CHARS, profile)


def other_tenant_s_case(profile: Profile) -> CaseInput:
    """Another tenant's case, which happens to have the same number."""
    events = _log(
        "Application LN-7. Stated monthly income $4,480.00, loan amount $95,500, refinance of 4 Quay Street.",
        "Form 1004, report AP-9902: appraised value $141,000 as of 2026-03-04, condition C4, roof to be repaired.",
        "Credit report CR-8163: representative credit score 742, revolving balances $1,270, one late payment.",
        "Employer confirms in writing a verified monthly income of $4,395.00 since 2016-02-15, position permanent.",
        "Worksheet: obligations $1,405.80 a month, debt-to-income ratio 32.0% on the verified monthly income.",
        "Rate lock confirmation: 15-year fixed at 5.875%, locked 2026-03-12, expires 2026-05-11.",
    )
    return CaseInput(events, parse_task(_TASK), BUDGET_CHARS, profile)


def long_survival_case(num_events: int, profile: Profile) -> CaseInput:
    """A longer case for the count of replays that survive, made of both examples."""
    events, task = long_case(num_events)
    return CaseInput(numbered(events), task, BUDGET_CHARS, profile)


def run_case(architecture: Architecture, engine: Engine, case: CaseInput) -> ArchitectureRun:
    """The case, decided under an architecture."""
    return run_architecture(architecture, engine, case.events, case.task, case.budget_chars, case.profile)


def build_case_memory(architecture: Architecture, engine: Engine, case: CaseInput) -> BuiltMemory:
    """The case's memory at decision time, without the decision."""
    return architecture.build_memory(engine, case.events, case.task, case.budget_chars, case.profile)


def swap_arrivals(events: Sequence[LoggedEvent], position: int) -> tuple[LoggedEvent, ...]:
    """The same events, had those at `position` and `position` + 1 arrived in the other order."""
    order = [event.event for event in events]
    order[position - 1], order[position] = order[position], order[position - 1]
    return numbered(order)


def _log(*texts: str) -> tuple[LoggedEvent, ...]:
    rows = zip(_TYPES, _DAYS, texts, strict=True)
    return numbered(
        Event(f"e{n}", kind, "demonstration", day, text) for n, (kind, day, text) in enumerate(rows, start=1)
    )
