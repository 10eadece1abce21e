"""The two calls of a sealed record as an engine can be asked them again: prompts and grammars, built from the log."""

from __future__ import annotations

from dataclasses import dataclass

from determinism.divergence import surface_of_call
from determinism.surface import Surface
from projection.case import SealedCase
from projection.decision import prepare_decision
from projection.engine import Tokenizer
from projection.grammar import Grammar
from projection.projector import prepare_projection
from projection.record import RecordedCall
from projection.task import load_task
from projection.view import verify_view
from projection.view_grammar import Profile


@dataclass(frozen=True, slots=True)
class RebuiltCall:
    """A recorded call beside what the log makes of it today."""

    name: str
    recorded: RecordedCall
    prompt_token_ids: tuple[int, ...]
    grammar: Grammar

    @property
    def surface(self) -> Surface:
        """What was recorded of the answer."""
        return surface_of_call(self.recorded)

    @property
    def has_recorded_prompt(self) -> bool:
        return list(self.prompt_token_ids) == self.recorded.prompt_token_ids


def rebuild_calls(sealed: SealedCase, tokenizer: Tokenizer) -> tuple[RebuiltCall, RebuiltCall]:
    """Both calls from the log, whatever the record says of prompts and grammars.

    Raises:
        RequestError, VerificationError: the log and the record do not hold at R0, so that nothing can be built.
    """
    content = sealed.record.content
    task = load_task(content.task, "the recorded task")
    view = verify_view(content.projection.text, sealed.events, task, content.budget.asked_chars)
    profile = Profile(content.profile.slot_candidates)
    prompt, grammar = prepare_projection(tokenizer, sealed.events, task, content.budget.asked_chars, profile)
    decision_prompt, decision_grammar = prepare_decision(tokenizer, task, view)
    return (
        RebuiltCall("projection", content.projection, tuple(prompt), grammar),
        RebuiltCall("decision", content.decision_call, tuple(decision_prompt), decision_grammar),
    )
