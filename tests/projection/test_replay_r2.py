"""Replay at R2: tokens that the model would not have chosen are found, though every digest fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from inference.scripted_engine import ScriptedEngine, ScriptedTokenizer
from projection.engine import Score
from projection.grammar import Grammar
from projection.record import AuditRecord
from tests.projection.decided import (
    EditedStore,
    decide_small_case,
    replay_with,
    seal,
    with_call,
    with_decision,
    with_view,
)
from tests.projection.replay_cases import DECISIONS, VIEW, check_found


class OtherTaste(ScriptedEngine):
    """Finds another token best at one place."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self._index = index

    def score(
        self, prompt_token_ids: Sequence[int], completion_token_ids: Sequence[int], grammar: Grammar | None
    ) -> Score:
        score = super().score(prompt_token_ids, completion_token_ids, grammar)
        positions = list(score.positions)
        positions[self._index] = replace(positions[self._index], best_token_id=66)
        return replace(score, positions=tuple(positions))


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    return next(index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)


def test_r2_finds_a_view_that_the_model_would_not_have_written(store: EditedStore, record: AuditRecord) -> None:
    """It verifies, its tokens spell it, the decision's prompt follows from it: only the model can tell."""
    forged = with_view(store, record, VIEW)
    index = first_difference(forged.content.projection.token_ids, record.content.projection.token_ids)
    report = replay_with(store, seal(store, forged))
    check_found(
        report, "R2", "token_ids", call="projection", index=index,
        recorded=forged.content.projection.token_ids[index], recomputed=record.content.projection.token_ids[index],
    )  # fmt: skip


def test_r2_finds_a_decision_that_the_model_would_not_have_made(store: EditedStore, record: AuditRecord) -> None:
    other = next(text for text in DECISIONS if not text.startswith(f"Outcome: {record.content.decision.outcome}"))
    forged = with_decision(store, record, other)
    assert forged.content.decision.outcome != record.content.decision.outcome
    report = replay_with(store, seal(store, forged))
    check_found(report, "R2", "token_ids", call="decision", index=len("Outcome: "))


@pytest.mark.parametrize("index", [0, 7, -1])
def test_r2_finds_an_engine_that_finds_another_token_best(store: EditedStore, index: int) -> None:
    sealed = decide_small_case(store)
    num_tokens = len(sealed.record.content.projection.token_ids)
    report = replay_with(store, sealed.record_id, engine=OtherTaste(index))
    check_found(report, "R2", "token_ids", call="projection", index=index % num_tokens, recomputed=66)
    assert replay_with(store, sealed.record_id, "R1", engine=OtherTaste(index)).verdict == "PASS"


@pytest.mark.parametrize("call", ["projection", "decision"])
@pytest.mark.parametrize("change", [-1, 1, 10**12])
def test_r2_finds_another_token_limit(store: EditedStore, record: AuditRecord, call: str, change: int) -> None:
    recorded = record.content.projection if call == "projection" else record.content.decision_call
    forged = with_call(record, call, max_tokens=recorded.max_tokens + change)
    report = replay_with(store, seal(store, forged))
    check_found(report, "R2", "max_tokens", call=call, recorded=recorded.max_tokens + change)


def test_r2_finds_tokens_behind_the_end_of_turn(store: EditedStore, record: AuditRecord) -> None:
    """They change no text, so R1 cannot see them."""
    token_ids = [*record.content.projection.token_ids, ScriptedTokenizer.END]
    forged = with_call(record, "projection", token_ids=token_ids)
    report = replay_with(store, seal(store, forged))
    check_found(report, "R2", "token_ids", call="projection", index=len(token_ids) - 1, recomputed=-1)


def test_r2_finds_more_tokens_than_the_call_could_give(store: EditedStore, record: AuditRecord) -> None:
    token_ids = [*record.content.decision_call.token_ids, *[ScriptedTokenizer.END] * 300_000]
    forged = with_call(record, "decision", token_ids=token_ids)
    report = replay_with(store, seal(store, forged))
    check_found(report, "R2", "token_ids length", call="decision", recorded=len(token_ids))
