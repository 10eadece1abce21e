"""`OpenAIEngine`: a model over the Chat Completions API, for comparison only.

The protocol has a seed that promises nothing and a fingerprint that may be returned; reasoning models refuse a
temperature: what is sent follows `inference.live_models`. Nothing is promised about the bytes; see
`inference.live_engine`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from inference import live_engine
from inference.live_calls import CallMeter, LiveAnswer, Wait, call
from inference.live_endpoint import Endpoint, SdkErrors, attempt, read_key
from inference.live_models import SEED, TEMPERATURE, is_same_model
from inference.live_prompt import ChatTexts, read_chat
from inference.scripted_engine import ScriptedTokenizer
from projection.engine import Completion, EngineIdentity, Progress, Score
from projection.errors import EngineError
from projection.grammar import Grammar

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion


class OpenAIEngine:
    """A `live_engine.LiveEngine`. Calls from several threads run side by side."""

    def __init__(self, endpoint: Endpoint, meter: CallMeter, wait: Wait = time.sleep) -> None:
        """Reads the key and opens nothing yet.

        Raises:
            ConfigurationError: there is no key in the environment.
        """
        import openai

        self._endpoint, self._meter, self._wait = endpoint, meter, wait
        self._key = read_key(endpoint)
        self._errors = SdkErrors(
            openai.APIStatusError, openai.APITimeoutError, openai.APIConnectionError, openai.OpenAIError
        )
        self._client = openai.OpenAI(
            api_key=self._key,
            base_url=endpoint.base_url,
            max_retries=0,
            http_client=openai.DefaultHttpxClient(
                timeout=endpoint.timeout_s, follow_redirects=False, trust_env=endpoint.key_variable is not None
            ),
        )

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    @property
    def identity(self) -> EngineIdentity:
        return live_engine.unpinned_identity(self._endpoint, "chat.completions", "openai")

    @property
    def tokenizer(self) -> ScriptedTokenizer:
        return live_engine.TOKENIZER

    @property
    def max_model_len(self) -> int:
        return live_engine.MAX_PROMPT_AND_ANSWER_BYTES

    def ask(self, prompt_token_ids: Sequence[int], max_tokens: int) -> LiveAnswer:
        """As `live_engine.LiveEngine.ask`."""
        ask = partial(self._ask, read_chat(prompt_token_ids), max_tokens)
        tried = partial(attempt, ask, self._endpoint, self._key, self._errors)
        return call(tried, self._meter, self._endpoint.max_retries, self._wait)

    def _ask(self, chat: ChatTexts, max_tokens: int) -> LiveAnswer:
        started = time.perf_counter()
        completion = self._client.chat.completions.create(
            model=self._endpoint.model,
            max_completion_tokens=max_tokens,
            messages=[{"role": "system", "content": chat.system}, {"role": "user", "content": chat.user}],
            timeout=self._endpoint.timeout_s,
            **self._optional(),
        )
        return self._read(completion, time.perf_counter() - started)

    def _optional(self) -> dict[str, Any]:
        """What this model is known to take."""
        pins = self._endpoint.pins
        values = {"temperature": (pins.temperature, TEMPERATURE), "seed": (pins.seed, SEED)}
        values["logprobs"] = (pins.logprobs, True)
        return {name: value for name, (taken, value) in values.items() if taken == "taken"}

    def _read(self, completion: ChatCompletion, wall_s: float) -> LiveAnswer:
        if not is_same_model(self._endpoint.model, completion.model):
            raise EngineError(
                f"{self._endpoint.name} was asked, and {completion.model!r} answered", model=completion.model
            )
        choice, usage = completion.choices[0], completion.usage
        logprobs = choice.logprobs.content if choice.logprobs else None
        if usage is None:
            raise EngineError(f"{self._endpoint.name} does not say how many tokens its answer cost")
        return LiveAnswer(
            text=choice.message.content or "",
            finish_reason=live_engine.finish_reason(self._endpoint, choice.finish_reason),
            stop_reason=str(choice.finish_reason),
            model=completion.model,
            fingerprint=completion.system_fingerprint,
            input_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            logprobs=tuple(token.logprob for token in logprobs or ()),
            wall_s=wall_s,
        )

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        grammar: Grammar | None,
        progress: Progress | None = None,
    ) -> Completion:
        """As `live_engine.generate`."""
        return live_engine.generate(self, prompt_token_ids, max_tokens, grammar, progress)

    def score(
        self, prompt_token_ids: Sequence[int], completion_token_ids: Sequence[int], grammar: Grammar | None
    ) -> Score:
        """Refused; see `live_engine.refuse_score`."""
        live_engine.refuse_score(self._endpoint)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
