"""`VllmEngine`: the pinned model in vLLM, in this process; calls of several threads share its batches.

Promises, with the configuration's `attention.invariant`: the tokens and log-probabilities of a request do not depend
on the requests beside it, on its place among them, or on the number of threads; and scoring a recorded completion in
one forward pass finds the very bits that generating it found. Tests show it for prompts of 450 to 2,000 tokens in
float32; nothing is promised across processors, library versions or configurations, which is what the identity is for.

Greedy only. Sampling defaults that a model repository brings are not read. A completion ends on the end-of-turn token
or on its token limit, which is reported, never lowered.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from inference import vllm_runtime, weights
from inference.config import EngineConfig
from inference.counters import Counters, SchedulerWitness
from inference.hidden_states import HiddenStatesTap
from inference.request_checks import check_generate, check_score
from inference.shared_steps import SharedSteps, StepCall
from inference.token_grammar import GrammarCompiler, TokenMatcher, known_token_ids, score_positions
from inference.tokenizer import PinnedTokenizer
from inference.vllm_identity import attention_backend, flag_values, require_settled, vllm_identity
from projection.engine import Completion, EngineIdentity, Progress, Score, ScoredPosition
from projection.errors import EngineError
from projection.grammar import Grammar

if TYPE_CHECKING:
    import torch
    from vllm import RequestOutput, SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.logprobs import Logprob
    from vllm.v1.engine.llm_engine import LLMEngine

GenerateRequest = tuple[Sequence[int], int, Grammar | None]
"""Prompt token ids, max_tokens, grammar."""

MAX_LOGITS_ROWS = 128  # of one matrix product while scoring; bounds memory, changes no bit


class VllmEngine:
    """A `projection.engine.Engine`. Calls from several threads run side by side, in the same batches.

    cache_salt: whose prefix cache may be read; a request finds only what others of the same salt have left there.
    """

    def __init__(
        self,
        llm: LLMEngine,
        tokenizer: PinnedTokenizer,
        identity: EngineIdentity,
        config: EngineConfig,
        cache_salt: str | None = None,
    ) -> None:
        self._llm = llm
        self._cache_salt = cache_salt
        self._tokenizer = tokenizer
        self._identity = identity
        self._config = config
        self._vocab_size: int = llm.model_config.get_vocab_size()
        self._grammars = GrammarCompiler(llm.get_tokenizer(), self._vocab_size, tokenizer.eos_token_ids)
        (self._model,) = llm.apply_model(lambda model: model)
        self._witness = SchedulerWitness(llm.engine_core.engine_core.scheduler)
        self._steps = SharedSteps(llm, self._witness)
        self._tap = HiddenStatesTap(llm, self._model)
        self._request_numbers = itertools.count(1)

    @classmethod
    def load(cls, config: EngineConfig, weights_dir: Path, cache_salt: str | None = None) -> VllmEngine:
        """Check the weights against their manifest and start vLLM on them (about 15 s, most of it imports).

        Raises:
            WeightsError: a pinned file is missing, added or changed.
            ConfigurationError: the environment contradicts the configuration.
            EngineError: vLLM cannot start.
        """
        manifest = weights.check(weights_dir)
        tokenizer = PinnedTokenizer(weights_dir)
        environ = vllm_runtime.prepare_environment(config)
        identity = vllm_identity(config, manifest, tokenizer.digest, environ)
        llm = vllm_runtime.start(config, weights_dir)
        with ExitStack() as failed:
            failed.callback(vllm_runtime.stop, llm)
            _require_settled(llm, config)
            engine = cls(llm, tokenizer, identity, config, cache_salt)
            failed.pop_all()
        return engine

    @property
    def identity(self) -> EngineIdentity:
        return self._identity

    @property
    def tokenizer(self) -> PinnedTokenizer:
        return self._tokenizer

    @property
    def max_model_len(self) -> int:
        return self._config.max_model_len

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        grammar: Grammar | None,
        progress: Progress | None = None,
    ) -> Completion:
        """Generate greedily, under `grammar` where one is given."""
        return self.generate_batch([(prompt_token_ids, max_tokens, grammar)], progress)[0]

    def generate_batch(
        self, requests: Sequence[GenerateRequest], progress: Progress | None = None
    ) -> tuple[Completion, ...]:
        """Generate for several prompts at once, in their order; `wall_s` of each is that of the whole batch.

        Raises:
            RequestError: a request that no engine could run; none of the batch is run.
            EngineError: vLLM failed.
        """
        for prompt_token_ids, max_tokens, _ in requests:
            check_generate(prompt_token_ids, max_tokens, self.max_model_len, self._vocab_size)
        started = time.perf_counter()
        call = StepCall(
            [
                self._request(prompt_token_ids, self._sampling_params(max_tokens, grammar, logprobs=2))
                for prompt_token_ids, max_tokens, grammar in requests
            ]
        )
        outputs = self._steps.run(call, sum(max_tokens for _, max_tokens, _ in requests), progress)
        wall_s = time.perf_counter() - started
        return tuple(self._completion(outputs[request_id], wall_s) for request_id, _, _ in call.requests)

    def score(
        self, prompt_token_ids: Sequence[int], completion_token_ids: Sequence[int], grammar: Grammar | None
    ) -> Score:
        """Score a recorded completion in one forward pass; the vocabulary is looked at for its positions only.

        From the first token that the grammar does not allow, and after end of turn, nothing is allowed: those
        positions have best_token_id -1.
        """
        check_score(prompt_token_ids, completion_token_ids, self.max_model_len, self._vocab_size)
        started = time.perf_counter()
        hidden_states = self._hidden_states(prompt_token_ids, completion_token_ids)
        with self._steps.alone(), vllm_runtime.vllm_contained("scoring"):
            matcher = self._grammars.matcher(grammar)
            positions = tuple(self._scored_positions(matcher, completion_token_ids, hidden_states))
        return Score(positions, len(prompt_token_ids), time.perf_counter() - started)

    def counters(self) -> Counters:
        """What was really computed since the start."""
        return self._witness.counters

    def reset_counters(self) -> None:
        """Begin `max_num_running` anew; all other counts go on."""
        self._witness.reset_max_num_running()

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix. No call may be in flight."""
        with self._steps.alone():
            if not self._llm.reset_prefix_cache():
                raise EngineError("the prefix cache is in use: wait for the calls in flight")

    def close(self) -> None:
        """Stop vLLM and free its memory; closing again does nothing."""
        if self._steps.close():
            vllm_runtime.stop(self._llm)
            del self._llm, self._model, self._steps, self._tap, self._witness

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _request(self, token_ids: Sequence[int], params: SamplingParams) -> tuple[str, TokensPrompt, SamplingParams]:
        prompt: TokensPrompt = {"prompt_token_ids": list(token_ids)}
        if self._cache_salt is not None:
            prompt["cache_salt"] = self._cache_salt
        return f"dpm-{next(self._request_numbers)}", prompt, params

    def _sampling_params(self, max_tokens: int, grammar: Grammar | None, **more: Any) -> SamplingParams:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        return SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            stop_token_ids=list(self._tokenizer.eos_token_ids),
            detokenize=False,
            output_kind=RequestOutputKind.CUMULATIVE,
            structured_outputs=None if grammar is None else StructuredOutputsParams(grammar=grammar.ebnf),
            **more,
        )

    def _completion(self, output: RequestOutput, wall_s: float) -> Completion:
        answer = output.outputs[0]
        token_ids = tuple(answer.token_ids)
        if answer.finish_reason not in ("stop", "length") or answer.logprobs is None:
            raise EngineError(f"vLLM ended a request with {answer.finish_reason!r}: {answer.stop_reason}")
        if len(token_ids) != len(answer.logprobs):
            raise EngineError("vLLM returned another number of log-probabilities than of tokens")
        return Completion(
            token_ids=token_ids,
            text=self._tokenizer.decode(token_ids),
            finish_reason=answer.finish_reason,
            logprobs=tuple(entry[token_id].logprob for token_id, entry in zip(token_ids, answer.logprobs, strict=True)),
            margins=tuple(_margin(entry) for entry in answer.logprobs),
            num_prompt_tokens=len(output.prompt_token_ids or ()),
            wall_s=wall_s,
        )

    def _hidden_states(self, prompt_token_ids: Sequence[int], completion_token_ids: Sequence[int]) -> torch.Tensor:
        """The model's last hidden states that predict the completion: (num_completion_tokens, hidden_size).

        They are read off the model's own forward pass in vLLM, whose log-probabilities of prompts would have to look
        at the vocabulary for the whole prompt.
        """
        token_ids = [*prompt_token_ids, *known_token_ids(completion_token_ids[:-1], self._vocab_size)]
        request = self._request(token_ids, self._sampling_params(1, None, skip_reading_prefix_cache=True))
        with self._tap.collecting(request[0], len(prompt_token_ids) - 1, len(token_ids)) as rows:
            self._steps.run(StepCall([request]), 1)
            return rows.joined()

    def _scored_positions(
        self, matcher: TokenMatcher, token_ids: Sequence[int], hidden_states: torch.Tensor
    ) -> Iterator[ScoredPosition]:
        import torch

        for first in range(0, len(token_ids), MAX_LOGITS_ROWS):
            rows = slice(first, first + MAX_LOGITS_ROWS)
            with torch.inference_mode():
                logits = self._model.compute_logits(hidden_states[rows]).float()
                yield from score_positions(matcher, token_ids[rows], logits)


def _margin(entry: Mapping[int, Logprob]) -> float | None:
    """Top-1 minus top-2; None where the grammar allowed one token, which leaves the second at minus infinity."""
    best, second = sorted((logprob.logprob for logprob in entry.values()), reverse=True)[:2]
    return None if second == float("-inf") else best - second


def _require_settled(llm: LLMEngine, config: EngineConfig) -> None:
    """See that vLLM took what the identity states.

    Raises:
        EngineError: it took another attention back end, or another value of a flag.
    """
    expected = [attention_backend(config)]
    backends = sorted(set(llm.collective_rpc(_attention_backends)[0]))
    if backends != expected:
        raise EngineError(f"vLLM uses the attention back ends {backends}, not {expected}", backends=backends)
    require_settled(llm.vllm_config, flag_values(config))


def _attention_backends(worker: Any) -> list[str]:
    return [group.backend.__name__ for groups in worker.model_runner.attn_groups for group in groups]
