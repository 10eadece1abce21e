"""Where two answers part: the tokens around the place, both margins, and how far apart the numbers are.

Distances are counted in ULP: how many steps of float32, the type in which engines give log-probabilities, lie between
two numbers. Promises exact counts from the bits, and says nothing about causes: that is the doctor's work.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from determinism.surface import Surface
from projection.engine import Tokenizer
from projection.errors import RequestError
from projection.record import RecordedCall

CONTEXT_TOKENS = 12


def ulp_distance(one: float, other: float) -> int:
    """How many steps of float32 lie between two numbers; 0 for equal ones, and between the two zeros.

    Raises:
        RequestError: one of them is not a number.
    """
    return abs(_place(one) - _place(other))


def _place(value: float) -> int:
    """The number's place among all float32 in their order; 0 is the place of zero."""
    if math.isnan(value):
        raise RequestError("a log-probability that is not a number lies nowhere: the record or the engine is broken")
    try:
        data = struct.pack(">f", value)
    except OverflowError:
        data = struct.pack(">f", math.copysign(math.inf, value))
    bits = int.from_bytes(data, "big", signed=True)
    return bits if bits >= 0 else -(bits & 0x7FFFFFFF)


def margin_ulp(logprob: float, margin: float) -> int:
    """A margin in ULP: steps of float32 between the best token's log-probability and the second's."""
    return ulp_distance(logprob, logprob - margin)


@dataclass(frozen=True, slots=True)
class TokenSeen:
    """One token of an answer. margin, margin_ulp: to the second best; None where one token was allowed."""

    token_id: int
    text: str
    logprob: float | None
    margin: float | None
    margin_ulp: int | None


@dataclass(frozen=True, slots=True)
class Parting:
    """One place of two answers. A side is None where its answer has ended before.

    logprob_ulp: between the two log-probabilities, whatever the tokens are; None where there are not two.
    """

    index: int
    recorded: TokenSeen | None
    found: TokenSeen | None
    logprob_ulp: int | None


@dataclass(frozen=True, slots=True)
class CallDivergence:
    """How one call's answer parts from the recorded one.

    first: the first token with any other bit. flip: the first other token, None where only numbers differ.
    max_ulp: the largest distance of log-probabilities before the flip, None where there is none to compare.
    before, recorded_after, found_after: the text around the flip, or around `first` where nothing flips.
    """

    call: str
    first: Parting
    flip: Parting | None
    max_ulp: int | None
    num_recorded: int
    num_found: int
    before: str
    recorded_after: str
    found_after: str


def surface_of_call(recorded: RecordedCall) -> Surface:
    """What a recorded call shows."""
    return Surface.build(recorded.token_ids, recorded.text, recorded.logprobs, recorded.margins, recorded.finish_reason)


def find_divergence(call: str, recorded: Surface, found: Surface, tokenizer: Tokenizer) -> CallDivergence | None:
    """Where an answer first parts from the recorded one; None where every token and number is the same."""
    length = max(len(recorded.token_ids), len(found.token_ids))
    first = next((index for index in range(length) if _bits(recorded, index) != _bits(found, index)), None)
    if first is None:
        return None
    flip = next((i for i in range(first, length) if _token_id(recorded, i) != _token_id(found, i)), None)
    place = first if flip is None else flip
    distances = [_logprob_ulp(recorded, found, index) for index in range(place)]
    return CallDivergence(
        call=call,
        first=_parting(recorded, found, first, tokenizer),
        flip=None if flip is None else _parting(recorded, found, flip, tokenizer),
        max_ulp=max((distance for distance in distances if distance is not None), default=None),
        num_recorded=len(recorded.token_ids),
        num_found=len(found.token_ids),
        before=decode_ids(tokenizer, recorded.token_ids[max(0, place - CONTEXT_TOKENS) : place]),
        recorded_after=decode_ids(tokenizer, recorded.token_ids[place : place + CONTEXT_TOKENS]),
        found_after=decode_ids(tokenizer, found.token_ids[place : place + CONTEXT_TOKENS]),
    )


def decode_ids(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """The text of token ids that may be anything; what the vocabulary lacks is written as its number."""
    try:
        return tokenizer.decode(token_ids)
    except RequestError:
        return " ".join(f"<{token_id}>" for token_id in token_ids)


def _parting(recorded: Surface, found: Surface, index: int, tokenizer: Tokenizer) -> Parting:
    return Parting(
        index,
        _token_seen(recorded, index, tokenizer),
        _token_seen(found, index, tokenizer),
        _logprob_ulp(recorded, found, index),
    )


def _token_seen(surface: Surface, index: int, tokenizer: Tokenizer) -> TokenSeen | None:
    token_id = _token_id(surface, index)
    if token_id is None:
        return None
    logprob, margin = _logprob(surface, index), _margin(surface, index)
    distance = None if logprob is None or margin is None else margin_ulp(logprob, margin)
    return TokenSeen(token_id, decode_ids(tokenizer, [token_id]), logprob, margin, distance)


def _logprob_ulp(recorded: Surface, found: Surface, index: int) -> int | None:
    one, other = _logprob(recorded, index), _logprob(found, index)
    return None if one is None or other is None else ulp_distance(one, other)


def _bits(surface: Surface, index: int) -> tuple[int | None, tuple[str, ...], tuple[str | None, ...]]:
    return _token_id(surface, index), surface.logprobs[index : index + 1], surface.margins[index : index + 1]


def _token_id(surface: Surface, index: int) -> int | None:
    return surface.token_ids[index] if index < len(surface.token_ids) else None


def _logprob(surface: Surface, index: int) -> float | None:
    return float.fromhex(surface.logprobs[index]) if index < len(surface.logprobs) else None


def _margin(surface: Surface, index: int) -> float | None:
    margin = surface.margins[index] if index < len(surface.margins) else None
    return None if margin is None else float.fromhex(margin)
