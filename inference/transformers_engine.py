"""`TransformersEngine`: the pinned model in Hugging Face transformers, one request at a time.

A second implementation to compare with, and the engine of machines without vLLM. Promises the same bytes for the same
call on the same identity. Does not promise what `VllmEngine` does: a forward pass over the whole completion is another
computation than token-by-token decoding here, and its log-probabilities differ in the last bits (measured: 21 to 24 of
40 positions equal, the rest within 2e-5), so `score` may prefer another token where two are that close. Nor do its bits
equal vLLM's, nor do they survive another number of threads.

Attention is torch's `sdpa`. `eager` was no more stable (prefill and decode differ as much), needs memory quadratic in
the prompt, and took three times as long on 2,000 tokens.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from inference import weights
from inference.config import EngineConfig
from inference.containment import contained
from inference.identity import environment_fields, library_versions, processor_fields, weights_fields
from inference.request_checks import check_generate, check_score
from inference.token_grammar import (
    ChosenToken,
    GrammarCompiler,
    choose,
    known_token_ids,
    score_positions,
)
from inference.tokenizer import PinnedTokenizer
from projection.engine import Completion, EngineIdentity, Progress, Score
from projection.errors import ConfigurationError, EngineError
from projection.grammar import Grammar

if TYPE_CHECKING:
    import torch

ATTENTION = "sdpa"
LIBRARIES = ("torch", "transformers", "tokenizers", "xgrammar")


class TransformersEngine:
    """A `projection.engine.Engine`. Calls from several threads wait for each other."""

    def __init__(
        self, model: Any, hf_tokenizer: Any, tokenizer: PinnedTokenizer, identity: EngineIdentity, config: EngineConfig
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._identity = identity
        self._config = config
        self._vocab_size = int(model.config.vocab_size)
        self._grammars = GrammarCompiler(hf_tokenizer, self._vocab_size, tokenizer.eos_token_ids)
        self._lock = threading.Lock()
        self._is_open = True

    @classmethod
    def load(cls, config: EngineConfig, weights_dir: Path) -> TransformersEngine:
        """Check the weights against their manifest and load them.

        Raises:
            WeightsError: a pinned file is missing, added or changed.
            ConfigurationError: a library is missing, or the threads or the context length cannot be had.
            EngineError: transformers cannot load the model.
        """
        if config.rope_parameters is not None:
            raise ConfigurationError(
                "rope_parameters: only vLLM is given them; use --engine vllm", key="rope_parameters"
            )
        manifest = weights.check(weights_dir)
        tokenizer = PinnedTokenizer(weights_dir)
        versions = library_versions(LIBRARIES)
        environ = dict(os.environ)
        with contained(f"loading {weights_dir} with transformers"):
            model, hf_tokenizer = _load(config, weights_dir)
        max_positions = int(model.config.max_position_embeddings)
        if config.max_model_len > max_positions:
            raise ConfigurationError(
                f"max_model_len {config.max_model_len} is more than the model's {max_positions} positions",
                key="max_model_len",
            )
        fields = {
            "kind": "transformers",
            "tokenizer_digest": tokenizer.digest,
            "weights": weights_fields(manifest),
            "versions": versions,
            **_engine_fields(config, environ),
        }
        return cls(model, hf_tokenizer, tokenizer, EngineIdentity(fields), config)

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
        check_generate(prompt_token_ids, max_tokens, self.max_model_len, self._vocab_size)
        started = time.perf_counter()
        chosen: list[ChosenToken] = []
        with self._running():
            for token in self._decode(prompt_token_ids, max_tokens, grammar):
                chosen.append(token)
                if progress is not None:
                    progress(len(chosen), max_tokens)
        token_ids = tuple(token.token_id for token in chosen)
        return Completion(
            token_ids=token_ids,
            text=self._tokenizer.decode(token_ids),
            finish_reason="stop" if token_ids[-1] in self._tokenizer.eos_token_ids else "length",
            logprobs=tuple(token.logprob for token in chosen),
            margins=tuple(token.margin for token in chosen),
            num_prompt_tokens=len(prompt_token_ids),
            wall_s=time.perf_counter() - started,
        )

    def score(
        self, prompt_token_ids: Sequence[int], completion_token_ids: Sequence[int], grammar: Grammar | None
    ) -> Score:
        """Score a recorded completion in one forward pass; see the module for what that does not promise here.

        From the first token that the grammar does not allow, and after end of turn, nothing is allowed: those
        positions have best_token_id -1.
        """
        check_score(prompt_token_ids, completion_token_ids, self.max_model_len, self._vocab_size)
        started = time.perf_counter()
        with self._running():
            matcher = self._grammars.matcher(grammar)
            known = known_token_ids(completion_token_ids[:-1], self._vocab_size)
            logits = self._forward([*prompt_token_ids, *known], len(completion_token_ids), None)
            positions = tuple(score_positions(matcher, completion_token_ids, logits))
        return Score(positions, len(prompt_token_ids), time.perf_counter() - started)

    def close(self) -> None:
        """Free the model; closing again does nothing."""
        with self._lock:
            self._is_open = False
            self._model = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _running(self) -> Iterator[None]:
        with self._lock:
            if not self._is_open:
                raise EngineError("this engine was closed")
            with contained("transformers"):
                yield

    def _decode(
        self, prompt_token_ids: Sequence[int], max_tokens: int, grammar: Grammar | None
    ) -> Iterator[ChosenToken]:
        from transformers import DynamicCache

        matcher = self._grammars.matcher(grammar)
        cache = DynamicCache(config=self._model.config)
        logits = self._forward(prompt_token_ids, 1, cache)
        for num_done in range(1, max_tokens + 1):
            token = choose(logits, matcher.next_bitmask())
            matcher.accept(token.token_id)
            yield token
            if matcher.is_over or num_done == max_tokens:
                return
            logits = self._forward([token.token_id], 1, cache)

    def _forward(self, token_ids: Sequence[int], num_logits: int, cache: Any) -> torch.Tensor:
        """Logits of the last `num_logits` positions: (num_logits, vocab_size), float32."""
        import torch

        with torch.inference_mode():
            output = self._model(
                torch.tensor([list(token_ids)]),
                past_key_values=cache,
                use_cache=cache is not None,
                logits_to_keep=num_logits,
            )
        logits: torch.Tensor = output.logits[0].float()
        return logits


def _load(config: EngineConfig, weights_dir: Path) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(config.num_threads)
    if torch.get_num_threads() != config.num_threads:
        raise ConfigurationError(
            f"this process computes with {torch.get_num_threads()} threads, not {config.num_threads}: vLLM has run in "
            "it; start a new process",
            key="num_threads",
        )
    model = AutoModelForCausalLM.from_pretrained(
        weights_dir,
        dtype=getattr(torch, config.dtype),
        attn_implementation=ATTENTION,
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
    )
    return model.eval(), AutoTokenizer.from_pretrained(weights_dir, local_files_only=True, trust_remote_code=False)


def _engine_fields(config: EngineConfig, environ: dict[str, str]) -> dict[str, Any]:
    import torch

    return {
        "dtype": config.dtype,
        "attention_backend": ATTENTION,
        "flags": {"max_model_len": config.max_model_len},
        "environment": environment_fields(environ),
        "device": {
            "kind": "cpu",
            **processor_fields(),
            "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "num_threads": torch.get_num_threads(),
        },
    }
