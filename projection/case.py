"""The two jobs of the product, end to end: decide a case of the log and seal it; replay a sealed decision.

Everything is read from and written to a `Store`; clock and randomness are arguments. A job that fails leaves the log as
it was: the only write is the record's, at the very end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from projection import log
from projection.decision import decide
from projection.engine import Engine, Tokenizer, Watch, unwatched
from projection.entry import Entry, Head, Salt, Stream
from projection.errors import RequestError, VerificationError
from projection.events import AUDIT_CASE_ID, LoggedEvent
from projection.log import Store
from projection.projector import answer_room, prepare_projection, project
from projection.record import AuditRecord, LogHead, build_record, parse_record
from projection.replay import Divergence, Level, ReplayReport, ReplayTools, replay
from projection.task import Task
from projection.view import MemoryView, Omission, find_omissions
from projection.view_grammar import Profile


@dataclass(frozen=True, slots=True)
class SealedDecision:
    """A decided case. `record_id` is the hash of the entry that holds the record.

    missing_required: names of the fields that the task requires and the view gives as unknown.
    """

    record_id: str
    record: AuditRecord
    view: MemoryView
    omissions: tuple[Omission, ...]
    missing_required: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SealedCase:
    """A record, and what the log holds of its case: all that `replay.replay` needs besides an engine.

    log_break: what is wrong with the case's chain or payloads; then there are no events.
    """

    record: AuditRecord
    events: Sequence[LoggedEvent]
    log_break: Divergence | None


def check_case(
    store: Store,
    stream: Stream,
    tokenizer: Tokenizer,
    task: Task,
    budget_chars: int,
    profile: Profile,
    max_model_len: int,
) -> None:
    """Refuse what `decide_case` would refuse, before an engine is started: events, budget, and room for the prompt.

    Raises:
        RequestError, VerificationError: as `decide_case`.
    """
    events = _read_case(store, stream, store.head(stream).position)
    prompt_token_ids, grammar = prepare_projection(tokenizer, events, task, budget_chars, profile)
    answer_room(len(prompt_token_ids), grammar, max_model_len)


def decide_case(
    store: Store,
    stream: Stream,
    engine: Engine,
    task: Task,
    budget_chars: int,
    profile: Profile,
    *,
    now: Callable[[], str],
    salt: Salt,
    watch: Watch = unwatched,
) -> SealedDecision:
    """Project a case's whole log, decide from the view, seal the record.

    now: the current time, RFC 3339. salt: 32 fresh random bytes. watch: told of "projection" and "decision".

    Raises:
        RequestError: no events, a budget or a log that does not fit, a task that cannot be used.
        EngineError: the engine failed, or a completion did not end by itself.
        VerificationError: the log's chain is broken, or an answer breaks the closed world.
    """
    head = store.head(stream)
    events = _read_case(store, stream, head.position)
    projection = project(engine, events, task, budget_chars, profile, watch("projection"))
    decision = decide(engine, task, projection.view, watch("decision"))
    record = build_record(
        tenant_id=stream.tenant_id,
        case_id=stream.case_id,
        log_head=LogHead(position=head.position, entry_hash=head.entry_hash),
        events=events,
        task=task,
        budget_chars=budget_chars,
        profile=profile,
        identity=engine.identity,
        projection=projection,
        decision=decision,
        sealed_at=now(),
    )
    event = record.to_event(f"decision-{salt().hex()[:32]}")
    entry = log.append_record(store, stream.tenant_id, event, now=record.sealed_at, salt=salt)
    required = {field.name for field in task.fields if field.required}
    missing = tuple(fact.name for fact in projection.view.facts if fact.value is None and fact.name in required)
    return SealedDecision(entry.entry_hash, record, projection.view, find_omissions(projection.view, events), missing)


def _read_case(store: Store, stream: Stream, position: int) -> list[LoggedEvent]:
    """The events of a case that can be decided."""
    if stream.case_id == AUDIT_CASE_ID:
        raise RequestError(f"the stream {AUDIT_CASE_ID!r} holds sealed records, not a case: name another case")
    events = log.read(store, stream, up_to=position)
    if not events:
        raise RequestError(f"case {stream.case_id!r} of tenant {stream.tenant_id!r} has no events; append some first")
    return events


def replay_record(store: Store, record_id: str, level: Level, tools: ReplayTools) -> ReplayReport:
    """Replay the sealed record with this id (or an unambiguous beginning of it).

    Raises:
        NotFoundError: no such record. RequestError: several begin so.
        EngineError: the engine cannot be started or fails.
    """
    entry = log.find_record(store, record_id)
    found = find_chain_break(store, entry.stream, entry.head, "audit stream") or read_sealed_case(store, entry)
    if isinstance(found, Divergence):
        return ReplayReport("DRIFT", {"R0": "DRIFT"}, found, None)
    return replay(found.record, found.events, level, tools, found.log_break)


def read_sealed_case(store: Store, entry: Entry) -> SealedCase | Divergence:
    """The record that an entry of an audit stream holds, and its case's events; or why it holds none.

    The audit stream's own chain is the caller's to verify: once for all of its records.
    """
    record = _parse(entry)
    if isinstance(record, Divergence):
        return record
    case = Stream(record.tenant_id, record.case_id)
    head = Head(record.log_head.position, record.log_head.entry_hash)
    broken = find_chain_break(store, case, head, "case stream") or _find_erased(store, case, head)
    events = [] if broken else log.read(store, case, up_to=head.position)
    return SealedCase(record, events, broken)


def load_record(store: Store, record_id: str) -> tuple[Entry, AuditRecord]:
    """The entry and the record with this id (or an unambiguous beginning of it).

    Raises:
        NotFoundError, RequestError: as `log.find_record`. VerificationError: the entry holds no record.
    """
    entry = log.find_record(store, record_id)
    return entry, parse_record(entry.text)


def find_chain_break(store: Store, stream: Stream, head: Head, name: str) -> Divergence | None:
    """What is wrong with the chain of a stream that should hold `head`; None when nothing is."""
    verdict = log.verify(store.entries(stream), stream, expected_head=head)
    if verdict.holds:
        return None
    return Divergence(
        "R0",
        f"{name} chain",
        f"{head}",
        f"{verdict.head}",
        index=verdict.first_bad_position,
        detail=verdict.reason or "",
    )


def _find_erased(store: Store, stream: Stream, head: Head) -> Divergence | None:
    """The first event that was read and whose payload was erased since: the chain holds without it, no replay does."""
    for entry in store.entries(stream, up_to=head.position):
        if entry.payload is None:
            return Divergence("R0", "case stream payload", "there", "erased", index=entry.position)
    return None


def _parse(entry: Entry) -> AuditRecord | Divergence:
    """The record that an entry of the audit stream holds, or why it holds none."""
    try:
        record = parse_record(entry.text)
        if record.tenant_id != entry.stream.tenant_id or record.case_id == AUDIT_CASE_ID:
            raise VerificationError("the record is of another tenant, or of no case")
    except VerificationError as exc:
        return Divergence("R0", "record", "an audit record", "none", index=entry.position, detail=exc.message)
    return record
