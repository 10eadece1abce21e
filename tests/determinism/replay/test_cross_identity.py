"""Another engine's word on a record: counted position by position, near-ties told apart, and never a pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from determinism.near_ties import Limit
from determinism.replay.cross_identity import CrossIdentity, audit_across, is_other_engine
from inference.scripted_engine import ScriptedEngine
from projection.case import SealedCase, read_sealed_case
from projection.engine import EngineIdentity, Score
from projection.grammar import Grammar
from projection.log import find_record
from projection.record import AuditRecord
from projection.replay import Divergence
from tests.projection.decided import EditedStore, decide_small_case, fill_case, replay_with, seal, with_call


class OtherMachine(ScriptedEngine):
    """Another identity, which finds other tokens best at some places of the decision."""

    def __init__(self, best: Mapping[int, int]) -> None:
        super().__init__()
        self._best = best

    @property
    def identity(self) -> EngineIdentity:
        return EngineIdentity({**super().identity.fields, "device": {"kind": "another"}})

    def score(
        self, prompt_token_ids: Sequence[int], completion_token_ids: Sequence[int], grammar: Grammar | None
    ) -> Score:
        score = super().score(prompt_token_ids, completion_token_ids, grammar)
        if not bytes(completion_token_ids[:7]).startswith(b"Outcome"):
            return score
        positions = list(score.positions)
        for index, token_id in self._best.items():
            positions[index] = replace(positions[index], best_token_id=token_id)
        return replace(score, positions=tuple(positions))


@pytest.fixture
def store() -> EditedStore:
    store = EditedStore()
    fill_case(store)
    return store


@pytest.fixture
def record(store: EditedStore) -> AuditRecord:
    return decide_small_case(store).record


def audited(store: EditedStore, record: AuditRecord, engine: ScriptedEngine) -> CrossIdentity:
    return audit_across(sealed(store, record), engine, Limit())


def sealed(store: EditedStore, record: AuditRecord) -> SealedCase:
    found = read_sealed_case(store, find_record(store, seal(store, record)))
    assert not isinstance(found, Divergence)
    return found


def num_tokens(record: AuditRecord) -> int:
    return len(record.content.projection.token_ids) + len(record.content.decision_call.token_ids)


def test_an_engine_that_agrees_everywhere_is_evidence(store: EditedStore, record: AuditRecord) -> None:
    engine = OtherMachine({})
    found = audited(store, record, engine)
    assert (found.num_positions, found.num_agreeing, found.disagreements) == (num_tokens(record),) * 2 + ((),)
    assert found.engine_identity == engine.identity.digest != record.content.engine_identity


def test_each_disagreement_says_whether_it_was_a_near_tie(store: EditedStore, record: AuditRecord) -> None:
    size = len(record.content.decision_call.token_ids)
    margins: list[float | None] = [None] * size
    margins[9], margins[11] = 2**-20, 0.5
    record = with_call(record, "decision", logprobs=[-1.0] * size, margins=margins)
    found = audited(store, record, OtherMachine({9: 66, 11: 67, 13: -1}))
    assert [
        (d.call, d.index, d.best_token_id, d.best_text, d.margin_ulp, d.is_near_tie) for d in found.disagreements
    ] == [
        ("decision", 9, 66, "B", 8, True),
        ("decision", 11, 67, "C", 2**22, False),
        ("decision", 13, -1, "<-1>", None, False),
    ]
    assert (found.num_agreeing, found.num_near_ties) == (num_tokens(record) - 3, 1)


@pytest.mark.parametrize("best", [{}, {9: 66}])
def test_whatever_the_evidence_the_verdict_stays_incomparable(
    store: EditedStore, record: AuditRecord, best: dict[int, int]
) -> None:
    report = replay_with(store, seal(store, record), engine=OtherMachine(best))
    assert report.verdict == "INCOMPARABLE"
    assert is_other_engine(report)


def test_a_drift_or_a_pass_asks_for_no_other_engine(store: EditedStore, record: AuditRecord) -> None:
    assert not is_other_engine(replay_with(store, seal(store, record)))
    forged = with_call(record, "projection", max_tokens=1)
    assert not is_other_engine(replay_with(store, seal(store, forged)))
