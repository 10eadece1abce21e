"""The four decision-alignment axes, by rule: no model judges, and every score is a fraction of counted things.

    FRP  factual precision: recovered fields / all fields of the truth.
         In a view a field is recovered when its own line gives the true value and cites the event it stands in. In any
         other text the last line that begins with the field's description decides, by its last value; without one the
         last statement that holds the true value or a superseded one decides, and must hold the true one. Where the
         deciding statement cites events, the right one must be among them; where it cites none, none is asked for: the
         rule is never kinder to a view than to a text. Beside it stands the paper's laxer count, `frp_present`: the
         true value stands anywhere in the memory, whatever stands beside it.
         On the memo (`frp_memo`) the same rule for texts is applied to what the decision says: the memory lines it
         cites, written out, and its rationale. A fact that the memory holds and no reason cites is not in it.
    RCS  reasoning coherence: links found / all links. Each step of the truth (facts, rule, conclusion) has one link
         from each fact to the rule, and one from the rule to the conclusion. A rule counts as applied where the
         decision gives its reason code on memory lines that state one of the step's recovered facts, or where the
         memory names the rule in a statement that cites or states one. A link from a fact asks for the fact to be
         recovered and the rule to be applied; the link to the conclusion asks for an applied rule, the right outcome,
         and the reason code given exactly where the limit is missed. Without a decision there is no chain: 0.
    EDA  decision accuracy: 1 where the outcome equals the true one; PARSE_ERROR and ABSTAIN are never right.
    CRR  compliance reconstruction: required reason codes that are given and backed / codes required or given. A code is
         backed where a memory line it cites states the true value of a fact it rests on. A wrong outcome scores 0;
         where no reason is required, the right outcome with no reason scores 1.

A value is compared as a typed value, whole (`scorers.text`). A superseded value is a wrong value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from benchmarks.longhorizon.case import Case, FieldTruth, Step
from benchmarks.scorers.text import Statement, find_values, is_same_value, read_statements, states_value
from projection.decision import Decision
from projection.task import Task, TaskField
from projection.view import Memory, MemoryView

PARSE_ERROR, ABSTAIN = "PARSE_ERROR", "ABSTAIN"  # outcomes of an answer that holds no decision


@dataclass(frozen=True, slots=True)
class AxisScores:
    """The four axes of one answer.

    frp_text: FRP by the rule for texts, whatever the memory's form. frp_present: fields whose true value stands
    anywhere. frp_memo: FRP of what the decision shows. recovered: the fields that `frp` counts.
    """

    frp: Fraction
    frp_text: Fraction
    frp_present: Fraction
    frp_memo: Fraction
    rcs: Fraction
    eda: Fraction
    crr: Fraction
    recovered: tuple[str, ...]


def score_axes(case: Case, memory: Memory, decision: Decision | None) -> AxisScores:
    """Score a memory, and the decision made from it; None where there is none."""
    truth = case.truth
    statements = read_statements([line.text for line in memory.lines], rule_ids(case.task))
    in_text = _recovered_in_text(case, statements)
    recovered = _recovered_in_view(case, memory) if isinstance(memory, MemoryView) else in_text
    num_fields = len(truth.fields)
    return AxisScores(
        frp=Fraction(len(recovered), num_fields),
        frp_text=Fraction(len(in_text), num_fields),
        frp_present=Fraction(sum(_is_present(case, field, statements) for field in truth.fields), num_fields),
        frp_memo=Fraction(len(_recovered_in_text(case, read_memo(case, memory, decision))), num_fields),
        rcs=score_rcs(case, statements, frozenset(recovered), decision),
        eda=score_eda(decision.outcome if decision else ABSTAIN, truth.outcome),
        crr=score_crr(case, statements, decision),
        recovered=recovered,
    )


def score_eda(outcome: str, true_outcome: str) -> Fraction:
    """1 where the outcome is the true one, whole and to the letter."""
    return Fraction(outcome == true_outcome and outcome not in (PARSE_ERROR, ABSTAIN))


def score_rcs(
    case: Case, statements: Sequence[Statement], recovered: frozenset[str], decision: Decision | None
) -> Fraction:
    """Links of the true chain that memory and decision show / links of the true chain."""
    steps = case.truth.steps
    num_links = sum(len(step.facts) + 1 for step in steps)
    if decision is None or num_links == 0:
        return Fraction(0)
    return Fraction(sum(_links_found(case, step, statements, recovered, decision) for step in steps), num_links)


def score_crr(case: Case, statements: Sequence[Statement], decision: Decision | None) -> Fraction:
    """Required codes that are given and backed / codes that are required or given."""
    truth = case.truth
    if decision is None or decision.outcome != truth.outcome:
        return Fraction(0)
    given = {reason.code for reason in decision.reasons}
    required = set(truth.reasons)
    if not required and not given:
        return Fraction(1)
    facts = {code: _facts_of(case, code) for code in required}
    backed = {code for code in required & given if _facts_cited_for(case, code, facts[code], statements, decision)}
    return Fraction(len(backed), len(required | given))


def read_memo(case: Case, memory: Memory, decision: Decision | None) -> list[Statement]:
    """What a decision shows to its reader: the memory lines its reasons cite, in order, and its rationale."""
    if decision is None:
        return []
    cited = {number for reason in decision.reasons for number in reason.lines}
    lines = [line.text for line in memory.lines if line.number in cited]
    return read_statements([*lines, decision.rationale], rule_ids(case.task))


def rule_ids(task: Task) -> list[str]:
    """What a memory can name a rule by."""
    return [provision.id for provision in task.provisions]


def is_stated(case: Case, name: str, statement: Statement) -> bool:
    """Whether a statement gives the true value of a field, citing its event where it cites any."""
    truth = case.truth.field(name)
    is_right_citation = not statement.cited or truth.position in statement.cited
    return is_right_citation and states_value(task_field(case.task, name), statement.words, truth.value)


def task_field(task: Task, name: str) -> TaskField:
    """The field of that name."""
    return next(field for field in task.fields if field.name == name)


def _recovered_in_view(case: Case, view: MemoryView) -> tuple[str, ...]:
    facts = {fact.name: fact for fact in view.facts}
    return tuple(
        truth.name
        for truth in case.truth.fields
        if (value := facts[truth.name].value) is not None
        and facts[truth.name].position == truth.position
        and is_same_value(task_field(case.task, truth.name), value, truth.value)
    )


def _recovered_in_text(case: Case, statements: Sequence[Statement]) -> tuple[str, ...]:
    return tuple(truth.name for truth in case.truth.fields if _is_recovered_in_text(case, truth, statements))


def _is_recovered_in_text(case: Case, truth: FieldTruth, statements: Sequence[Statement]) -> bool:
    field = task_field(case.task, truth.name)
    label = re.compile(rf"\s*(?:[-*] )?{re.escape(field.description)}\s*[:=]", re.IGNORECASE)
    labelled = [s for s in statements if label.match(s.words) and find_values(field, label.sub("", s.words))]
    if labelled:
        is_true = is_same_value(field, find_values(field, label.sub("", labelled[-1].words))[-1], truth.value)
        return is_true and is_stated(case, truth.name, labelled[-1])
    stale = [wrong.value for wrong in case.truth.superseded if wrong.field == truth.name]
    telling = [s for s in statements if any(states_value(field, s.words, v) for v in (truth.value, *stale))]
    return bool(telling) and is_stated(case, truth.name, telling[-1])


def _is_present(case: Case, truth: FieldTruth, statements: Sequence[Statement]) -> bool:
    field = task_field(case.task, truth.name)
    return any(states_value(field, statement.words, truth.value) for statement in statements)


def _links_found(
    case: Case, step: Step, statements: Sequence[Statement], recovered: frozenset[str], decision: Decision
) -> int:
    facts = [name for name in step.facts if name in recovered]
    by_code = step.reason is not None and _facts_cited_for(case, step.reason, facts, statements, decision)
    if not by_code and not _is_rule_named(case, step, facts, statements):
        return 0
    is_given = step.reason in {reason.code for reason in decision.reasons}
    is_concluded = decision.outcome == case.truth.outcome and is_given == (step.reason is not None)
    return len(facts) + is_concluded


def _is_rule_named(case: Case, step: Step, facts: Sequence[str], statements: Sequence[Statement]) -> bool:
    naming = [statement for statement in statements if step.rule in statement.rules]
    return any(
        case.truth.field(name).position in statement.cited or is_stated(case, name, statement)
        for statement in naming
        for name in facts
    )


def _facts_of(case: Case, code: str) -> list[str]:
    return [name for step in case.truth.steps if step.reason == code for name in step.facts]


def _facts_cited_for(
    case: Case, code: str, facts: Sequence[str], statements: Sequence[Statement], decision: Decision
) -> bool:
    """Whether the decision gives this code on a memory line that states the true value of one of these facts."""
    lines = {number for reason in decision.reasons if reason.code == code for number in reason.lines}
    return any(is_stated(case, name, s) for s in statements if s.line in lines for name in facts)
