"""Log-probabilities as vLLM's server writes them: one row a position, and what a row can tell.

A row holds the best tokens of its position and the token that stands there, not the whole vocabulary. Promises to say
nothing that a longer row could refute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

MINUS_INFINITY = -9999.0  # what vLLM writes for it, which JSON lacks
TOKEN_PREFIX = "token_id:"
Row = Mapping[int, float]
"""Log-probabilities of one position, by token id."""


def is_best(row: Row, token_id: int) -> bool:
    """Whether a token of the row is likelier than every other, those beyond the row included."""
    return len(row) > 1 and all(value < row[token_id] for other, value in row.items() if other != token_id)


def best_allowed(row: Row, words: Sequence[int], num_top: int, vocab_size: int) -> int | None:
    """The best allowed token of a position from its `num_top` best ones; -1 where nothing is allowed.

    words: the bits of the allowed tokens, 32 in a word. None: the row does not tell. An allowed token that is no
    likelier than the last of the row may have an equal beyond it, and two equals may differ in what was rounded off.
    """
    num_allowed = sum((word & 0xFFFFFFFF).bit_count() for word in words)
    if num_allowed == 0:
        return -1
    if num_allowed == 1:
        return next(32 * at + (word & 0xFFFFFFFF).bit_length() - 1 for at, word in enumerate(words) if word)
    top = sorted(row.values(), reverse=True)[:num_top]
    allowed = {token_id: value for token_id, value in row.items() if words[token_id // 32] >> (token_id % 32) & 1}
    if not allowed:
        return None
    best = max(allowed.values())
    if num_top < vocab_size and best <= top[-1]:
        return None
    equals = [token_id for token_id, value in allowed.items() if value == best]
    return equals[0] if len(equals) == 1 else None


def generated_rows(choice: Mapping[str, Any]) -> list[Row]:
    """The log-probabilities of generated tokens."""
    return [
        {int(key.removeprefix(TOKEN_PREFIX)): read_logprob(value) for key, value in top.items()}
        for top in choice["logprobs"]["top_logprobs"]
    ]


def read_logprob(stated: float) -> float:
    """A log-probability as vLLM writes it. Raises ValueError where it is none."""
    if stated == MINUS_INFINITY:
        return -math.inf
    if not math.isfinite(stated):
        raise ValueError(f"{stated} is no log-probability")
    return float(stated)


def margin(row: Row) -> float | None:
    """Top-1 minus top-2; None where the grammar allowed one token."""
    best, second = sorted(row.values(), reverse=True)[:2]
    return None if second == -math.inf else best - second
