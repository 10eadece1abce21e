"""A decided case in a store, and what a forger with the project's own functions can make of its record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from inference.scripted_engine import ScriptedEngine, ScriptedTokenizer
from projection import log
from projection.case import SealedDecision, decide_case, replay_record
from projection.decision import prepare_decision, verify_decision
from projection.engine import Engine, Tokenizer
from projection.entry import Entry, Stream
from projection.events import Event
from projection.log import Store, append, append_record
from projection.projector import answer_room
from projection.record import AuditRecord, Content, view_digest
from projection.replay import Level, ReplayReport, ReplayTools
from projection.store_memory import MemoryStore
from projection.task import Task
from projection.view import verify_view
from projection.view_grammar import Profile
from tests.projection.cases import EVENTS, task
from tests.projection.trajectories import NOW, counted_salt

STREAM = Stream("acme", "LN-7")
BUDGET_CHARS = 1338
PROFILE = Profile(slot_candidates=2)


def fill_case(store: Store, now: str = NOW, first_salt: int = 0) -> None:
    """Append the small case's events; another `first_salt` gives other salts."""
    events = [logged.event for logged in EVENTS]
    append(store, STREAM, events, expected_position=0, now=now, salt=salts_from(first_salt))


def salts_from(first: int) -> Callable[[], bytes]:
    salt = counted_salt()
    for _ in range(first):
        salt()
    return salt


def decide_small_case(
    store: Store,
    engine: Engine | None = None,
    *,
    task: Task = task(),  # noqa: B008 - frozen
    budget_chars: int = BUDGET_CHARS,
    now: str = NOW,
    first_salt: int = 100,
) -> SealedDecision:
    return decide_case(
        store, STREAM, engine or ScriptedEngine(), task, budget_chars, PROFILE,
        now=lambda: now, salt=salts_from(first_salt),
    )  # fmt: skip


def tools_of(engine: Engine, tokenizer: Tokenizer | None = None) -> ReplayTools:
    return ReplayTools(lambda: tokenizer or engine.tokenizer, lambda: engine)


def replay_with(
    store: Store, record_id: str, level: Level = "R3", engine: Engine | None = None, tokenizer: Tokenizer | None = None
) -> ReplayReport:
    return replay_record(store, record_id, level, tools_of(engine or ScriptedEngine(), tokenizer))


def every_entry(store: Store) -> list[Entry]:
    return [entry for stream in store.streams() for entry in store.entries(stream)]


class EditedStore(MemoryStore):
    """A store whose rows somebody edits after they were written."""

    def __init__(self) -> None:
        super().__init__()
        self.edit: Callable[[list[Entry]], list[Entry]] = lambda entries: entries
        self.edited_stream = STREAM

    def entries(self, stream: Stream, *, after: int = 0, up_to: int | None = None) -> Iterator[Entry]:
        rows = list(super().entries(stream))
        rows = self.edit(rows) if stream == self.edited_stream else rows
        yield from (row for row in rows if row.position > after and (up_to is None or row.position <= up_to))


def filled_store() -> EditedStore:
    """The small case's events in a store to edit."""
    store = EditedStore()
    fill_case(store)
    return store


def seal(store: Store, record: AuditRecord) -> str:
    """Seal a record as `decide_case` does; returns its id."""
    number = len(list(store.entries(Stream(record.tenant_id, "audit"))))
    event = record.to_event(f"forged-{number}")
    return append_record(store, record.tenant_id, event, now=NOW, salt=salts_from(200 + number)).entry_hash


def seal_text(store: Store, text: str) -> str:
    """Seal any text as a record of the audit stream."""
    event = Event("forged-text", "dpm.decision.v1", "dpm", NOW, text)
    return append_record(store, STREAM.tenant_id, event, now=NOW, salt=salts_from(300)).entry_hash


def with_changes(record: AuditRecord, **changes: Any) -> AuditRecord:
    """The record with other members, nothing else adjusted."""
    return AuditRecord.model_validate(record.model_dump() | changes)


def with_content(record: AuditRecord, **changes: Any) -> AuditRecord:
    """The record with other members of its content and a content digest that fits."""
    content = Content.model_validate(record.content.model_dump() | changes)
    return with_changes(record, content=content.model_dump(), content_digest=content.digest)


def with_call(record: AuditRecord, call: str, **changes: Any) -> AuditRecord:
    """The record with other members of a call ("projection", "decision"), every digest adjusted."""
    name = "projection" if call == "projection" else "decision_call"
    recorded = getattr(record.content, name).model_dump() | changes
    extra = {"view_digest": view_digest(recorded["text"])} if call == "projection" else {}
    return with_content(record, **{name: recorded}, **extra)


def spoken(text: str) -> dict[str, Any]:
    """What a call's record says when the scripted tokenizer's engine had said this text."""
    token_ids = [*text.encode(), ScriptedTokenizer.END]
    return {
        "text": text,
        "token_ids": token_ids,
        "logprobs": [0.0] * len(token_ids),
        "margins": [None] * len(token_ids),
    }


def with_view(store: Store, record: AuditRecord, text: str, task: Task = task()) -> AuditRecord:  # noqa: B008
    """The record with another view, and a decision that keeps to it: a forger who fits everything but the model."""
    events = log.read(store, STREAM)
    view = verify_view(text, events, task, record.content.budget.asked_chars)
    prompt_token_ids, grammar = prepare_decision(ScriptedTokenizer(), task, view)
    forged = with_call(record, "projection", **spoken(text))
    forged = with_content(forged, budget=record.content.budget.model_dump() | {"used_chars": view.num_chars})
    forged = with_call(
        forged, "decision",
        prompt_token_ids=prompt_token_ids,
        grammar_digest=grammar.digest,
        max_tokens=answer_room(len(prompt_token_ids), grammar, ScriptedEngine().max_model_len),
    )  # fmt: skip
    return with_decision(store, forged, "Outcome: APPROVE\nRationale: It is so\n", task)


def with_decision(store: Store, record: AuditRecord, text: str, task: Task = task()) -> AuditRecord:  # noqa: B008
    """The record with another decision, parsed and digested anew."""
    content = record.content
    view = verify_view(content.projection.text, log.read(store, STREAM), task, content.budget.asked_chars)
    decision = verify_decision(text, task, view)
    reasons = [{"code": reason.code, "lines": list(reason.lines)} for reason in decision.reasons]
    parsed = {"outcome": decision.outcome, "reasons": reasons, "rationale": decision.rationale}
    return with_content(with_call(record, "decision", **spoken(text)), decision=parsed)
