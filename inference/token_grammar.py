"""Grammars at the level of tokens: which token ids a `Grammar` allows next, and which of them is best.

Owns xgrammar's compiler and matcher, and greedy choice under a bitmask. vLLM compiles its own copy of a grammar for
generation; this one, built from the same tokenizer, vocabulary size and end-of-turn ids, serves scoring and the
transformers engine. xgrammar and torch are imported when they are first used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from projection.engine import ScoredPosition
from projection.errors import EngineError
from projection.grammar import Grammar

if TYPE_CHECKING:
    import torch


class GrammarCompiler:
    """Compiles grammars for one tokenizer; keeps compiled ones, so that a second use is free.

    `tokenizer` is a transformers tokenizer, `vocab_size` the width of the model's logits.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, end_token_ids: Collection[int]) -> None:
        import xgrammar

        self._end_token_ids = sorted(end_token_ids)
        self.vocab_size = vocab_size
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size)
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=True)

    def matcher(self, grammar: Grammar | None) -> TokenMatcher:
        """Return a matcher at the start of a completion; without a grammar it allows every token until end of turn.

        Raises:
            EngineError: xgrammar does not take the grammar.
        """
        import xgrammar

        if grammar is None:
            return TokenMatcher(None, self.vocab_size, self._end_token_ids)
        try:
            compiled = self._compiler.compile_grammar(grammar.ebnf)
        except (RuntimeError, ValueError) as exc:
            raise EngineError(f"xgrammar does not take this grammar: {exc}", grammar=grammar.digest) from exc
        matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=self._end_token_ids)
        return TokenMatcher(matcher, self.vocab_size, self._end_token_ids)


class TokenMatcher:
    """Follows one completion token by token. After a refused token, or after end of turn, nothing more is allowed."""

    def __init__(self, matcher: Any | None, vocab_size: int, end_token_ids: Sequence[int]) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._end_token_ids = frozenset(end_token_ids)
        self.is_over = False

    def next_bitmask(self) -> torch.Tensor:
        """The allowed next tokens: (1, ceil(vocab_size / 32)) int32, bit set = allowed."""
        import torch
        import xgrammar

        bitmask = xgrammar.allocate_token_bitmask(1, self._vocab_size)
        if self.is_over:
            return torch.zeros_like(bitmask)
        if self._matcher is not None:
            self._matcher.fill_next_token_bitmask(bitmask)
        return bitmask

    def accept(self, token_id: int) -> bool:
        """Advance by one token; returns whether it was allowed."""
        is_allowed = self.accept_allowed(token_id)
        self.is_over = self.is_over or not is_allowed
        return is_allowed

    def accept_allowed(self, token_id: int) -> bool:
        """Advance by a token that is allowed, and say so; stay where it is when the token is not."""
        if self.is_over or not 0 <= token_id < self._vocab_size:
            return False
        if self._matcher is not None and not self._matcher.accept_token(token_id):
            return False
        self.is_over = token_id in self._end_token_ids
        return True


@dataclass(frozen=True, slots=True)
class ChosenToken:
    """One greedy choice among allowed tokens; margin is None where only one was allowed."""

    token_id: int
    logprob: float
    margin: float | None


def choose(logits: torch.Tensor, bitmask: torch.Tensor) -> ChosenToken:
    """The highest-scoring allowed token of one row of logits, which is overwritten: (1, vocab_size), float32."""
    (token_id,) = best_allowed(logits, bitmask)
    if token_id < 0:
        raise EngineError("the grammar allows no token here: it is not the grammar of this tokenizer")
    logprobs = logits.log_softmax(dim=-1)[0]
    best, second = logprobs.topk(2).values.tolist()
    return ChosenToken(token_id, float(logprobs[token_id]), None if second == float("-inf") else best - second)


def best_allowed(logits: torch.Tensor, bitmask: torch.Tensor) -> list[int]:
    """The highest-scoring allowed token of each row, the lowest id among equals; -1 where nothing is allowed.

    Overwrites `logits` (num_rows, vocab_size), float32: forbidden tokens become minus infinity.

    Raises:
        EngineError: a logit is not a number.
    """
    import torch
    import xgrammar

    check_numbers(logits)
    xgrammar.apply_token_bitmask_inplace(logits, bitmask)
    best = logits.argmax(dim=-1)
    best_token_ids: list[int] = torch.where(bitmask.any(dim=-1), best, -1).tolist()
    return best_token_ids


def check_numbers(logits: torch.Tensor) -> None:
    """Raises EngineError when a logit is not a number."""
    if bool(logits.isnan().any()):
        raise EngineError("the model computed logits that are not numbers: its weights or its kernels are broken")


def score_positions(matcher: TokenMatcher, token_ids: Sequence[int], logits: torch.Tensor) -> Iterator[ScoredPosition]:
    """Judge recorded tokens by the logits of their positions (num_tokens, vocab_size), float32; overwrites them.

    `matcher` stands before the first of them and is advanced. A recorded token that beats the whole vocabulary beats
    whatever the grammar allows: only the other positions need the grammar's mask, which costs a millisecond or more.
    """
    check_numbers(logits)
    logprobs = logits.log_softmax(dim=-1)
    for index, (token_id, best_of_all) in enumerate(zip(token_ids, logits.argmax(dim=-1).tolist(), strict=True)):
        logprob = float(logprobs[index, token_id]) if 0 <= token_id < logits.shape[1] else float("-inf")
        if token_id == best_of_all and matcher.accept_allowed(token_id):
            yield ScoredPosition(token_id, token_id, logprob)
            continue
        (best_token_id,) = best_allowed(logits[index : index + 1], matcher.next_bitmask())
        matcher.accept(token_id)
        yield ScoredPosition(token_id, best_token_id, logprob)


def known_token_ids(token_ids: Sequence[int], vocab_size: int) -> list[int]:
    """Recorded tokens as a model can read them. One that it lacks is refused by the matcher, so what stands in for it
    only feeds positions after it, where nothing is allowed."""
    return [token_id if 0 <= token_id < vocab_size else 0 for token_id in token_ids]
