"""Faults put in on purpose: an endpoint that is right but for one thing, in one circumstance.

Every check has a control, which is the same check on an endpoint with a fault that this check alone can see. It must
fail: a check that passes on a faulty endpoint proves nothing on a good one. Pure faults change a question or an answer
on its way, so they work on any endpoint; real ones (`RealFault`) need an engine that was started wrongly.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from determinism.endpoints.endpoint import Endpoint, Request
from inference.counters import Counters
from projection.engine import Completion, Score, Tokenizer

How = Literal["at once", "late", "beside an abort", "scored"]
Damage = Literal["one ULP", "one prompt byte"]
RealFault = Literal["invariant attention off", "stock settings", "two threads, split KV", "one weight byte"]


@dataclass(frozen=True, slots=True)
class Circumstance:
    """How one request is being asked. num_before: how often it was asked alone since the endpoint last forgot."""

    how: How
    request: Request
    place: int = 0
    batch: tuple[Request, ...] = ()
    num_before: int = 0


@dataclass(frozen=True, slots=True)
class PureFault:
    """What is damaged, and when."""

    damage: Damage
    when: Callable[[Circumstance], bool]


def always(_circumstance: Circumstance) -> bool:
    return True


class FaultyEndpoint:
    """An `Endpoint` that does what another does, but for one fault."""

    def __init__(self, endpoint: Endpoint, fault: PureFault, tokenizer: Tokenizer) -> None:
        self._endpoint, self._fault, self._tokenizer = endpoint, fault, tokenizer
        self._num_alone: dict[Request, int] = {}

    @property
    def identity(self) -> str:
        return self._endpoint.identity

    @property
    def place(self) -> str:
        return self._endpoint.place

    def ask(self, requests: Sequence[Request]) -> list[Completion]:
        num_before = self._count_alone(requests)
        batch = tuple(requests)
        faced = [Circumstance("at once", r, place, batch, num_before) for place, r in enumerate(requests)]
        return self._answered(faced, self._endpoint.ask([self._asked(c) for c in faced]))

    def ask_late(self, first: Request, later: Sequence[Request]) -> list[Completion]:
        faced = [Circumstance("late", request, place) for place, request in enumerate(later, start=1)]
        early, *late = self._endpoint.ask_late(first, [self._asked(c) for c in faced])
        return [early, *self._answered(faced, late)]

    def ask_beside_abort(self, request: Request, victim: Request) -> tuple[Completion, bool]:
        faced = Circumstance("beside an abort", request)
        completion, was_given_up = self._endpoint.ask_beside_abort(self._asked(faced), victim)
        return self._answered([faced], [completion])[0], was_given_up

    def score(self, request: Request, token_ids: Sequence[int]) -> Score:
        score = self._endpoint.score(request, token_ids)
        if not self._fault.when(Circumstance("scored", request)):
            return score
        *most, last = score.positions
        return replace(score, positions=(*most, replace(last, logprob=one_ulp_below(last.logprob))))

    def forget(self) -> None:
        self._num_alone.clear()
        self._endpoint.forget()

    def counters(self) -> Counters | None:
        return self._endpoint.counters()

    def reset_counters(self) -> None:
        self._endpoint.reset_counters()

    def _count_alone(self, requests: Sequence[Request]) -> int:
        if len(requests) != 1:
            return 0
        num_before = self._num_alone.get(requests[0], 0)
        self._num_alone[requests[0]] = num_before + 1
        return num_before

    def _asked(self, faced: Circumstance) -> Request:
        if self._fault.damage == "one prompt byte" and self._fault.when(faced):
            return change_prompt_byte(faced.request, self._tokenizer)
        return faced.request

    def _answered(self, faced: Sequence[Circumstance], completions: Sequence[Completion]) -> list[Completion]:
        if self._fault.damage != "one ULP":
            return list(completions)
        pairs = zip(faced, completions, strict=True)
        return [_one_ulp_off(said) if self._fault.when(circumstance) else said for circumstance, said in pairs]


def change_prompt_byte(request: Request, tokenizer: Tokenizer) -> Request:
    """The same request with the last digit of its user text changed."""
    system, user = request.turns
    place = max(index for index, char in enumerate(user) if char.isascii() and char.isdigit())
    changed = user[:place] + str((int(user[place]) + 1) % 10) + user[place + 1 :]
    return replace(request, prompt_token_ids=tuple(tokenizer.render_chat(system, changed)), turns=(system, changed))


def _one_ulp_off(completion: Completion) -> Completion:
    """The last log-probability that has a lower neighbour becomes that neighbour."""
    logprobs = list(completion.logprobs)
    place = max(index for index, logprob in enumerate(logprobs) if math.isfinite(logprob))
    logprobs[place] = one_ulp_below(logprobs[place])
    return replace(completion, logprobs=tuple(logprobs))


def one_ulp_below(logprob: float) -> float:
    """The next lower float32 of a log-probability."""
    (bits,) = struct.unpack(">I", struct.pack(">f", logprob))
    (below,) = struct.unpack(">f", struct.pack(">I", 0x80000001 if logprob == 0 else bits + 1))
    return float(below)
