"""`AnthropicEngine`: a Claude model over the Messages API, for comparison only.

The protocol has no seed and returns no fingerprint, and newer models refuse a temperature: what is sent follows
`inference.live_models`. Nothing is promised about the bytes; see `inference.live_engine`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from inference import live_engine
from inference.live_calls import CallMeter, LiveAnswer, Wait, call
from inference.live_endpoint import Endpoint, SdkErrors, attempt, read_key
from inference.live_models import TEMPERATURE, is_same_model
from inference.live_prompt import ChatTexts, read_chat
from inference.scripted_engine import ScriptedTokenizer
from projection.engine import Completion, EngineIdentity, Progress, Score
from projection.errors import EngineError
from projection.grammar import Grammar


class AnthropicEngine:
    """A `live_engine.LiveEngine`. Calls from several threads run side by side."""

    def __init__(self, endpoint: Endpoint, meter: CallMeter, wait: Wait = time.sleep) -> None:
        """Reads the key and opens nothing yet.

        Raises:
            ConfigurationError: there is no key in the environment.
        """
        import anthropic

        self._endpoint, self._meter, self._wait = endpoint, meter, wait
        self._key = read_key(endpoint)
        self._errors = SdkErrors(
            anthropic.APIStatusError, anthropic.APITimeoutError, anthropic.APIConnectionError, anthropic.AnthropicError
        )
        self._client = anthropic.Anthropic(
            api_key=self._key,
            base_url=endpoint.base_url,
            max_retries=0,
            http_client=anthropic.DefaultHttpxClient(
                timeout=endpoint.timeout_s, follow_redirects=False, trust_env=endpoint.key_variable is not None
            ),
            open_telemetry=False,
        )

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    @property
    def identity(self) -> EngineIdentity:
        return live_engine.unpinned_identity(self._endpoint, "messages", "anthropic")

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
        message = self._client.messages.create(
            model=self._endpoint.model,
            max_tokens=max_tokens,
            system=chat.system,
            messages=[{"role": "user", "content": chat.user}],
            extra_body={"temperature": TEMPERATURE} if self._endpoint.pins.temperature == "taken" else {},
            timeout=self._endpoint.timeout_s,
        )
        if not is_same_model(self._endpoint.model, message.model):
            raise EngineError(f"{self._endpoint.name} was asked, and {message.model!r} answered", model=message.model)
        usage = message.usage
        cached = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
        return LiveAnswer(
            text="".join(block.text for block in message.content if block.type == "text"),
            finish_reason=live_engine.finish_reason(self._endpoint, message.stop_reason),
            stop_reason=str(message.stop_reason),
            model=message.model,
            fingerprint=None,
            input_tokens=usage.input_tokens + cached,
            output_tokens=usage.output_tokens,
            logprobs=(),
            wall_s=time.perf_counter() - started,
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
