"""What every engine checks before it runs a call, so that a bad call fails alike on all of them.

Nothing is lowered, truncated or repaired: a call that cannot be run as asked is an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from projection.errors import RequestError
from projection.prompt import check_fit


def check_generate(prompt_token_ids: Sequence[int], max_tokens: int, max_model_len: int, vocab_size: int) -> None:
    """Check a `generate` call.

    Raises:
        RequestError: an empty prompt, a token id that the model lacks, or a max_tokens that is not 1 or more.
        PromptTooLongError: prompt and max_tokens do not fit the context together.
    """
    if type(max_tokens) is not int or max_tokens < 1:
        raise RequestError(f"max_tokens must be a whole number from 1, not {max_tokens!r}", max_tokens=max_tokens)
    _check_prompt(prompt_token_ids, vocab_size)
    check_fit(len(prompt_token_ids), max_tokens, max_model_len)


def check_score(
    prompt_token_ids: Sequence[int], completion_token_ids: Sequence[int], max_model_len: int, vocab_size: int
) -> None:
    """Check a `score` call; the ids of the completion are evidence, to be judged and not to be refused.

    Raises:
        RequestError: an empty prompt or completion, or a prompt token id that the model lacks.
        PromptTooLongError: prompt and completion do not fit the context together.
    """
    if not completion_token_ids:
        raise RequestError("an empty completion has no position to score")
    _check_prompt(prompt_token_ids, vocab_size)
    check_fit(len(prompt_token_ids), len(completion_token_ids), max_model_len)


def _check_prompt(token_ids: Sequence[int], vocab_size: int) -> None:
    if not token_ids:
        raise RequestError("an empty prompt has nothing to continue")
    for position, token_id in enumerate(token_ids):
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise RequestError(
                f"prompt token {token_id!r} at {position} is not an id of this model (0 to {vocab_size - 1})",
                position=position,
            )
