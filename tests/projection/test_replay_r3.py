"""Replay at R3: both calls again, and whatever differs by a bit is named with its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from inference.scripted_engine import ScriptedEngine
from projection.engine import Completion, Progress
from projection.grammar import Grammar
from projection.record import AuditRecord
from tests.projection.decided import EditedStore, decide_small_case, replay_with, seal, with_call
from tests.projection.replay_cases import check_found


class Wobbly(ScriptedEngine):
    """Gives one completion with one thing changed, and scores honestly."""

    def __init__(self, change: Callable[[Completion], Completion], call: int) -> None:
        super().__init__()
        self._change, self._calls_left = change, call

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        grammar: Grammar | None,
        progress: Progress | None = None,
    ) -> Completion:
        completion = super().generate(prompt_token_ids, max_tokens, grammar, progress)
        self._calls_left -= 1
        return completion if self._calls_left else self._change(completion)


def last_bit(values: Sequence[float], index: int) -> tuple[float, ...]:
    changed = list(values)
    changed[index] = math.nextafter(changed[index], -math.inf)
    return tuple(changed)


WOBBLES: dict[str, tuple[Callable[[Completion], Completion], str, int | None]] = {
    "the last bit of a log-probability": (lambda c: replace(c, logprobs=last_bit(c.logprobs, 3)), "logprobs", 3),
    "a margin where there was none": (lambda c: replace(c, margins=(*c.margins[:-1], 0.5)), "margins", -1),
    "a token": (lambda c: replace(c, token_ids=(*c.token_ids[:5], 66, *c.token_ids[6:])), "token_ids", 5),
    "one token more": (lambda c: replace(c, token_ids=(*c.token_ids, 66)), "token_ids length", None),
    "its text": (lambda c: replace(c, text=c.text + "."), "text", None),
    "the way it ended": (lambda c: replace(c, finish_reason="length"), "finish_reason", None),
    "a log-probability fewer": (lambda c: replace(c, logprobs=c.logprobs[:-1]), "logprobs length", None),
}


@pytest.mark.parametrize(("number", "call"), [(1, "projection"), (2, "decision")])
@pytest.mark.parametrize(("change", "what", "index"), WOBBLES.values(), ids=WOBBLES.keys())
def test_r3_finds_an_engine_that_says_anything_else(
    store: EditedStore, number: int, call: str, change: Callable[[Completion], Completion], what: str, index: int | None
) -> None:
    sealed = decide_small_case(store)
    content = sealed.record.content
    num_tokens = len((content.projection if call == "projection" else content.decision_call).token_ids)
    report = replay_with(store, sealed.record_id, engine=Wobbly(change, number))
    found = check_found(report, "R3", what, call=call)
    assert index is None or found.index == index % num_tokens
    assert replay_with(store, sealed.record_id, "R2", engine=Wobbly(change, number)).verdict == "PASS"


@pytest.mark.parametrize("call", ["projection", "decision"])
def test_r3_finds_the_last_bit_of_a_recorded_log_probability(
    store: EditedStore, record: AuditRecord, call: str
) -> None:
    recorded = record.content.projection if call == "projection" else record.content.decision_call
    forged = with_call(record, call, logprobs=list(last_bit(recorded.logprobs, 9)))
    report = replay_with(store, seal(store, forged))
    check_found(report, "R3", "logprobs", call=call, index=9, recorded=-5e-324, recomputed=0.0)


def test_r3_finds_a_recorded_margin_that_was_made_up(store: EditedStore, record: AuditRecord) -> None:
    """A made-up margin would say that the decision is far from flipping."""
    forged = with_call(record, "decision", margins=[9.0, *record.content.decision_call.margins[1:]])
    report = replay_with(store, seal(store, forged))
    check_found(report, "R3", "margins", call="decision", index=0, recorded=9.0, recomputed=None)
