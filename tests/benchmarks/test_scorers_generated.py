"""On generated cases of every domain: the answer that the truth dictates scores 1, and its stale twin does not."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import pytest

from baseline.memory import TextMemory
from benchmarks.longhorizon.case import DOMAINS, Case, DomainName, Size
from benchmarks.longhorizon.generator import generate_cases
from benchmarks.scorers.axes import AxisScores, score_axes
from benchmarks.scorers.citations import score_citations
from projection.decision import verify_decision
from projection.task import MAX_REASONS

ONE = Fraction(1)
WORLDS = [(domain, size) for domain in DOMAINS for size in ("small", "paper")]


@cache
def generated(domain: DomainName, size: Size) -> tuple[Case, ...]:
    return tuple(generate_cases(domain, size, count=3))


def memory_of(case: Case, values: dict[str, str]) -> TextMemory:
    """Every field by name with its event, then every step's rule on the event of its first fact."""
    fields = {field.name: field for field in case.task.fields}
    lines = [f"- {fields[f.name].description}: {values[f.name]} [{f.position}]" for f in case.truth.fields]
    lines += [f"- [{case.truth.field(step.facts[0]).position}] {step.rule}: it applies" for step in case.truth.steps]
    return TextMemory("\n".join(lines))


def answered(case: Case, values: dict[str, str]) -> AxisScores:
    """The scores of the true outcome with the true reasons, each on the line of a fact it rests on."""
    memory = memory_of(case, values)
    places = {field.name: number for number, field in enumerate(case.truth.fields, start=1)}
    first = {step.reason: step.facts[0] for step in reversed(case.truth.steps) if step.reason}
    order = [reason.code for reason in case.task.reasons if reason.code in case.truth.reasons]
    rows = [f"Outcome: {case.truth.outcome}"]
    rows += [f"Reason: {code} [L{places[first[code]]}]" for code in order]
    text = "\n".join([*rows, "Rationale: So the policy says", ""])
    return score_axes(case, memory, verify_decision(text, case.task, memory))


@pytest.mark.parametrize(("domain", "size"), WORLDS)
def test_what_the_truth_dictates_scores_one_on_every_axis(domain: DomainName, size: Size) -> None:
    for case in generated(domain, size):
        assert len(case.truth.reasons) <= MAX_REASONS
        found = answered(case, {field.name: field.value for field in case.truth.fields})
        assert {found.frp, found.frp_text, found.frp_present, found.rcs, found.eda, found.crr} == {ONE}, case.case_id


@pytest.mark.parametrize(("domain", "size"), WORLDS)
def test_its_citations_hold_and_nothing_is_invented(domain: DomainName, size: Size) -> None:
    for case in generated(domain, size):
        memory = memory_of(case, {field.name: field.value for field in case.truth.fields})
        found = score_citations(case, memory, memory.text, len(memory.text))
        assert (found.citation_precision, found.citation_recall, found.hallucinated_rate) == (ONE, ONE, Fraction(0))


@pytest.mark.parametrize(("domain", "size"), WORLDS)
def test_superseded_values_in_their_place_are_not_recovered(domain: DomainName, size: Size) -> None:
    for case in generated(domain, size):
        values = {field.name: field.value for field in case.truth.fields}
        stale = {wrong.field: wrong.value for wrong in case.truth.superseded}
        found = answered(case, {**values, **stale})
        assert stale
        assert set(found.recovered) == values.keys() - stale.keys(), case.case_id
        assert found.rcs < 1
