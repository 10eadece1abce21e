"""The two texts of a prompt, back from its token ids: live APIs take text, and the core renders token ids.

The tokenizer is the scripted engine's: a token for each UTF-8 byte, and four that no text can spell. So `render_chat`
can be undone exactly, and the same `render_projection` serves every engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inference.scripted_engine import NUM_BYTES, ScriptedTokenizer
from projection.errors import RequestError


class ChatTexts(NamedTuple):
    """One system and one user turn."""

    system: str
    user: str


def read_chat(prompt_token_ids: Sequence[int]) -> ChatTexts:
    """What `ScriptedTokenizer.render_chat` was given.

    Raises:
        RequestError: these tokens are not one system and one user turn of that tokenizer.
    """
    name = ScriptedTokenizer
    specials = [(at, token_id) for at, token_id in enumerate(prompt_token_ids) if token_id >= NUM_BYTES]
    if [token_id for _, token_id in specials] != [name.SYSTEM, name.END, name.USER, name.END, name.ASSISTANT]:
        raise _unreadable("its special tokens are not those of one system and one user turn")
    system_at, between_at, user_at, end_at, assistant_at = (at for at, _ in specials)
    if (system_at, user_at, assistant_at, len(prompt_token_ids)) != (0, between_at + 1, end_at + 1, end_at + 2):
        raise _unreadable("it has text outside of its turns")
    return ChatTexts(_text(prompt_token_ids[system_at + 1 : between_at]), _text(prompt_token_ids[user_at + 1 : end_at]))


def _text(token_ids: Sequence[int]) -> str:
    try:
        return bytes(token_ids).decode("utf-8")
    except ValueError as exc:
        raise _unreadable(f"a turn is no UTF-8 text: {exc}") from exc


def _unreadable(why: str) -> RequestError:
    return RequestError(f"this prompt cannot be sent as text, {why}. Render it with the engine's own tokenizer")
