"""What the engines of live APIs share: a prompt becomes text, an answer becomes a completion, and nothing is promised.

Their identity is of the kind "unpinned": it says what could be fixed and what was, and that equal identities promise no
equal bytes. A live API is not this project's engine: no grammar can be imposed and nothing can be scored, and both are
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NoReturn, Protocol

from inference.live_calls import LiveAnswer
from inference.live_endpoint import Endpoint
from inference.request_checks import check_generate
from inference.scripted_engine import ScriptedTokenizer
from projection.engine import Completion, Engine, EngineIdentity, FinishReason, Progress
from projection.errors import EngineError, RequestError
from projection.grammar import Grammar

MAX_PROMPT_AND_ANSWER_BYTES = 4 * 2**20
"""What is sent and received at most, in this tokenizer's tokens, which are bytes. The provider enforces its own."""
TOKENIZER = ScriptedTokenizer()
FINISH_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "stop": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "length": "length",
}
"""The providers' words for an answer that is text and ended; all others are no answer (a refusal, a tool call)."""


class LiveEngine(Engine, Protocol):
    """A `projection.engine.Engine` whose answers can also be had as the provider gave them."""

    @property
    def endpoint(self) -> Endpoint: ...

    def ask(self, prompt_token_ids: Sequence[int], max_tokens: int) -> LiveAnswer:
        """The provider's answer. max_tokens: of the provider's tokens, not of this tokenizer's.

        Raises:
            CallLimitError, ConfigurationError, EngineError, RequestError: there is none.
        """
        ...

    def close(self) -> None: ...


def unpinned_identity(endpoint: Endpoint, protocol: str, sdk: str) -> EngineIdentity:
    """What is known of a live API. Equal digests mean an equal request, not equal bytes."""
    fields: dict[str, Any] = {
        "kind": "unpinned",
        "is_a_model": True,
        "promises_equal_bytes": False,
        "provider": endpoint.provider,
        "protocol": protocol,
        "model": endpoint.model,
        "base_url": endpoint.base_url,
        "pins": endpoint.pins.described(),
        "sdk": {sdk: version(sdk)},
        "tokenizer_digest": TOKENIZER.digest,
        "flags": {"max_model_len": MAX_PROMPT_AND_ANSWER_BYTES},
    }
    return EngineIdentity(fields)


def generate(
    engine: LiveEngine,
    prompt_token_ids: Sequence[int],
    max_tokens: int,
    grammar: Grammar | None,
    progress: Progress | None,
) -> Completion:
    """An answer as a completion: its tokens are the bytes of its text, and no log-probabilities belong to them.

    Raises:
        RequestError: a grammar is asked for; the live variant checks the free answer instead (`verify_view`).
    """
    if grammar is not None:
        raise RequestError(
            f"{engine.endpoint.name} cannot be held to a grammar: ask without one, and verify the answer's text"
        )
    check_generate(prompt_token_ids, max_tokens, engine.max_model_len, TOKENIZER.vocab_size)
    answer = engine.ask(prompt_token_ids, max_tokens)
    if progress is not None:
        progress(min(answer.output_tokens, max_tokens), max_tokens)
    end = (TOKENIZER.END,) if answer.finish_reason == "stop" else ()
    return Completion(
        token_ids=(*answer.text.encode("utf-8", "replace"), *end),
        text=answer.text,
        finish_reason=answer.finish_reason,
        logprobs=(),
        margins=(),
        num_prompt_tokens=len(prompt_token_ids),
        wall_s=answer.wall_s,
    )


def refuse_score(endpoint: Endpoint) -> NoReturn:
    """A live API has no teacher-forced pass.

    Raises:
        RequestError: always.
    """
    raise RequestError(
        f"{endpoint.name} cannot score a recorded completion: a live API gives no log-probabilities of tokens that it "
        "did not choose. Replay level R2 needs a pinned engine"
    )


def finish_reason(endpoint: Endpoint, stop_reason: str | None) -> FinishReason:
    """How an answer ended.

    Raises:
        EngineError: it is not an answer in text.
    """
    try:
        return FINISH_REASONS[stop_reason or ""]
    except KeyError:
        raise EngineError(
            f"{endpoint.name} ended with {stop_reason!r}, which is no answer in text", stop_reason=stop_reason
        ) from None
