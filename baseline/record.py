"""The record of a case decided under any memory architecture: what an auditor must keep to see it again.

It holds every call complete, so it grows with their number: that is the paper's audit surface (its Table 4), and
`measure_surface` counts it. `content_digest` covers what a replay must reproduce. It is a benchmark's record, kept with
its results; a decision of the product is an `AuditRecord` in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from baseline.memory import NOTHING, Architecture, MemoryCall
from baseline.run import ArchitectureRun
from baseline.summary import SUMMARY_SYSTEM
from projection.canonical import canonical_bytes, value_digest
from projection.engine import Completion, Engine, Tokenizer
from projection.events import LoggedEvent, events_digest
from projection.projector import Call
from projection.record import (
    RecordedBudget,
    RecordedDecision,
    RecordedProfile,
    parse_canonical,
    record_decision,
    template_digest,
)
from projection.task import Task
from projection.view_grammar import Profile

BASELINE_TEMPLATE_VERSION = 1  # raise it when the layout of a summary prompt, a memory line or a query changes
DECISION = "decision"


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class RecordedAnswer(_Frozen):
    """One model call as it is kept. A free summary may have ended on its token limit; no other call may."""

    name: str
    prompt_token_ids: list[int]
    grammar_digest: str | None
    max_tokens: int
    token_ids: list[int]
    text: str
    finish_reason: Literal["stop", "length"]
    logprobs: list[float]
    margins: list[float | None]


class BaselineContent(_Frozen):
    """What a replay must reproduce, bit for bit."""

    architecture: str
    parameters: dict[str, Any]
    events_digest: str
    num_events: int
    task: dict[str, Any]
    task_digest: str
    template_digest: str
    profile: RecordedProfile
    budget: RecordedBudget
    engine_identity: str
    max_model_len: int
    memory_calls: list[RecordedAnswer]
    memory_text: str
    decision_call: RecordedAnswer
    decision: RecordedDecision

    @cached_property
    def digest(self) -> str:
        return value_digest("dpm/baseline-content/v1", self.model_dump(mode="json"))

    @property
    def calls(self) -> list[RecordedAnswer]:
        """Every call in order, the decision's last."""
        return [*self.memory_calls, self.decision_call]


class BaselineRecord(_Frozen):
    """A decided case. `engine` is the identity in full; `wall_s` are the seconds of each call, the decision's last."""

    v: Literal[1]
    content: BaselineContent
    content_digest: str
    engine: dict[str, Any]
    wall_s: list[float]

    def to_bytes(self) -> bytes:
        """The canonical bytes that are kept."""
        return canonical_bytes(self.model_dump(mode="json"))


@dataclass(frozen=True, slots=True)
class AuditSurface:
    """What an auditor must keep and look at: calls, and the UTF-8 bytes of their prompts and completions as text.

    record_bytes: of the whole record, with token ids and log-probabilities.
    """

    num_calls: int
    prompt_bytes: int
    completion_bytes: int
    record_bytes: int


def build_baseline_record(
    run: ArchitectureRun,
    architecture: Architecture,
    engine: Engine,
    events: Sequence[LoggedEvent],
    task: Task,
    profile: Profile,
) -> BaselineRecord:
    """Collect a decided case into a record."""
    built, identity = run.built, engine.identity
    content = BaselineContent(
        architecture=architecture.name,
        parameters=architecture.parameters,
        events_digest=events_digest(events),
        num_events=len(events),
        task=task.model_dump(mode="json"),
        task_digest=task.digest,
        template_digest=baseline_template_digest(),
        profile=RecordedProfile(slot_candidates=profile.slot_candidates),
        budget=RecordedBudget(asked_chars=run.budget_chars, used_chars=len(built.text)),
        engine_identity=identity.digest,
        max_model_len=engine.max_model_len,
        memory_calls=[_record_answer(call.name, call) for call in built.calls],
        memory_text=built.text,
        decision_call=_record_answer(DECISION, run.decision.call),
        decision=record_decision(run.decision.decision),
    )
    wall_s = [call.completion.wall_s for call in built.calls] + [run.decision.call.completion.wall_s]
    return BaselineRecord(
        v=1,
        content=content,
        content_digest=content.digest,
        engine=dict(identity.fields),
        wall_s=[round(seconds, 3) for seconds in wall_s],
    )


def parse_baseline_record(text: str) -> BaselineRecord:
    """Read a kept record; its bytes are not trusted.

    Raises:
        VerificationError: not a record of this format, or not in canonical form.
    """
    return parse_canonical(BaselineRecord, text, "this is no baseline record of format 1")


def measure_surface(record: BaselineRecord, tokenizer: Tokenizer) -> AuditSurface:
    """Count what the paper's Table 4 counts, and the bytes behind it."""
    calls = record.content.calls
    return AuditSurface(
        num_calls=len(calls),
        prompt_bytes=sum(len(tokenizer.decode(call.prompt_token_ids).encode("utf-8")) for call in calls),
        completion_bytes=sum(len(call.text.encode("utf-8")) for call in calls),
        record_bytes=len(record.to_bytes()),
    )


def recorded_completion(recorded: RecordedAnswer) -> Completion:
    """The completion that was recorded; its seconds are not part of the evidence."""
    return Completion(
        token_ids=tuple(recorded.token_ids),
        text=recorded.text,
        finish_reason=recorded.finish_reason,
        logprobs=tuple(recorded.logprobs),
        margins=tuple(recorded.margins),
        num_prompt_tokens=len(recorded.prompt_token_ids),
        wall_s=0.0,
    )


def baseline_template_digest() -> str:
    """Digest of the words and limits that are ours: those of the projection, and those of the baselines."""
    constants = {
        "version": BASELINE_TEMPLATE_VERSION,
        "projection": template_digest(),
        "summary_system": SUMMARY_SYSTEM,
        "nothing": NOTHING,
    }
    return value_digest("dpm/baseline-template/v1", constants)


def _record_answer(name: str, call: MemoryCall | Call) -> RecordedAnswer:
    completion = call.completion
    return RecordedAnswer(
        name=name,
        prompt_token_ids=list(call.prompt_token_ids),
        grammar_digest=call.grammar.digest if call.grammar else None,
        max_tokens=call.max_tokens,
        token_ids=list(completion.token_ids),
        text=completion.text,
        finish_reason=completion.finish_reason,
        logprobs=list(completion.logprobs),
        margins=list(completion.margins),
    )
