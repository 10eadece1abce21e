"""Replay: recompute a sealed decision, level by level, and name the first thing that differs.

    R0  hash chain, digests, citations, budget                      needs nothing but the log
    R1  prompt token ids and grammars from the log                  needs the tokenizer
    R2  one teacher-forced prefill a call: every recorded token     needs the engine, one forward pass a call
        is the highest-scoring one that the grammar allows there
    R3  both calls generated again, compared byte for byte          needs the engine

Each level includes those before it. On another engine identity R2 and R3 are INCOMPARABLE, never a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from projection.decision import prepare_decision, verify_decision
from projection.engine import Completion, Engine, EngineIdentity, Tokenizer, Watch, unwatched
from projection.errors import PromptTooLongError, RequestError, TaskError, VerificationError
from projection.events import LoggedEvent, events_digest
from projection.grammar import Grammar
from projection.projector import answer_room, prepare_projection
from projection.record import AuditRecord, Content, RecordedCall, record_decision, template_digest, view_digest
from projection.task import Task, load_task
from projection.view import MemoryView, verify_view
from projection.view_grammar import Profile

Level = Literal["R0", "R1", "R2", "R3"]
LEVELS: tuple[Level, ...] = ("R0", "R1", "R2", "R3")
Verdict = Literal["PASS", "DRIFT", "INCOMPARABLE"]


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first point where a replay and its record part.

    what: the thing compared ("events_digest", "token_ids", ...). call: "projection", "decision" or None.
    index: the 0-based place in a list of tokens or numbers, or the log position for a broken chain.
    """

    level: Level
    what: str
    recorded: Any
    recomputed: Any
    call: str | None = None
    index: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay found. `levels` holds every level that was reached; `engine_kind` is the record's ("vllm", ...)."""

    verdict: Verdict
    levels: Mapping[Level, Verdict]
    first_divergence: Divergence | None
    engine_identity: str | None
    engine_kind: str | None = None


@dataclass(frozen=True, slots=True)
class ReplayTools:
    """What the levels need, made only when a level needs it."""

    tokenizer: Callable[[], Tokenizer]
    engine: Callable[[], Engine]
    watch: Watch = unwatched


class Diverged(Exception):
    """Carries a divergence out of the comparison that met it; a replay catches it and reports it."""

    def __init__(self, verdict: Verdict, divergence: Divergence) -> None:
        super().__init__(divergence.what)
        self.verdict: Verdict = verdict
        self.divergence = divergence


def replay(
    record: AuditRecord, events: Sequence[LoggedEvent], level: Level, tools: ReplayTools, log_break: Divergence | None
) -> ReplayReport:
    """Replay a record up to a level against the events the log holds.

    `log_break` is what verifying the hash chains found (None: they hold); it belongs to R0.
    """
    reached: dict[Level, Verdict] = {}
    try:
        task, view = _replay_r0(record, events, log_break)
        reached["R0"] = "PASS"
        if level >= "R1":
            grammars = _replay_r1(record, events, task, view, tools.tokenizer())
            reached["R1"] = "PASS"
        if level >= "R2":
            _replay_r2(record, grammars, _same_engine(record, "R2", tools), tools.watch)
            reached["R2"] = "PASS"
        if level >= "R3":
            _replay_r3(record, grammars, _same_engine(record, "R3", tools), tools.watch)
            reached["R3"] = "PASS"
    except Diverged as found:
        reached[found.divergence.level] = found.verdict
        return _report(found.verdict, reached, found.divergence, record)
    return _report("PASS", reached, None, record)


def _report(
    verdict: Verdict, levels: Mapping[Level, Verdict], found: Divergence | None, record: AuditRecord
) -> ReplayReport:
    kind = record.engine.get("kind")
    return ReplayReport(verdict, levels, found, record.content.engine_identity, str(kind) if kind else None)


def _replay_r0(
    record: AuditRecord, events: Sequence[LoggedEvent], log_break: Divergence | None
) -> tuple[Task, MemoryView]:
    """Everything that needs no tokenizer: chains, digests, and view and decision from their text alone."""
    if log_break is not None:
        raise Diverged("DRIFT", log_break)
    content = record.content
    task = _recorded_task(record)
    digests = {
        "num_events": (content.num_events, len(events)),
        "events_digest": (content.events_digest, events_digest(events)),
        "task_digest": (content.task_digest, task.digest),
        "engine_identity": (content.engine_identity, EngineIdentity(record.engine).digest),
        "view_digest": (content.view_digest, view_digest(content.projection.text)),
        "content_digest": (record.content_digest, content.digest),
    }
    for what, (recorded, recomputed) in digests.items():
        compare("R0", what, recorded, recomputed)
    try:
        view = verify_view(content.projection.text, events, task, content.budget.asked_chars)
        decision = verify_decision(content.decision_call.text, task, view)
    except VerificationError as exc:
        raise Diverged("DRIFT", Divergence("R0", "closed_world", "holds", "does not hold", detail=str(exc))) from exc
    again = record_decision(decision)
    compare("R0", "decision", content.decision.model_dump(mode="json"), again.model_dump(mode="json"))
    compare("R0", "used_chars", content.budget.used_chars, view.num_chars)
    return task, view


def _recorded_task(record: AuditRecord) -> Task:
    try:
        return load_task(record.content.task, "the recorded task")
    except TaskError as exc:
        raise Diverged("DRIFT", Divergence("R0", "task", "a task", "none", detail=exc.message)) from exc


def _replay_r1(
    record: AuditRecord, events: Sequence[LoggedEvent], task: Task, view: MemoryView, tokenizer: Tokenizer
) -> dict[str, Grammar]:
    """Prompts, grammars and texts again from the log.

    A completion without its end of turn would be a beginning of what the model said, and R2 could not tell.
    """
    content = record.content
    recorded_tokenizer = record.engine.get("tokenizer_digest")
    compare("R1", "tokenizer_digest", recorded_tokenizer, tokenizer.digest, verdict="INCOMPARABLE")
    compare("R1", "template_digest", content.template_digest, template_digest(), verdict="INCOMPARABLE")
    prepared = _prepare_calls(content, events, task, view, tokenizer)
    for call, recorded in _calls(record).items():
        prompt_token_ids, grammar = prepared[call]
        compare_lists("R1", "prompt_token_ids", call, recorded.prompt_token_ids, prompt_token_ids)
        compare("R1", "grammar_digest", recorded.grammar_digest, grammar.digest, call=call)
        compare("R1", "text", recorded.text, _decode(tokenizer, recorded.token_ids, call), call=call)
        compare("R1", "end of turn", _decode(tokenizer, recorded.token_ids[-1:], call), "", call=call)
    return {call: grammar for call, (_, grammar) in prepared.items()}


def _prepare_calls(
    content: Content, events: Sequence[LoggedEvent], task: Task, view: MemoryView, tokenizer: Tokenizer
) -> dict[str, tuple[list[int], Grammar]]:
    """Prompt and grammar of each call. What cannot be built from the log was not built from it when it was sealed."""
    profile = Profile(content.profile.slot_candidates)
    try:
        return {
            "projection": prepare_projection(tokenizer, events, task, content.budget.asked_chars, profile),
            "decision": prepare_decision(tokenizer, task, view),
        }
    except TaskError:
        raise  # a pattern that was too slow today says nothing about the record
    except RequestError as exc:
        found = Divergence("R1", "prompts and grammars", "built", "cannot be built", detail=exc.message)
        raise Diverged("DRIFT", found) from exc


def _decode(tokenizer: Tokenizer, token_ids: Sequence[int], call: str) -> str:
    """The text of recorded tokens, which may be anything; an end-of-turn token alone has none."""
    try:
        return tokenizer.decode(token_ids)
    except RequestError as exc:
        found = Divergence("R1", "token_ids", "a text", "no text", call, detail=exc.message)
        raise Diverged("DRIFT", found) from exc


def _replay_r2(record: AuditRecord, grammars: Mapping[str, Grammar], engine: Engine, watch: Watch) -> None:
    """Each recorded token is the best that the grammar allows, judged by one prefill over prompt and completion."""
    for call, recorded in _calls(record).items():
        watch(f"R2 {call}")
        _compare_room(recorded, grammars[call], engine.max_model_len, call)
        score = engine.score(recorded.prompt_token_ids, recorded.token_ids, grammars[call])
        best = [position.best_token_id for position in score.positions]
        compare_lists("R2", "token_ids", call, recorded.token_ids, best)


def _compare_room(recorded: RecordedCall, grammar: Grammar, max_model_len: int, call: str) -> None:
    """The call had the token limit that this engine gives it, and kept it."""
    num_prompt_tokens, num_tokens = len(recorded.prompt_token_ids), len(recorded.token_ids)
    try:
        max_tokens = answer_room(num_prompt_tokens, grammar, max_model_len)
    except PromptTooLongError as exc:
        found = Divergence("R2", "prompt_token_ids length", num_prompt_tokens, max_model_len, call, detail=exc.message)
        raise Diverged("DRIFT", found) from exc
    compare("R2", "max_tokens", recorded.max_tokens, max_tokens, call=call)
    if num_tokens > max_tokens:
        detail = f"the call could give {max_tokens} tokens at most"
        raise Diverged("DRIFT", Divergence("R2", "token_ids length", num_tokens, max_tokens, call, detail=detail))


def _replay_r3(record: AuditRecord, grammars: Mapping[str, Grammar], engine: Engine, watch: Watch) -> None:
    """Both calls again, bit for bit."""
    for call, recorded in _calls(record).items():
        again = engine.generate(recorded.prompt_token_ids, recorded.max_tokens, grammars[call], watch(f"R3 {call}"))
        compare_lists("R3", "token_ids", call, recorded.token_ids, again.token_ids)
        compare("R3", "text", recorded.text, again.text, call=call)
        compare("R3", "finish_reason", recorded.finish_reason, again.finish_reason, call=call)
        for what, recorded_values, values in _numbers(recorded, again):
            compare_lists("R3", what, call, recorded_values, values)


def _numbers(recorded: RecordedCall, again: Completion) -> list[tuple[str, Sequence[Any], Sequence[Any]]]:
    return [("logprobs", recorded.logprobs, again.logprobs), ("margins", recorded.margins, again.margins)]


def _same_engine(record: AuditRecord, level: Level, tools: ReplayTools) -> Engine:
    """The engine, if it is the one of the record."""
    engine = tools.engine()
    recorded, here = record.content.engine_identity, engine.identity.digest
    if recorded != here:
        fields = differing_fields(record.engine, engine.identity.fields)
        detail = "the engines differ in " + ", ".join(fields)
        raise Diverged("INCOMPARABLE", Divergence(level, "engine_identity", recorded, here, detail=detail))
    return engine


def differing_fields(recorded: Mapping[str, Any], here: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of the identity fields in which two engines differ, sorted."""
    names = []
    for key in sorted(recorded.keys() | here.keys()):
        a, b = recorded.get(key), here.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            names += differing_fields(a, b, f"{prefix}{key}.")
        elif a != b:
            names.append(f"{prefix}{key}")
    return names


def _calls(record: AuditRecord) -> dict[str, RecordedCall]:
    return {"projection": record.content.projection, "decision": record.content.decision_call}


def compare(
    level: Level, what: str, recorded: Any, recomputed: Any, *, call: str | None = None, verdict: Verdict = "DRIFT"
) -> None:
    if recorded != recomputed:
        raise Diverged(verdict, Divergence(level, what, recorded, recomputed, call))


def compare_lists(level: Level, what: str, call: str, recorded: Sequence[Any], recomputed: Sequence[Any]) -> None:
    """Compare element by element, so that the divergence names the first differing index."""
    index = first_other(recorded, recomputed)
    if index is None:
        return
    if index < min(len(recorded), len(recomputed)):
        raise Diverged("DRIFT", Divergence(level, what, recorded[index], recomputed[index], call, index))
    raise Diverged("DRIFT", Divergence(level, f"{what} length", len(recorded), len(recomputed), call, index))


def first_other(one: Sequence[Any], other: Sequence[Any]) -> int | None:
    """The first index at which two sequences differ; one of them may end there. None where they are equal."""
    shorter = min(len(one), len(other))
    end = None if len(one) == len(other) else shorter
    return next((index for index in range(shorter) if one[index] != other[index]), end)
