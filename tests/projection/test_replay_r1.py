"""Replay at R1: prompts, grammars and spellings that do not follow from the log are found without an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from inference.scripted_engine import ScriptedTokenizer
from projection.engine import Tokenizer
from projection.record import AuditRecord
from projection.replay import Divergence
from tests.projection.cases import task
from tests.projection.decided import (
    EditedStore,
    decide_small_case,
    replay_with,
    seal,
    with_call,
    with_view,
)
from tests.projection.replay_cases import bent, check_found


class OtherTokenizer(ScriptedTokenizer):
    """Says that it is the pinned tokenizer, and reads one text otherwise."""

    def render_chat(self, system: str, user: str) -> list[int]:
        return super().render_chat(system, user.replace("EVENTS", "Events"))


class ForgetfulTokenizer(ScriptedTokenizer):
    """Spells the last token otherwise."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return super().decode(token_ids)[:-1]


class OtherVocabulary(ScriptedTokenizer):
    SPECIALS = ("<s>", "<u>", "<a>", "<e>")


@pytest.mark.parametrize("call", ["projection", "decision"])
@pytest.mark.parametrize("index", [0, 100, -1])
def test_r1_finds_a_changed_prompt_token(store: EditedStore, record: AuditRecord, call: str, index: int) -> None:
    calls = {"projection": record.content.projection, "decision": record.content.decision_call}
    token_ids = list(calls[call].prompt_token_ids)
    token_ids[index] ^= 1
    forged = with_call(record, call, prompt_token_ids=token_ids)
    found = check_found(replay_with(store, seal(store, forged)), "R1", "prompt_token_ids", call=call)
    assert found.index == index % len(token_ids)
    assert found.recorded == token_ids[index]


@pytest.mark.parametrize("call", ["projection", "decision"])
def test_r1_finds_a_prompt_that_is_cut_off_or_goes_on(store: EditedStore, record: AuditRecord, call: str) -> None:
    whole = (record.content.projection if call == "projection" else record.content.decision_call).prompt_token_ids
    for token_ids in (whole[:-1], [*whole, 1], []):
        forged = with_call(record, call, prompt_token_ids=token_ids)
        report = replay_with(store, seal(store, forged))
        check_found(report, "R1", "prompt_token_ids length", call=call, index=min(len(token_ids), len(whole)))


R1_FORGERIES: dict[str, tuple[Callable[[AuditRecord], AuditRecord], dict[str, Any]]] = {
    "another grammar of the projection": (
        lambda r: with_call(r, "projection", grammar_digest="0" * 64),
        {"what": "grammar_digest", "call": "projection"},
    ),
    "another grammar of the decision": (
        lambda r: with_call(r, "decision", grammar_digest="0" * 64),
        {"what": "grammar_digest", "call": "decision"},
    ),
    "tokens that say something else": (
        lambda r: with_call(r, "projection", token_ids=[65, *r.content.projection.token_ids[1:]]),
        {"what": "text", "call": "projection"},
    ),
    "no tokens": (lambda r: with_call(r, "decision", token_ids=[]), {"what": "text", "call": "decision"}),
    "a wider profile": (
        lambda r: bent(r, "profile.slot_candidates", 1),
        {"what": "prompt_token_ids", "call": "projection"},
    ),
    "an absurd profile": (
        lambda r: bent(r, "profile.slot_candidates", -7),
        {"what": "prompt_token_ids", "call": "projection"},
    ),
    "another budget": (
        lambda r: bent(r, "budget.asked_chars", 1339),
        {"what": "prompt_token_ids", "call": "projection"},
    ),
    "an absurd budget": (
        lambda r: bent(r, "budget.asked_chars", 10**15),
        {"what": "prompt_token_ids", "call": "projection"},
    ),
    "another template": (lambda r: bent(r, "template_digest", "0" * 64), {"what": "template_digest"}),
}


@pytest.mark.parametrize(("forge", "place"), R1_FORGERIES.values(), ids=R1_FORGERIES.keys())
def test_r1_finds_what_does_not_follow_from_the_log(
    store: EditedStore, record: AuditRecord, forge: Callable[[AuditRecord], AuditRecord], place: dict[str, Any]
) -> None:
    report = replay_with(store, seal(store, forge(record)))
    assert report.first_divergence is not None
    assert report.levels == {"R0": "PASS", "R1": report.verdict}
    assert report.verdict == ("INCOMPARABLE" if place["what"] == "template_digest" else "DRIFT")
    assert {name: getattr(report.first_divergence, name) for name in place} == place


def test_r1_finds_a_budget_in_which_the_view_could_not_be_asked_for(store: EditedStore, record: AuditRecord) -> None:
    """The view happens to be shorter than its mandatory lines can be; nobody could have asked for that budget."""
    unknown = "FACTS\n" + "".join(f"- {field.description}: unknown\n" for field in task().fields)
    view = f"{unknown}REASONING\nCOMPLIANCE\n"
    forged = bent(with_view(store, record, view), "budget.asked_chars", len(view))
    found = check_found(replay_with(store, seal(store, forged)), "R1", "prompts and grammars")
    assert "the least that works" in found.detail


@pytest.mark.parametrize("call", ["projection", "decision"])
@pytest.mark.parametrize("token_id", [-1, -(2**50), 260, 49_152, 2**31, 2**53 - 1])
def test_r1_finds_token_ids_that_no_vocabulary_has(
    store: EditedStore, record: AuditRecord, call: str, token_id: int
) -> None:
    whole = (record.content.projection if call == "projection" else record.content.decision_call).token_ids
    forged = with_call(record, call, token_ids=[token_id, *whole[1:]])
    found = check_found(replay_with(store, seal(store, forged)), "R1", "token_ids", call=call)
    assert str(token_id) in found.detail


@pytest.mark.parametrize("call", ["projection", "decision"])
def test_r1_finds_a_missing_end_of_turn(store: EditedStore, record: AuditRecord, call: str) -> None:
    """All that is left is what the model finds best, so R2 would not see that it would have gone on."""
    whole = record.content.projection if call == "projection" else record.content.decision_call
    forged = with_call(record, call, token_ids=whole.token_ids[:-1])
    check_found(replay_with(store, seal(store, forged)), "R1", "end of turn", call=call, recorded="\n")


@pytest.mark.parametrize("token_id", [-1, 260, 2**53 - 1])
def test_r1_finds_absurd_tokens_in_a_prompt(store: EditedStore, record: AuditRecord, token_id: int) -> None:
    forged = with_call(record, "projection", prompt_token_ids=[token_id] * 20)
    check_found(replay_with(store, seal(store, forged)), "R1", "prompt_token_ids", index=0, recorded=token_id)


@pytest.mark.parametrize(
    ("tokenizer", "what"), [(OtherTokenizer(), "prompt_token_ids"), (ForgetfulTokenizer(), "text")]
)
def test_r1_finds_a_tokenizer_that_reads_or_spells_otherwise(
    store: EditedStore, tokenizer: Tokenizer, what: str
) -> None:
    sealed = decide_small_case(store)
    check_found(replay_with(store, sealed.record_id, tokenizer=tokenizer), "R1", what, call="projection")


def test_another_vocabulary_is_incomparable_at_r1(store: EditedStore) -> None:
    sealed = decide_small_case(store)
    report = replay_with(store, sealed.record_id, tokenizer=OtherVocabulary())
    assert (report.verdict, report.levels) == ("INCOMPARABLE", {"R0": "PASS", "R1": "INCOMPARABLE"})
    assert report.first_divergence == Divergence(
        "R1", "tokenizer_digest", ScriptedTokenizer().digest, OtherVocabulary().digest
    )
