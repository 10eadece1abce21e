"""`VllmEngine`: the pinned model in vLLM, in this process, one call at a time.

Promises, with the configuration's `attention.invariant`: the tokens and log-probabilities of a request do not depend
on the requests beside it, on its place among them, or on the number of threads; and scoring a recorded completion in
one forward pass finds the very bits that generating it found. Tests show it for prompts of 450 to 2,000 tokens in
float32; nothing is promised across processors, library versions or configurations, which is what the identity is for.

Greedy only. Sampling defaults that a model repository brings are not read. A completion ends on the end-of-turn token
or on its token limit, which is reported, never lowered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from inference import vllm_runtime, weights
from inference.config import EngineConfig
from inference.request_checks import check_generate, check_score
from inference.token_grammar import GrammarCompiler, TokenMatcher, known_token_ids, score_positions
from inference.tokenizer import PinnedTokenizer
from inference.vllm_identity import attention_backend, flag_values, require_settled, vllm_identity
from projection.engine import Completion, EngineIdentity, Progress, Score, ScoredPosition
from projection.errors import EngineError
from projection.grammar import Grammar

if TYPE_CHECKING:
    import torch
    from vllm import RequestOutput, SamplingParams
    from vllm.logprobs import Logprob
    from vllm.v1.engine.llm_engine import LLMEngine

GenerateRequest = tuple[Sequence[int], int, Grammar | None]
"""Prompt token ids, max_tokens, grammar."""

MAX_LOGITS_ROWS = 128  # of one matrix product while scoring; bounds memory, changes no bit


class VllmEngine:
    """A `projection.engine.Engine`. Calls from several threads wait for each other."""

    def __init__(
        self, llm: LLMEngine, tokenizer: PinnedTokenizer, identity: EngineIdentity, config: EngineConfig
    ) -> None:
        self._llm = llm
        self._tokenizer = tokenizer
        self._identity = identity
        self._config = config
        self._vocab_size: int = llm.model_config.get_vocab_size()
        self._grammars = GrammarCompiler(llm.get_tokenizer(), self._vocab_size, tokenizer.eos_token_ids)
        (self._model,) = llm.apply_model(lambda model: model)
        self._lock = threading.Lock()
        self._num_requests = 0
        self._is_open = True

    @classmethod
    def load(cls, config: EngineConfig, weights_dir: Path) -> VllmEngine:
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
            engine = cls(llm, tokenizer, identity, config)
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
        with self._running():
            request_ids = [
                self._add(prompt_token_ids, self._sampling_params(max_tokens, grammar, logprobs=2))
                for prompt_token_ids, max_tokens, grammar in requests
            ]
            outputs = self._run(request_ids, sum(max_tokens for _, max_tokens, _ in requests), progress)
        wall_s = time.perf_counter() - started
        return tuple(self._completion(outputs[request_id], wall_s) for request_id in request_ids)

    def score(
        self, prompt_token_ids: Sequence[int], completion_token_ids: Sequence[int], grammar: Grammar | None
    ) -> Score:
        """Score a recorded completion in one forward pass; the vocabulary is looked at for its positions only.

        From the first token that the grammar does not allow, and after end of turn, nothing is allowed: those
        positions have best_token_id -1.
        """
        check_score(prompt_token_ids, completion_token_ids, self.max_model_len, self._vocab_size)
        started = time.perf_counter()
        with self._running():
            matcher = self._grammars.matcher(grammar)
            hidden_states = self._hidden_states(prompt_token_ids, completion_token_ids)
            positions = tuple(self._scored_positions(matcher, completion_token_ids, hidden_states))
        return Score(positions, len(prompt_token_ids), time.perf_counter() - started)

    def close(self) -> None:
        """Stop vLLM and free its memory; closing again does nothing."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                vllm_runtime.stop(self._llm)
                del self._llm, self._model

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _running(self) -> Iterator[None]:
        """One call at a time; vLLM's and torch's errors become EngineError, and no request outlives its call."""
        with self._lock:
            if not self._is_open:
                raise EngineError("this engine was closed")
            try:
                with vllm_runtime.vllm_contained("vLLM"):
                    yield
            finally:
                self._llm.abort_request(list(self._llm.output_processor.request_states), internal=True)

    def _add(self, token_ids: Sequence[int], params: SamplingParams) -> str:
        self._num_requests += 1
        request_id = f"dpm-{self._num_requests}"
        self._llm.add_request(request_id, {"prompt_token_ids": list(token_ids)}, params)
        return request_id

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

    def _run(
        self, request_ids: Sequence[str], max_tokens: int = 0, progress: Progress | None = None
    ) -> dict[str, RequestOutput]:
        """Step until every request is finished; the last output of each, by request id."""
        outputs: dict[str, RequestOutput] = {}
        while self._llm.has_unfinished_requests():
            outputs.update((output.request_id, output) for output in self._llm.step())
            if progress is not None:
                progress(sum(len(output.outputs[0].token_ids) for output in outputs.values()), max_tokens)
        missing = [request_id for request_id in request_ids if request_id not in outputs]
        if missing:
            raise EngineError(f"vLLM gave no answer to {len(missing)} of {len(request_ids)} requests")
        return outputs

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
        import torch

        token_ids = [*prompt_token_ids, *known_token_ids(completion_token_ids[:-1], self._vocab_size)]
        steps: list[torch.Tensor] = []
        hook = self._model.register_forward_hook(lambda _module, _inputs, output: steps.append(output))
        try:
            self._run([self._add(token_ids, self._sampling_params(1, None, skip_reading_prefix_cache=True))])
        finally:
            hook.remove()
        hidden_states = torch.cat(steps)
        if len(hidden_states) != len(token_ids):
            raise EngineError(f"vLLM computed {len(hidden_states)} of {len(token_ids)} tokens in a forward pass")
        return hidden_states[len(prompt_token_ids) - 1 :]

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
