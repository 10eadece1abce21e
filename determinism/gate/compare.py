"""Where a case parts from its golden: the first difference, and what caused it where the inputs changed.

Three levels, as in a replay: R1 inputs, prompts and grammars; R2 each recorded token against the best allowed one of
one forward pass; R3 both calls again, bit for bit. What is compared is told in words that stand on one line: text of a
case or of a model is quoted, never shown raw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from determinism.gate.golden import CallName, Golden, Inputs, Question
from determinism.surface import Difference, Surface, first_difference
from projection.engine import Score, Tokenizer
from projection.errors import RequestError
from projection.prompt import visible
from projection.replay import first_other

GateLevel = Literal["R1", "R2", "R3"]
GATE_LEVELS: tuple[GateLevel, ...] = ("R1", "R2", "R3")


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first point where a case and its golden part.

    what: "prompt_token_ids", "grammar", "max_tokens", "token_ids", "logprobs", "margins", "text" or "finish_reason".
    index: 0-based token of the call's prompt or answer, or character of its text; None where the whole differs.
    recorded, found: for a person, on one line. cause: the input or circumstance that changed; "" where none did.
    """

    level: GateLevel
    call: CallName
    what: str
    index: int | None
    recorded: str
    found: str
    cause: str = ""

    def __str__(self) -> str:
        cause = f"{self.cause}; " if self.cause else ""
        place = "" if self.index is None else f" at {self.index}"
        return f"{self.level}: {cause}{self.call} {self.what}{place}: recorded {self.recorded}, found {self.found}"


def find_changed_input(golden: Inputs, found: Inputs) -> str:
    """The first input that is not the approved one, in words; "" when all are."""
    for position, (old, new) in enumerate(zip(golden.events, found.events, strict=False), start=1):
        if old != new:
            return f"event {position} changed"
    if len(golden.events) != len(found.events):
        position = min(len(golden.events), len(found.events)) + 1
        return f"event {position} {'was added' if len(found.events) >= position else 'is gone'}"
    for key in sorted({*golden.task, *found.task}):
        if golden.task.get(key) != found.task.get(key):
            return f"task {key} changed"
    for name in ("budget_chars", "slot_candidates"):
        old, new = getattr(golden, name), getattr(found, name)
        if old != new:
            return f"{name} changed from {old} to {new}"
    return "" if golden.template == found.template else "the words of the prompt template changed"


def compare_prompt(
    call: CallName, golden: Question, found: Question, cause: str, tokenizer: Tokenizer
) -> Divergence | None:
    """R1 of one call: prompt, then grammar, then token limit. With a `cause` there is always a divergence."""
    index = first_other(golden.prompt_token_ids, found.prompt_token_ids)
    if index is not None:
        recorded, new = (_token_at(ids, index, tokenizer) for ids in (golden.prompt_token_ids, found.prompt_token_ids))
        return Divergence("R1", call, "prompt_token_ids", index, recorded, new, cause)
    if golden.grammar_digest != found.grammar_digest:
        return Divergence("R1", call, "grammar", None, golden.grammar_digest, found.grammar_digest, cause)
    if golden.max_tokens != found.max_tokens:
        return Divergence("R1", call, "max_tokens", None, str(golden.max_tokens), str(found.max_tokens), cause)
    same = f"{len(found.prompt_token_ids)} tokens"
    return Divergence("R1", call, "prompt_token_ids", None, same, "the same tokens", cause) if cause else None


def compare_score(call: CallName, golden: Surface, score: Score, tokenizer: Tokenizer) -> Divergence | None:
    """R2 of one call: the first recorded token that is not the best allowed one."""
    recorded = golden.token_ids
    best = [position.best_token_id for position in score.positions]
    index = first_other(recorded, best)
    if index is None:
        return None
    return Divergence(
        "R2", call, "token_ids", index, _token_at(recorded, index, tokenizer), _token_at(best, index, tokenizer)
    )


def compare_surface(
    call: CallName, golden: Surface, found: Surface, tokenizer: Tokenizer, cause: str = ""
) -> Divergence | None:
    """R3 of one call: the first differing token, else the first differing number, else what differs of the whole."""
    difference = first_difference(golden, found)
    if difference is None:
        return None
    recorded, new = _words(difference, golden, found, tokenizer)
    return Divergence("R3", call, difference.what, difference.index, recorded, new, cause)


def first_divergence(golden: Golden, found: Golden, tokenizer: Tokenizer) -> Divergence | None:
    """Where one golden of a case parts from another of the same engine; None if nowhere."""
    cause = find_changed_input(golden.inputs, found.inputs)
    for call, old in golden.calls.items():
        new = found.calls[call]
        asked = compare_prompt(call, old.asked, new.asked, cause, tokenizer)
        divergence = asked or compare_surface(call, old.answer, new.answer, tokenizer)
        if divergence is not None:
            return divergence
    return None


def _words(difference: Difference, golden: Surface, found: Surface, tokenizer: Tokenizer) -> tuple[str, str]:
    index = difference.index
    if index is None or difference.what == "text":
        return repr(difference.reference), repr(difference.found)
    recorded, new = (_token_at(surface.token_ids, index, tokenizer) for surface in (golden, found))
    if difference.what == "token_ids":
        return recorded, new
    return f"{difference.reference} of {recorded}", f"{difference.found} of {new}"


def _token_at(token_ids: Sequence[int], index: int, tokenizer: Tokenizer) -> str:
    """A token as a person can read it: its text, quoted, and its id."""
    if index >= len(token_ids):
        return "the end"
    token_id = token_ids[index]
    if token_id < 0:
        return "no allowed token"
    try:
        text = tokenizer.decode([token_id])
    except RequestError:
        return f"token {token_id}"
    return f"{visible(text)!r} (token {token_id})" if text else f"token {token_id}, which has no text"
