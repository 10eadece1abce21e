"""The scripted engine with free answers that a test chooses, as a function of what the prompt says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inference.scripted_engine import ScriptedEngine
from projection.grammar import Grammar

NAME = ScriptedEngine().tokenizer.SPECIALS[0]
"""A word that is one token of ten characters, so that an answer can outgrow its budget within its token limit."""


class SpeakingEngine(ScriptedEngine):
    """Says `say(prompt as text)` where no grammar binds it."""

    def __init__(self, say: Callable[[str], str], max_model_len: int = 262_144) -> None:
        super().__init__(max_model_len)
        self._say = say

    def script(self, prompt_token_ids: Sequence[int], grammar: Grammar | None) -> tuple[int, ...]:
        if grammar is not None:
            return super().script(prompt_token_ids, grammar)
        said = self._say(self.tokenizer.decode(prompt_token_ids))
        pieces = said.split(NAME)
        token_ids = [*pieces[0].encode()]
        for piece in pieces[1:]:
            token_ids += [self.tokenizer.SYSTEM, *piece.encode()]
        return (*token_ids, self.tokenizer.END)
