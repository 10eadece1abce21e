"""An engine that counts what goes through it and is otherwise the engine it wraps: one for each measured answer.

Bytes are those of the texts, UTF-8: what an auditor would have to keep and read. Tokens are the engine's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from projection.engine import Completion, Engine, EngineIdentity, Progress, Score, Tokenizer
from projection.grammar import Grammar


@dataclass(slots=True)
class Meter:
    """Sums over the calls so far. engine_s: seconds inside the calls, of this caller; neighbours share them."""

    num_calls: int = 0
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    num_prompt_bytes: int = 0
    num_completion_bytes: int = 0
    engine_s: float = 0.0


class MeteredEngine:
    """Counts its calls in `meter`, and says after each that it is done."""

    def __init__(self, engine: Engine, on_call: Callable[[], None] = lambda: None) -> None:
        self._engine = engine
        self._on_call = on_call
        self.meter = Meter()

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
        completion = self._engine.generate(prompt_token_ids, max_tokens, grammar, progress)
        self.meter.engine_s += time.perf_counter() - started
        self.meter.num_calls += 1
        self.meter.num_prompt_tokens += len(prompt_token_ids)
        self.meter.num_completion_tokens += len(completion.token_ids)
        self.meter.num_prompt_bytes += len(self.tokenizer.decode(prompt_token_ids).encode())
        self.meter.num_completion_bytes += len(completion.text.encode())
        self._on_call()
        return completion

    def score(
        self, prompt_token_ids: Sequence[int], completion_token_ids: Sequence[int], grammar: Grammar | None
    ) -> Score:
        """As the wrapped engine; replays are not what is counted here."""
        return self._engine.score(prompt_token_ids, completion_token_ids, grammar)
