"""The `Engine` protocol: the one boundary between the pure core and whatever runs the model.

Greedy only: there is no temperature to pass. Everything an engine returns carries the digest of its identity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from projection.canonical import value_digest
from projection.grammar import Grammar

FinishReason = Literal["stop", "length"]
Progress = Callable[[int, int], None]
"""Called with (num_tokens_done, max_tokens) while a call runs; must not raise."""

Watch = Callable[[str], Progress]
"""Told that a call of this name begins; returns the call's progress callback."""


def unwatched(_name: str) -> Progress:
    """The watch of whoever does not care."""
    return lambda _done, _limit: None


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """Everything that can change an output bit, as a JSON value. Equal digests promise equal bytes."""

    fields: Mapping[str, Any]

    @property
    def digest(self) -> str:
        return value_digest("dpm/engine-identity/v1", dict(self.fields))


class Tokenizer(Protocol):
    """The pinned tokenizer, as the core needs it."""

    @property
    def digest(self) -> str:
        """Digest over the tokenizer's and the chat template's files; also in the identity as `tokenizer_digest`."""
        ...

    def render_chat(self, system: str, user: str) -> list[int]:
        """Token ids of one system and one user turn, ready for the assistant's answer.

        The chat template's own parts are tokenised with special tokens; `system` and `user` never are, whatever
        they hold.
        """
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of completion token ids, without special tokens (end of turn)."""
        ...


@dataclass(frozen=True, slots=True)
class Completion:
    """One greedy generation.

    token_ids: as sampled, the end-of-turn token included.
    logprobs: (num_tokens,), natural log, of each chosen token among the tokens the grammar allowed there.
    margins: (num_tokens,), top-1 minus top-2 log-probability among allowed tokens; None where one token was allowed.
    Both are empty where the engine cannot say (a live API); a pinned engine always can.
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    logprobs: tuple[float, ...]
    margins: tuple[float | None, ...]
    num_prompt_tokens: int
    wall_s: float

    @property
    def min_margin(self) -> float | None:
        """The completion's distance from flipping; None when no position had a choice."""
        return min((m for m in self.margins if m is not None), default=None)


@dataclass(frozen=True, slots=True)
class ScoredPosition:
    """What one teacher-forced position says: the recorded token, and the best token that the grammar allows there.

    best_token_id: the highest-scoring allowed token. Ties go to the lowest id, as greedy sampling does.
    logprob: of the recorded token, over the whole vocabulary (no grammar mask).
    """

    token_id: int
    best_token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Score:
    """One teacher-forced prefill over prompt and completion; `positions` covers the completion only."""

    positions: tuple[ScoredPosition, ...]
    num_prompt_tokens: int
    wall_s: float


class Engine(Protocol):
    """Runs the pinned model. Implementations live in `inference/`."""

    @property
    def identity(self) -> EngineIdentity: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def max_model_len(self) -> int:
        """Prompt and completion tokens together."""
        ...

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        grammar: Grammar | None,
        progress: Progress | None = None,
    ) -> Completion:
        """Generate greedily, under `grammar` where one is given.

        Raises:
            EngineError: the engine failed. A completion that hit `max_tokens` is returned with finish_reason "length".
        """
        ...

    def score(
        self, prompt_token_ids: Sequence[int], completion_token_ids: Sequence[int], grammar: Grammar | None
    ) -> Score:
        """Score a recorded completion in one forward pass over prompt and completion."""
        ...
