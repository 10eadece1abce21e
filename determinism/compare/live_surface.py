"""The projection, asked of a model that no grammar holds: the same prompt, a free answer, checked from its text alone.

Promises that a live model is asked exactly what the pinned one is asked, and judged by the same `verify_view`. What it
says is never repaired, with one exception that is only for the check: providers cut the last line feed off, so one is
added where there is none. The surface that is hashed is the answer as it came.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from inference.live_calls import LiveAnswer
from inference.live_engine import LiveEngine
from projection.engine import FinishReason
from projection.errors import VerificationError
from projection.events import LoggedEvent
from projection.prompt import render_projection
from projection.task import Task
from projection.view import verify_view


@dataclass(frozen=True, slots=True)
class Question:
    """What is projected: a case of the examples, its log, its task, and the view's budget."""

    case: str
    events: tuple[LoggedEvent, ...]
    task: Task
    budget_chars: int


@dataclass(frozen=True, slots=True)
class LiveSurface:
    """An answer and its verdict. why_invalid: None where the text is a view that holds against the log."""

    answer: LiveAnswer
    why_invalid: str | None


@dataclass(frozen=True, slots=True)
class Validity:
    """How many answers were views, and why the others were none, the commonest reason first."""

    num_valid: int
    num_invalid: int
    reasons: tuple[tuple[str, int], ...]


def ask_surface(engine: LiveEngine, question: Question, max_tokens: int) -> LiveSurface:
    """Ask a live model for the projection; raises as `LiveEngine.ask`."""
    prompt = render_projection(engine.tokenizer, question.events, question.task, question.budget_chars)
    answer = engine.ask(prompt, max_tokens)
    return LiveSurface(answer, why_invalid(answer.text, answer.finish_reason, question))


def why_invalid(text: str, finish_reason: FinishReason, question: Question) -> str | None:
    """Why a free answer is no memory view of this log; None where it is one."""
    if finish_reason != "stop":
        return "it ended on its token limit"
    try:
        verify_view(text if text.endswith("\n") else f"{text}\n", question.events, question.task, question.budget_chars)
    except VerificationError as error:
        return error.message
    return None


def count_validity(reasons: Iterable[str | None]) -> Validity:
    """Count verdicts. Equal reasons count together."""
    counted = Counter(reasons)
    num_valid = counted.pop(None, 0)
    invalid: Sequence[tuple[str, int]] = [(reason, count) for reason, count in counted.most_common() if reason]
    return Validity(num_valid, sum(count for _, count in invalid), tuple(invalid))
