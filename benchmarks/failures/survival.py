"""Memories that survive a replay: how many of n calls come out again before the first that does not (paper, sections
7 and 10).

On an engine that drifts in a share e of its calls, a memory of n calls survives a replay with probability (1 - e)^n.
`measure_survival` counts that on any engine, a live API too (no grammar is needed for free summaries); a pinned one
must survive every replay, whatever n. `DriftingEngine` is the control: it drifts at a rate that is known, by a seeded
hash, so that the count can be held against the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from baseline.memory import Architecture, BuiltMemory, MemoryCall
from benchmarks.failures.case import CaseInput, build_case_memory
from projection.canonical import tagged_digest
from projection.engine import Completion, Engine, EngineIdentity, Progress, Score, Tokenizer
from projection.grammar import Grammar

MAX_REPLAYS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Survival:
    """What replays of one case's memory came to; the decision's call is not among them.

    survived: at index k - 1, the replays whose first k calls had the token ids of the reference, prompts and answers.
    drift_rate: first drifts, divided by the calls that were made up to them; the maximum-likelihood estimate of e.
    predicted: at index k - 1, (1 - drift_rate) ** k, beside the measured share `survived[k - 1] / num_replays`.
    """

    architecture: str
    num_calls: int
    num_replays: int
    survived: tuple[int, ...]
    num_same_memory: int
    drift_rate: float
    predicted: tuple[float, ...]


def measure_survival(
    architecture: Architecture,
    reference_engine: Engine,
    replay_engine: Callable[[int], Engine],
    case: CaseInput,
    num_replays: int,
) -> Survival:
    """Build a memory once and alone, and again `num_replays` times in each other's company, as a busy server would.

    A replay goes on from its own earlier answers. replay_engine: the engine of a replay by its number from 1; it is
    the reference's own, or a control.
    """
    reference = build_case_memory(architecture, reference_engine, case)
    with ThreadPoolExecutor(max_workers=MAX_REPLAYS_AT_ONCE) as pool:
        numbers = range(1, num_replays + 1)
        replays = list(pool.map(lambda number: build_case_memory(architecture, replay_engine(number), case), numbers))
    lengths = [count_same_calls(reference, replay) for replay in replays]
    num_calls = len(reference.calls)
    num_drifted = sum(length < num_calls for length in lengths)
    num_at_risk = sum(min(length + 1, num_calls) for length in lengths)
    drift_rate = num_drifted / num_at_risk if num_at_risk else 0.0
    return Survival(
        architecture=architecture.name,
        num_calls=num_calls,
        num_replays=num_replays,
        survived=tuple(sum(length >= k for length in lengths) for k in range(1, num_calls + 1)),
        num_same_memory=sum(replay.text == reference.text for replay in replays),
        drift_rate=drift_rate,
        predicted=tuple((1 - drift_rate) ** k for k in range(1, num_calls + 1)),
    )


def count_same_calls(reference: BuiltMemory, replay: BuiltMemory) -> int:
    """How many calls from the first on have the same prompt and the same answer, token for token."""
    count = 0
    for one, other in zip(reference.calls, replay.calls, strict=False):
        if _tokens(one) != _tokens(other):
            break
        count += 1
    return count


def _tokens(call: MemoryCall) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return call.prompt_token_ids, call.completion.token_ids


class DriftingEngine:
    """An engine whose answer, at a known rate, is the one to a prompt with its last token said twice.

    Whether a call drifts is a hash of seed and prompt: the same seed drifts in the same calls, in any thread.
    """

    def __init__(self, engine: Engine, rate: float, seed: int) -> None:
        self._engine, self._rate, self._seed = engine, rate, seed

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
        """The wrapped engine's answer to this prompt, or to almost this prompt."""
        asked = [*prompt_token_ids, prompt_token_ids[-1]] if self.drifts(prompt_token_ids) else prompt_token_ids
        completion = self._engine.generate(asked, max_tokens, grammar, progress)
        return replace(completion, num_prompt_tokens=len(prompt_token_ids))

    def score(
        self, prompt_token_ids: Sequence[int], completion_token_ids: Sequence[int], grammar: Grammar | None
    ) -> Score:
        """As the wrapped engine."""
        return self._engine.score(prompt_token_ids, completion_token_ids, grammar)

    def drifts(self, prompt_token_ids: Sequence[int]) -> bool:
        """Whether the call of this prompt drifts."""
        prompt = b"".join(token_id.to_bytes(4, "big") for token_id in prompt_token_ids)
        digest = tagged_digest("dpm/drift/v1", self._seed.to_bytes(8, "big"), prompt)
        return int(digest[:13], 16) < self._rate * 16**13
