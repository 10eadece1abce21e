"""The decision call: (T, M) to one outcome of the closed list, with reasons that cite lines of the view.

The decision sees the task and the memory view, never the log. Its form:

    Outcome: DENY
    Reason: R03 [L4] [L7]        up to four, in the task's order, none where the outcome takes none
    Rationale: words with a value of the view
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from projection.anchors import find_anchors, find_invented
from projection.engine import Engine, Progress, Tokenizer
from projection.errors import VerificationError
from projection.grammar import Alt, Grammar, Node, Ref, alt, opt, seq
from projection.projector import Call, run_call
from projection.prompt import render_decision
from projection.task import MAX_REASONS, Outcome, Task
from projection.view import Memory
from projection.view_grammar import own_words, short_values, word_rules

_REASON = re.compile(r"Reason: (?P<code>.+?)(?P<cites>(?: \[L[1-9][0-9]{0,8}\]){1,2})")
_CITE = re.compile(r"\[L([0-9]+)\]")


@dataclass(frozen=True, slots=True)
class GivenReason:
    """A reason code of the task and the view lines it rests on."""

    code: str
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """A parsed decision; `text` is the evidence."""

    text: str
    outcome: str
    reasons: tuple[GivenReason, ...]
    rationale: str


@dataclass(frozen=True, slots=True)
class DecisionResult:
    """A decision and the call that wrote it."""

    call: Call
    decision: Decision


def prepare_decision(tokenizer: Tokenizer, task: Task, view: Memory) -> tuple[list[int], Grammar]:
    """Prompt and grammar of the decision call; what replay level R1 recomputes."""
    return render_decision(tokenizer, task, view), build_decision_grammar(task, view)


def decide(engine: Engine, task: Task, view: Memory, progress: Progress | None = None) -> DecisionResult:
    """Decide a case from its view.

    Raises:
        PromptTooLongError, IncompleteError: as for a projection.
        VerificationError: the text is no decision of this task (a defect of the engine, never repaired).
    """
    prompt_token_ids, grammar = prepare_decision(engine.tokenizer, task, view)
    call = run_call(engine, prompt_token_ids, grammar, progress)
    return DecisionResult(call, verify_decision(call.completion.text, task, view))


def build_decision_grammar(task: Task, view: Memory) -> Grammar:
    """Every decision that can be made from this view."""
    rules = word_rules()
    cite = alt(*(f" [L{line.number}]" for line in view.lines))
    rules["cites"] = seq(cite, opt(cite))
    rules.update(_reason_rules([reason.code for reason in task.reasons]))
    rules["rationale"] = seq("Rationale: ", own_words(_view_values(view)), "\n")
    outcomes = [seq(f"Outcome: {outcome.name}\n", *_reasons_of(outcome, task)) for outcome in task.outcomes]
    return Grammar({"root": seq(Alt(tuple(outcomes)), Ref("rationale")), **rules})


def verify_decision(text: str, task: Task, view: Memory) -> Decision:
    """Hold a decision against task and view, from its text alone, and return it parsed.

    Raises:
        VerificationError: what does not hold.
    """
    rows = text.split("\n")
    if len(rows) < 3 or rows[-1] != "" or not rows[0].startswith("Outcome: ") or not rows[-2].startswith("Rationale: "):
        raise VerificationError("the decision has not the form Outcome, Reason, Rationale", text=text)
    outcome = task.outcome(rows[0].removeprefix("Outcome: "))
    if outcome is None:
        raise VerificationError(f"{rows[0]!r} is no outcome of the task", line=1)
    reasons = tuple(_parse_reason(row, task, view) for row in rows[1:-2])
    _verify_reasons(outcome, reasons, task)
    rationale = rows[-2].removeprefix("Rationale: ")
    _verify_rationale(rationale, view)
    return Decision(text, outcome.name, reasons, rationale)


def _reason_rules(codes: Sequence[str]) -> dict[str, Node]:
    """`reasons_<i>_<n>`: one to n reasons from index i on, in the task's order and none twice.

    Each rule takes the reason at its index, and maybe later ones, or passes it by.
    """
    rules: dict[str, Node] = {}
    for room in range(1, MAX_REASONS + 1):
        for index, code in enumerate(codes):
            last = index + 1 == len(codes)
            line = seq(f"Reason: {code}", Ref("cites"), "\n")
            taken = line if last or room == 1 else seq(line, opt(Ref(f"reasons_{index + 1}_{room - 1}")))
            rules[f"reasons_{index}_{room}"] = taken if last else Alt((taken, Ref(f"reasons_{index + 1}_{room}")))
    return rules


def _reasons_of(outcome: Outcome, task: Task) -> list[Node]:
    if outcome.reasons == "none" or not task.reasons:
        return []
    some = Ref(f"reasons_0_{MAX_REASONS}")
    return [some if outcome.reasons == "required" else opt(some)]


def _view_values(view: Memory) -> list[str]:
    """Values that a rationale may repeat: those of the view's fields that are anchors, and of its free clauses."""
    return short_values(anchor for text in view.value_texts for anchor in find_anchors(text))


def _parse_reason(row: str, task: Task, view: Memory) -> GivenReason:
    match = _REASON.fullmatch(row)
    if match is None or match["code"] not in {reason.code for reason in task.reasons}:
        raise VerificationError(f"{row!r} is no reason of the task with cited lines", text=row)
    lines = tuple(int(number) for number in _CITE.findall(match["cites"]))
    for number in lines:
        if number > len(view.lines):
            raise VerificationError(
                f"reason {match['code']} cites L{number}, which the view does not have", line=number
            )
    return GivenReason(match["code"], lines)


def _verify_reasons(outcome: Outcome, reasons: Sequence[GivenReason], task: Task) -> None:
    codes = [reason.code for reason in reasons]
    order = [reason.code for reason in task.reasons if reason.code in codes]
    if codes != order or len(codes) > MAX_REASONS:
        raise VerificationError(
            f"reasons {', '.join(codes)}: at most {MAX_REASONS}, each once, in the task's order", codes=codes
        )
    if (outcome.reasons == "required" and not codes) or (outcome.reasons == "none" and codes):
        raise VerificationError(
            f"outcome {outcome.name} has {len(codes)} reasons; its rule is {outcome.reasons!r}", outcome=outcome.name
        )


def _verify_rationale(rationale: str, view: Memory) -> None:
    """Every number is a value of the view."""
    invented = find_invented(rationale, _view_values(view))
    if invented is not None:
        raise VerificationError(f"the rationale says {invented!r}, which is no value of the view", value=invented)
