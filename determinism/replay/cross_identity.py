"""What another engine makes of a record: evidence for the day when the hardware that wrote it is gone.

The verdict stays INCOMPARABLE: equal bits are promised on one engine identity only. What is measured here is how many
recorded tokens are also the other engine's best allowed ones, each judged after the recorded tokens before it, and
whether those that are not were near-ties when they were recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from determinism.divergence import decode_ids, margin_ulp
from determinism.doctor.calls import RebuiltCall, rebuild_calls
from determinism.near_ties import Limit
from projection.case import SealedCase
from projection.engine import Engine
from projection.replay import ReplayReport


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One recorded token that the other engine would not have taken. margin, margin_ulp: as recorded.

    best_token_id: what it would have taken; -1 where nothing was allowed any more.
    """

    call: str
    index: int
    token_id: int
    text: str
    best_token_id: int
    best_text: str
    margin: float | None
    margin_ulp: int | None
    is_near_tie: bool


@dataclass(frozen=True, slots=True)
class CrossIdentity:
    """R2 on another engine. engine_identity: that engine's."""

    engine_identity: str
    num_positions: int
    disagreements: tuple[Disagreement, ...]

    @property
    def num_agreeing(self) -> int:
        return self.num_positions - len(self.disagreements)

    @property
    def num_near_ties(self) -> int:
        """Disagreements that were near-ties when they were recorded."""
        return sum(found.is_near_tie for found in self.disagreements)


def is_other_engine(report: ReplayReport) -> bool:
    """Whether a replay ended because the engine is not the record's, everything before R2 being right."""
    return report.verdict == "INCOMPARABLE" and report.levels.get("R1") == "PASS"


def audit_across(sealed: SealedCase, engine: Engine, limit: Limit) -> CrossIdentity:
    """Score a record on an engine that is not its own. The record must pass R1 with this engine's tokenizer.

    Raises:
        RequestError: the calls do not fit this engine. EngineError: the engine failed.
    """
    calls = rebuild_calls(sealed, engine.tokenizer)
    found = [place for call in calls for place in _disagreements(call, engine, limit)]
    num_positions = sum(len(call.recorded.token_ids) for call in calls)
    return CrossIdentity(engine.identity.digest, num_positions, tuple(found))


def _disagreements(call: RebuiltCall, engine: Engine, limit: Limit) -> Sequence[Disagreement]:
    recorded = call.recorded
    score = engine.score(recorded.prompt_token_ids, recorded.token_ids, call.grammar)
    found = []
    for index, position in enumerate(score.positions):
        if position.best_token_id == position.token_id:
            continue
        logprob, margin = recorded.logprobs[index], recorded.margins[index]
        best = position.best_token_id
        found.append(
            Disagreement(
                call=call.name,
                index=index,
                token_id=position.token_id,
                text=decode_ids(engine.tokenizer, [position.token_id]),
                best_token_id=best,
                best_text=decode_ids(engine.tokenizer, [best]),
                margin=margin,
                margin_ulp=None if margin is None else margin_ulp(logprob, margin),
                is_near_tie=limit.covers(logprob, margin),
            )
        )
    return found
