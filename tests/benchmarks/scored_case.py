"""A case small enough to score in one's head: two limits, one of them missed, one value that was corrected."""

from __future__ import annotations

from benchmarks.longhorizon.case import TRUTH_SCHEMA, Case, FieldTruth, Step, Truth, WrongValue
from projection.decision import Decision, verify_decision
from projection.events import Event, Link, LoggedEvent
from projection.task import parse_task
from projection.view import Memory

TASK_TEXT = r"""question: Decide the claim.
fields:
  - {name: loss, type: money, description: verified loss}
  - {name: score, type: integer, description: credit score}
  - {name: policy, type: identifier, description: policy number, pattern: 'PN-\d{4}'}
outcomes:
  - {name: PAY, reasons: none}
  - {name: PARTIAL_PAY, reasons: required}
  - {name: DENY, reasons: required}
reasons:
  - {code: R01, text: Score too low}
  - {code: R10, text: Loss over the limit}
  - {code: R11, text: Not covered}
provisions:
  - {id: Policy 4.2, text: greatest loss}
  - {id: Policy 3.1, text: least score}
policy: |
  Policy 4.2: the loss is at most $9,000. Policy 3.1: the score is at least 650.
"""
TEXTS = (
    "First notice of loss under policy PN-1234. Claimed loss $12,000.",
    "Neighbour's loss $11,000; neighbour's score 655.",
    "Adjuster: the verified loss is $11,500, which replaces the claimed $12,000.",
    "Bureau report: score 700.",
)
VIEW_TEXT = """FACTS
- verified loss: $11,500 [3]
- credit score: 700 [4]
- policy number: PN-1234 [1]
REASONING
- [3] The loss is over the limit of $11,500
COMPLIANCE
- [3] Policy 4.2: The loss is too high.
- [4] Policy 3.1: The score is enough of 700
"""
DECISION_TEXT = "Outcome: DENY\nReason: R10 [L1]\nRationale: The loss is over the limit\n"


def scored_case(outcome: str = "DENY", reasons: tuple[str, ...] = ("R10",)) -> Case:
    """The case; with another outcome and no reasons it is one where every limit holds."""
    task = parse_task(TASK_TEXT)
    events = tuple(
        LoggedEvent(i, Event(f"e{i}", "note", "/test", "2026-01-02T00:00:00Z", text, links))
        for i, (text, links) in enumerate(zip(TEXTS, ((), (), (Link("supersedes", "e1"),), ()), strict=True), start=1)
    )
    truth = Truth(
        schema=TRUTH_SCHEMA,
        case_id="claim-small-0001",
        domain="claim",
        size="small",
        variant="full",
        seed=1,
        index=0,
        target_chars=200,
        outcome=outcome,
        reasons=reasons,
        figures={},
        margin="clear",
        fields=(
            FieldTruth("loss", "money", "$11,500", 1_150_000, "e3", 3, True),
            FieldTruth("score", "integer", "700", 700, "e4", 4, True),
            FieldTruth("policy", "identifier", "PN-1234", "PN-1234", "e1", 1, False),
        ),
        superseded=(WrongValue("loss", "$12,000", 1_200_000, "e1", 1, "superseded", "", True),),
        distractors=(WrongValue("loss", "$11,000", 1_100_000, "e2", 2, "near_miss", "", True),),
        steps=(
            Step(("loss",), "Policy 4.2", not reasons, -250_000, reasons[0] if reasons else None),
            Step(("score",), "Policy 3.1", True, 50, None),
        ),
        proofs={},
    )
    return Case(truth.case_id, events, task, TASK_TEXT, truth)


def decided(case: Case, memory: Memory, text: str = DECISION_TEXT) -> Decision:
    """A decision of this text, verified as every decision is."""
    return verify_decision(text, case.task, memory)
