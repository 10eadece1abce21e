"""The projection call: (E, T, B) to a memory view, in one generation.

`project` is a pure function of its arguments and the engine: no state is kept between calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from projection.candidates import rank_candidates
from projection.engine import Completion, Engine, Progress, Tokenizer
from projection.errors import IncompleteError
from projection.events import LoggedEvent
from projection.grammar import Grammar
from projection.prompt import check_fit, render_projection
from projection.task import Task
from projection.view import MemoryView, verify_view
from projection.view_grammar import Profile, build_view_grammar


@dataclass(frozen=True, slots=True)
class Call:
    """One model call, complete: what went in, under which grammar, and what came out."""

    prompt_token_ids: tuple[int, ...]
    grammar: Grammar
    max_tokens: int
    completion: Completion


@dataclass(frozen=True, slots=True)
class Projection:
    """A memory view and the call that wrote it."""

    call: Call
    view: MemoryView


def prepare_projection(
    tokenizer: Tokenizer, events: Sequence[LoggedEvent], task: Task, budget_chars: int, profile: Profile
) -> tuple[list[int], Grammar]:
    """Prompt and grammar of the projection call; what replay level R1 recomputes.

    Raises:
        RequestError: no events, or a budget below the mandatory lines.
    """
    candidates = rank_candidates(events, task, profile.slot_candidates)
    grammar = build_view_grammar(events, task, budget_chars, candidates)
    return render_projection(tokenizer, events, task, budget_chars, candidates), grammar


def project(
    engine: Engine,
    events: Sequence[LoggedEvent],
    task: Task,
    budget_chars: int,
    profile: Profile,
    progress: Progress | None = None,
) -> Projection:
    """Project the log of a case into a verified memory view.

    Raises:
        BudgetTooSmallError, PromptTooLongError: before the engine is asked.
        IncompleteError: the completion ended on its token limit.
        VerificationError: the text breaks the closed world (a defect of the engine, never repaired).
    """
    prompt_token_ids, grammar = prepare_projection(engine.tokenizer, events, task, budget_chars, profile)
    call = run_call(engine, prompt_token_ids, grammar, progress)
    return Projection(call, verify_view(call.completion.text, events, task, budget_chars))


def run_call(engine: Engine, prompt_token_ids: Sequence[int], grammar: Grammar, progress: Progress | None) -> Call:
    """Generate one whole sentence of the grammar.

    Raises:
        PromptTooLongError: the answer might not fit behind the prompt.
        IncompleteError: it did not end by itself.
    """
    max_tokens = answer_room(len(prompt_token_ids), grammar, engine.max_model_len)
    completion = engine.generate(prompt_token_ids, max_tokens, grammar, progress)
    if completion.finish_reason != "stop":
        raise IncompleteError(
            f"the completion reached its limit of {max_tokens} tokens before the sentence ended; it is not used. "
            "Use a longer context (max_model_len) or a smaller budget.",
            max_tokens=max_tokens,
        )
    return Call(tuple(prompt_token_ids), grammar, max_tokens, completion)


def answer_room(num_prompt_tokens: int, grammar: Grammar, max_model_len: int) -> int:
    """The token limit of a call: one token for each character of the longest sentence, where the context has them.

    Half of that is the least that is accepted: tokens of one character are rare outside long numbers.
    """
    longest = grammar.max_chars + 1
    least = (longest + 1) // 2
    check_fit(num_prompt_tokens, least, max_model_len)
    return min(longest, max_model_len - num_prompt_tokens)
