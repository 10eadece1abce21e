"""The decision's closed world: whatever sentence a model picks verifies, and an edited one is found."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.scripted_engine import ScriptedEngine
from projection.decision import Decision, build_decision_grammar, decide, prepare_decision, verify_decision
from projection.errors import VerificationError
from projection.events import LoggedEvent
from projection.task import MAX_REASONS, Task, parse_task
from projection.view import MemoryView, verify_view
from tests.projection.cases import EVENTS, TASK_YAML, grammar_of, odd_logs, task
from tests.projection.sentences import sentences

CODES = ["R01", "R02", "R03", "9(b) income", "R05", "R06"]
REASONS = "".join(f"  - {{code: {code}, text: reason {code}}}\n" for code in CODES).encode()
MANY_REASONS = (
    TASK_YAML.partition(b"reasons:\n")[0].replace(b"outcomes:\n", b"outcomes:\n  - {name: REFER, reasons: optional}\n")
    + b"reasons:\n"
    + REASONS
)
relaxed = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], max_examples=60)

VIEW_TEXT = """FACTS
- monthly income: $6,100.00 [2]
- debt-to-income ratio: 46.2% [3]
- closing date: unknown
- coverage ratio: 1.25x [2]
REASONING
- [2] Verified monthly income $6,100.00/mo for a 24-month history.
COMPLIANCE
- [3] Policy 4.2: The limit is passed
"""


def many_reasons() -> Task:
    return parse_task(MANY_REASONS)


def view() -> MemoryView:
    return verify_view(VIEW_TEXT, EVENTS, task(), 1338)


@given(st.data())
@relaxed
def test_every_sentence_of_the_grammar_is_a_decision_of_the_task(data: st.DataObject) -> None:
    text = data.draw(sentences(build_decision_grammar(many_reasons(), view())))
    check_decision(verify_decision(text, many_reasons(), view()), many_reasons(), view())


@given(st.data(), odd_logs)
@settings(relaxed, max_examples=25)
def test_it_is_so_for_the_views_of_odd_logs_too(data: st.DataObject, events: list[LoggedEvent]) -> None:
    grammar = grammar_of(events, many_reasons(), 4000, None)
    seen = verify_view(data.draw(sentences(grammar)), events, many_reasons(), 4000)
    text = data.draw(sentences(build_decision_grammar(many_reasons(), seen)))
    check_decision(verify_decision(text, many_reasons(), seen), many_reasons(), seen)


def check_decision(decision: Decision, task: Task, view: MemoryView) -> None:
    outcome = task.outcome(decision.outcome)
    assert outcome is not None
    codes = [reason.code for reason in decision.reasons]
    assert codes == [reason.code for reason in task.reasons if reason.code in codes]
    assert len(codes) <= MAX_REASONS
    assert outcome.reasons != "required" or codes
    assert outcome.reasons != "none" or not codes
    assert all(1 <= line <= len(view.lines) for reason in decision.reasons for line in reason.lines)
    assert all(1 <= len(reason.lines) <= 2 for reason in decision.reasons)
    assert decision.text.endswith(f"Rationale: {decision.rationale}\n")


@pytest.mark.parametrize("num_reasons", [0, 1, 2, 3, 4])
@pytest.mark.parametrize(("outcome", "least", "most"), [("APPROVE", 0, 0), ("REFER", 0, 4), ("DENY", 1, 4)])
def test_each_outcome_takes_as_many_reasons_as_its_rule_says(
    num_reasons: int, outcome: str, least: int, most: int
) -> None:
    reasons = "".join(f"Reason: {code} [L1]\n" for code in CODES[:num_reasons])
    text = f"Outcome: {outcome}\n{reasons}Rationale: It is so\n"
    if least <= num_reasons <= most:
        assert len(verify_decision(text, many_reasons(), view()).reasons) == num_reasons
    else:
        with pytest.raises(VerificationError, match="its rule is"):
            verify_decision(text, many_reasons(), view())


GOOD = """Outcome: DENY
Reason: R02 [L2] [L6]
Reason: R03 [L1]
Rationale: The ratio of 46.2% and income of $6,100.00 are over 24 months.
"""


def test_a_decision_is_read_from_its_text() -> None:
    decision = verify_decision(GOOD, task(), view())
    assert (decision.text, decision.outcome) == (GOOD, "DENY")
    assert [(reason.code, reason.lines) for reason in decision.reasons] == [("R02", (2, 6)), ("R03", (1,))]
    assert decision.rationale == "The ratio of 46.2% and income of $6,100.00 are over 24 months."


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("Outcome: DENY", "Outcome: APPROVE", "its rule is 'none'"),
        ("Outcome: DENY", "Outcome: DEN", "no outcome of the task"),
        ("Outcome: DENY", "Outcome: DENY ", "no outcome of the task"),
        ("Outcome: DENY", "Outcome: deny", "no outcome of the task"),
        ("Outcome: DENY", "Decision: DENY", "form"),
        ("Outcome: DENY\n", "", "form"),
        ("Outcome: DENY\n", "\nOutcome: DENY\n", "form"),
        ("Reason: R02 [L2] [L6]\nReason: R03 [L1]\n", "", "its rule is 'required'"),
        ("R02 [L2]", "R09 [L2]", "no reason of the task"),
        ("R02 [L2]", "R02  [L2]", "no reason of the task"),
        ("R02 [L2]", "r02 [L2]", "no reason of the task"),
        ("Reason: R02", "Reason R02", "no reason of the task"),
        ("R02 [L2] [L6]", "R02", "no reason of the task"),
        ("[L2] [L6]", "[2] [L6]", "no reason of the task"),
        ("[L2] [L6]", "[L0] [L6]", "no reason of the task"),
        ("[L2] [L6]", "[L02] [L6]", "no reason of the task"),
        ("[L2] [L6]", "[L1] [L2] [L6]", "no reason of the task"),
        ("[L2] [L6]", "[L2] [L7]", "cites L7, which the view does not have"),
        ("[L2] [L6]", "[L2] [L999999999]", "cites L999999999"),
        ("[L2] [L6]", "[L2] [L" + "9" * 5000 + "]", "no reason of the task"),
        ("Reason: R03", "Reason: R01", "in the task's order"),
        ("Reason: R03", "Reason: R02", "each once"),
        ("46.2%", "46.1%", "says '46.1%'"),
        ("46.2%", "45.0%", "says '45.0%'"),
        ("46.2%", "46.2", "says '46.2'"),
        ("$6,100.00", "$6,100", "says"),
        ("over 24", "over 25", "says '25'"),
        ("over 24", "over \u00bd", "says '\u00bd'"),
        ("over 24", "over \u0662", "says '\u0662'"),
        ("over 24", "over \u2167", "says '\u2167'"),
        ("Rationale: ", "Because: ", "form"),
        ("months.\n", "months.", "form"),
        ("months.\n", "months.\n\n", "form"),
        ("months.\n", "months.\nReason: R01 [L1]\n", "form"),
    ],
)  # fmt: skip
def test_an_edited_decision_is_found(old: str, new: str, why: str) -> None:
    assert old in GOOD
    with pytest.raises(VerificationError) as caught:
        verify_decision(GOOD.replace(old, new, 1), task(), view())
    assert why in caught.value.message


@pytest.mark.parametrize("text", ["", "\n", "Outcome: DENY\n", "Rationale: \n", "Outcome: APPROVE\nRationale: "])
def test_what_is_no_decision_at_all_is_found(text: str) -> None:
    with pytest.raises(VerificationError, match="form"):
        verify_decision(text, task(), view())


def test_five_reasons_are_one_too_many() -> None:
    reasons = "".join(f"Reason: {code} [L1]\n" for code in CODES[:5])
    with pytest.raises(VerificationError, match="at most 4"):
        verify_decision(f"Outcome: DENY\n{reasons}Rationale: It is so\n", many_reasons(), view())


def test_a_rationale_may_repeat_a_number_of_a_quoted_sentence_and_of_a_house_pattern() -> None:
    for value in ("$6,100.00", "24", "46.2%", "1.25x"):
        text = f"Outcome: APPROVE\nRationale: It is {value}\n"
        assert value in verify_decision(text, task(), view()).rationale
    with pytest.raises(VerificationError, match=r"4\.2"):
        verify_decision("Outcome: APPROVE\nRationale: It is 4.2\n", task(), view())


def test_a_task_without_reasons_is_decided_by_outcome_and_rationale() -> None:
    bare = parse_task(b"question: q\nfields:\n- {name: a, type: money, description: sum}\noutcomes: [PAY, DENY]\n")
    seen = verify_view("FACTS\n- sum: unknown\nREASONING\n- [1] It is so\nCOMPLIANCE\n", EVENTS, bare, 99)
    grammar = build_decision_grammar(bare, seen)
    assert "Reason" not in grammar.ebnf
    assert verify_decision("Outcome: PAY\nRationale: So it is\n", bare, seen).reasons == ()
    with pytest.raises(VerificationError):
        verify_decision("Outcome: PAY\nReason: R01 [L1]\nRationale: So it is\n", bare, seen)


def test_the_most_reasons_and_the_longest_rationale_bound_the_grammar() -> None:
    """Every reason of 128 costs rules, not length."""
    codes = "".join(f"  - {{code: C{n:03}, text: reason {n}}}\n" for n in range(125))
    wide = parse_task(TASK_YAML.replace(b"reasons:\n", b"reasons:\n" + codes.encode()))
    grammar = build_decision_grammar(wide, view())
    longest = len("Reason: C000 [L1] [L2]\n") * MAX_REASONS + len("Outcome: DENY\n")
    assert grammar.max_chars == longest + grammar.longest(grammar.rules["rationale"])


def test_deciding_calls_the_engine_once_and_verifies() -> None:
    engine = ScriptedEngine()
    result = decide(engine, task(), view())
    prompt_token_ids, grammar = prepare_decision(engine.tokenizer, task(), view())
    assert list(result.call.prompt_token_ids) == prompt_token_ids
    assert result.call.grammar.digest == grammar.digest
    assert result.decision == verify_decision(result.call.completion.text, task(), view())
