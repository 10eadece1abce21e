"""The audit record: everything that a replay needs, sealed as one entry of the tenant's `audit` stream.

Two digests belong to a record. `content_digest` covers what a replay must reproduce: the log's content, the task, the
budget, the engine, both calls, the view and the decision; it is equal for equal (E, T, B) on equal engines, whoever
runs it and whenever. The hash of the entry that holds the record covers the rest too (which log, which head, when); it
is the record's id. The bytes are specified in `docs/format.md`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from projection import __version__, prompt, quotes, view_grammar
from projection.canonical import canonical_bytes, tagged_digest, value_digest
from projection.decision import Decision, DecisionResult
from projection.engine import EngineIdentity
from projection.errors import IncompleteError, RequestError, VerificationError
from projection.events import Event, LoggedEvent, events_digest
from projection.projector import Call, Projection
from projection.task import Task
from projection.view_grammar import Profile

RECORD_TYPE = "dpm.decision.v1"
RECORD_SOURCE = "dpm"
TEMPLATE_VERSION = 2  # raise it when the layout of a prompt or grammar changes

_AnyRecord = TypeVar("_AnyRecord", bound=BaseModel)


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class RecordedCall(_Frozen):
    """One model call as it is kept; token ids are the evidence, `text` their decoding."""

    prompt_token_ids: list[int]
    grammar_digest: str
    max_tokens: int
    token_ids: list[int]
    text: str
    finish_reason: Literal["stop"]
    logprobs: list[float]
    margins: list[float | None]

    @property
    def min_margin(self) -> float | None:
        """The smallest top-1/top-2 margin among allowed tokens: the call's distance from flipping."""
        return min((margin for margin in self.margins if margin is not None), default=None)


class RecordedReason(_Frozen):
    code: str
    lines: list[int]


class RecordedDecision(_Frozen):
    outcome: str
    reasons: list[RecordedReason]
    rationale: str


class RecordedBudget(_Frozen):
    """Characters asked for and used by the view."""

    asked_chars: int
    used_chars: int


class RecordedProfile(_Frozen):
    slot_candidates: int | None


class Content(_Frozen):
    """What a replay must reproduce, bit for bit."""

    events_digest: str
    num_events: int
    task: dict[str, Any]
    task_digest: str
    template_digest: str
    profile: RecordedProfile
    budget: RecordedBudget
    engine_identity: str
    projection: RecordedCall
    view_digest: str
    decision_call: RecordedCall
    decision: RecordedDecision

    @cached_property
    def digest(self) -> str:
        return value_digest("dpm/content/v1", self.model_dump(mode="json"))


class LogHead(_Frozen):
    """The last entry that was read."""

    position: int
    entry_hash: str


class AuditRecord(_Frozen):
    """A sealed decision. `engine` is the identity in full; `wall_s` are the seconds of the two calls.

    The entry's hash covers all of it; the content digest covers `content` alone.
    """

    v: Literal[1]
    tenant_id: str
    case_id: str
    log_head: LogHead
    content: Content
    content_digest: str
    engine: dict[str, Any]
    wall_s: list[float]
    dpm_version: str
    sealed_at: str

    def to_bytes(self) -> bytes:
        """The canonical bytes that are sealed."""
        return canonical_bytes(self.model_dump(mode="json"))

    def to_event(self, event_id: str) -> Event:
        """The record as an event of the audit stream."""
        return Event(event_id, RECORD_TYPE, RECORD_SOURCE, self.sealed_at, self.to_bytes().decode("utf-8"))


def build_record(
    *,
    tenant_id: str,
    case_id: str,
    log_head: LogHead,
    events: Sequence[LoggedEvent],
    task: Task,
    budget_chars: int,
    profile: Profile,
    identity: EngineIdentity,
    projection: Projection,
    decision: DecisionResult,
    sealed_at: str,
) -> AuditRecord:
    """Collect a decided case into a record; `sealed_at` is RFC 3339."""
    content = Content(
        events_digest=events_digest(events),
        num_events=len(events),
        task=task.model_dump(mode="json"),
        task_digest=task.digest,
        template_digest=template_digest(),
        profile=RecordedProfile(slot_candidates=profile.slot_candidates),
        budget=RecordedBudget(asked_chars=budget_chars, used_chars=projection.view.num_chars),
        engine_identity=identity.digest,
        projection=record_call(projection.call),
        view_digest=view_digest(projection.view.text),
        decision_call=record_call(decision.call),
        decision=record_decision(decision.decision),
    )
    return AuditRecord(
        v=1,
        tenant_id=tenant_id,
        case_id=case_id,
        log_head=log_head,
        content=content,
        content_digest=content.digest,
        engine=dict(identity.fields),
        wall_s=[round(c.call.completion.wall_s, 3) for c in (projection, decision)],
        dpm_version=__version__,
        sealed_at=sealed_at,
    )


def record_decision(decision: Decision) -> RecordedDecision:
    """A parsed decision as it is kept."""
    return RecordedDecision(
        outcome=decision.outcome,
        reasons=[RecordedReason(code=reason.code, lines=list(reason.lines)) for reason in decision.reasons],
        rationale=decision.rationale,
    )


def record_call(call: Call) -> RecordedCall:
    """A finished call as it is kept.

    Raises:
        IncompleteError: it did not end by itself.
    """
    completion = call.completion
    if completion.finish_reason != "stop":
        raise IncompleteError("a completion that ended on its token limit is neither view nor decision")
    return RecordedCall(
        prompt_token_ids=list(call.prompt_token_ids),
        grammar_digest=call.grammar.digest,
        max_tokens=call.max_tokens,
        token_ids=list(completion.token_ids),
        text=completion.text,
        finish_reason=completion.finish_reason,
        logprobs=list(completion.logprobs),
        margins=list(completion.margins),
    )


def parse_record(text: str) -> AuditRecord:
    """Read a sealed record; its bytes are not trusted.

    Raises:
        VerificationError: not a record of this format, or not in canonical form.
    """
    return parse_canonical(AuditRecord, text, "the entry holds no audit record of format 1")


def parse_canonical(kind: type[_AnyRecord], text: str, complaint: str) -> _AnyRecord:
    """Read a record of any kind from bytes that are not trusted. complaint: what is said where they are not one.

    Raises:
        VerificationError: not such a record, or not in canonical form.
    """
    try:
        record = kind.model_validate(json.loads(text))
        is_canonical = canonical_bytes(record.model_dump(mode="json")) == text.encode("utf-8")
    except ValidationError as exc:
        problem = exc.errors(include_url=False)[0]
        place = ".".join(map(str, problem["loc"]))
        raise VerificationError(f"{complaint}: {place}: {problem['msg']}") from exc
    except (ValueError, RecursionError, RequestError) as exc:
        raise VerificationError(f"{complaint}: {exc}") from exc
    if not is_canonical:
        raise VerificationError("the record is not in canonical form")
    return record


def view_digest(text: str) -> str:
    """Digest of a view's text."""
    return tagged_digest("dpm/view/v1", text.encode("utf-8"))


def template_digest() -> str:
    """Digest of the words and limits of prompts and grammars that are ours and not the caller's."""
    constants = {
        "version": TEMPLATE_VERSION,
        "projection_system": prompt.PROJECTION_SYSTEM,
        "decision_system": prompt.DECISION_SYSTEM,
        "openers": list(view_grammar.OPENERS),
        "intro_words": list(view_grammar.INTRO_WORDS),
        "word_chars": [view_grammar.LETTERS, view_grammar.WORD_MARKS],
        "own_words_chars": [view_grammar.STATEMENT_CHARS, view_grammar.WORD_END_CHARS],
        "max_own_anchor_chars": view_grammar.MAX_OWN_ANCHOR_CHARS,
        "quote_chars": [quotes.MIN_QUOTE_CHARS, quotes.MAX_QUOTE_CHARS],
        "max_lines": view_grammar.MAX_LINES,
        "listed_candidates": prompt.LISTED_CANDIDATES,
    }
    return value_digest("dpm/template/v1", constants)
