"""An engine that counts the seconds of its calls and is otherwise the engine it wraps."""

from __future__ import annotations

import time
from collections.abc import Sequence

from projection.engine import Completion, Engine, EngineIdentity, Progress, Score, Tokenizer
from projection.grammar import Grammar


class TimedEngine:
    """Adds up `engine_s`, the seconds spent inside `generate` and `score`, grammar compilation included."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.engine_s = 0.0

    @property
    def identity(self) -> EngineIdentity:
        return self._engine.identity

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    @property
    def max_model_len(self) -> int:
        return self._engine.max_model_len

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        grammar: Grammar | None,
        progress: Progress | None = None,
    ) -> Completion:
        """As the wrapped engine."""
        started = time.perf_counter()
        try:
            return self._engine.generate(prompt_token_ids, max_tokens, grammar, progress)
        finally:
            self.engine_s += time.perf_counter() - started

    def score(
        self, prompt_token_ids: Sequence[int], completion_token_ids: Sequence[int], grammar: Grammar | None
    ) -> Score:
        """As the wrapped engine."""
        started = time.perf_counter()
        try:
            return self._engine.score(prompt_token_ids, completion_token_ids, grammar)
        finally:
            self.engine_s += time.perf_counter() - started
