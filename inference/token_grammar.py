"""Grammars at the level of tokens: which token ids a `Grammar` allows next, by xgrammar.

vLLM compiles its own copy of a grammar for generation; this one, built from the same tokenizer, the same vocabulary
size and the same end-of-turn ids, serves scoring and the transformers engine. xgrammar and torch are imported when a
grammar is first compiled.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

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
        if self.is_over:
            return False
        is_known = 0 <= token_id < self._vocab_size
        is_allowed = is_known and (self._matcher is None or self._matcher.accept_token(token_id))
        self.is_over = not is_allowed or token_id in self._end_token_ids
        return is_allowed


def completion_bitmask(matcher: TokenMatcher, token_ids: Sequence[int]) -> torch.Tensor:
    """The allowed tokens at each position of a recorded completion: (num_tokens, ceil(vocab_size / 32)) int32."""
    import torch

    rows = []
    for token_id in token_ids:
        rows.append(matcher.next_bitmask())
        matcher.accept(token_id)
    return torch.cat(rows)


def best_allowed(logits: torch.Tensor, bitmask: torch.Tensor) -> list[int]:
    """The highest-scoring allowed token of each row, the lowest id among equals; -1 where nothing is allowed.

    Overwrites `logits` (num_rows, vocab_size), float32.
    """
    import torch
    import xgrammar

    xgrammar.apply_token_bitmask_inplace(logits, bitmask)
    best = logits.argmax(dim=-1)
    best_token_ids: list[int] = torch.where(bitmask.any(dim=-1), best, -1).tolist()
    return best_token_ids
