"""Replay at R0: the log file and the record's own texts are enough to find a changed log and a forged record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from inference.scripted_engine import ScriptedTokenizer
from projection.entry import Entry, Stream
from projection.errors import TaskError
from projection.events import events_digest
from projection.log import append, read
from projection.record import AuditRecord, view_digest
from projection.replay import ReplayTools, replay
from tests.projection.cases import EVENTS, task
from tests.projection.decided import (
    STREAM,
    EditedStore,
    decide_small_case,
    replay_with,
    salts_from,
    seal,
    seal_text,
    with_changes,
    with_content,
    with_view,
)
from tests.projection.replay_cases import DECISIONS, VIEW, bent, check_found
from tests.projection.trajectories import NOW

# The log


def flipped(rows: list[Entry]) -> list[Entry]:
    payload = rows[1].payload or b""
    return [rows[0], replace(rows[1], payload=bytes([payload[0] ^ 1]) + payload[1:]), rows[2]]


LOG_EDITS: dict[str, tuple[Callable[[list[Entry]], list[Entry]], int]] = {
    "a flipped bit": (flipped, 2),
    "a deleted event": (lambda rows: [rows[0], rows[2]], 2),
    "two swapped events": (lambda rows: [replace(rows[1], position=1), replace(rows[0], position=2), rows[2]], 1),
    "a truncated log": (lambda rows: rows[:2], 3),
    "an emptied log": (lambda rows: [], 1),
    "a forged event": (lambda rows: [*rows[:2], replace(rows[1], position=3), replace(rows[2], position=4)], 3),
}


@pytest.mark.parametrize(("edit", "position"), LOG_EDITS.values(), ids=LOG_EDITS.keys())
def test_r0_finds_an_edited_log(store: EditedStore, edit: Callable[[list[Entry]], list[Entry]], position: int) -> None:
    sealed = decide_small_case(store)
    store.edit = edit
    check_found(replay_with(store, sealed.record_id), "R0", "case stream chain", index=position)


def test_r0_finds_a_log_that_was_rewritten_with_hashes_of_its_own(store: EditedStore) -> None:
    sealed = decide_small_case(store)
    other = EditedStore()
    events = [replace(e.event, text=e.event.text.replace("6,100", "9,100")) for e in EVENTS]
    append(other, STREAM, events, expected_position=0, now=NOW, salt=salts_from(0))
    rewritten = list(other.entries(STREAM))
    store.edit = lambda rows: rewritten
    check_found(replay_with(store, sealed.record_id), "R0", "case stream chain", index=3)


def test_r0_finds_an_edit_behind_the_head_that_was_read(store: EditedStore) -> None:
    sealed = decide_small_case(store)
    later = [replace(EVENTS[0].event, event_id=f"e{n}") for n in (4, 5)]
    append(store, STREAM, later, expected_position=3, now=NOW, salt=salts_from(50))
    store.edit = lambda rows: [row for row in rows if row.position != 4]
    check_found(replay_with(store, sealed.record_id), "R0", "case stream chain", index=4)


def test_r0_finds_an_erased_payload(store: EditedStore) -> None:
    """The chain holds without it, but nothing can be recomputed."""
    sealed = decide_small_case(store)
    store.edit = lambda rows: [rows[0], replace(rows[1], salt=None, payload=None), rows[2]]
    check_found(replay_with(store, sealed.record_id), "R0", "case stream payload", index=2)


def test_r0_finds_an_edited_audit_stream(store: EditedStore) -> None:
    first, second = decide_small_case(store), decide_small_case(store, first_salt=500)
    store.edited_stream = Stream("acme", "audit")
    store.edit = lambda rows: [replace(rows[0], payload=(rows[0].payload or b"").replace(b"acme", b"acne")), rows[1]]
    for sealed in (first, second):
        check_found(replay_with(store, sealed.record_id), "R0", "audit stream chain", index=1)


# The record


def with_view_text(record: AuditRecord, text: str) -> AuditRecord:
    """Another view with every digest of the content fitted; it need not hold."""
    changed = bent(record, "projection.text", text)
    return with_content(changed, view_digest=view_digest(text))


RECORD_FORGERIES: dict[str, tuple[Callable[[AuditRecord], AuditRecord], str]] = {
    "another content digest": (lambda r: with_changes(r, content_digest="0" * 64), "content_digest"),
    "an edited view": (lambda r: bent(r, "projection.text", VIEW), "view_digest"),
    "a view whose citation was moved": (
        lambda r: with_view_text(r, VIEW.replace("$6,100.00 [2]", "$6,100.00 [1]")), "closed_world"
    ),
    "a view that cites an event beyond the log": (
        lambda r: with_view_text(r, VIEW.replace("46.2% [3]", "46.2% [7]")), "closed_world"
    ),
    "a view that cites an absurd event": (
        lambda r: with_view_text(r, VIEW.replace("46.2% [3]", f"46.2% [{'9' * 5000}]")), "closed_world"
    ),
    "a view with another value": (lambda r: with_view_text(r, VIEW.replace("46.2%", "36.2%")), "closed_world"),
    "a view without a section": (lambda r: with_view_text(r, VIEW.replace("REASONING\n", "")), "closed_world"),
    "no view": (lambda r: with_view_text(r, ""), "closed_world"),
    "a view with a line that is none": (lambda r: with_view_text(r, VIEW + "- \ufffd\n"), "closed_world"),
    "a view over its budget": (lambda r: bent(r, "budget.asked_chars", 100), "closed_world"),
    "another number of characters used": (lambda r: bent(r, "budget.used_chars", 1), "used_chars"),
    "an edited decision text": (
        lambda r: bent(r, "decision_call.text", DECISIONS[0].replace("APPROVE", "GRANT")), "closed_world"
    ),
    "a decision that cites no line": (
        lambda r: bent(r, "decision_call.text", DECISIONS[1].replace("[L2]", "[L99]")), "closed_world"
    ),
    "another outcome beside the text": (
        lambda r: bent(r, "decision.outcome", "DENY" if r.content.decision.outcome == "APPROVE" else "APPROVE"),
        "decision",
    ),
    "another reason beside the text": (
        lambda r: bent(r, "decision.reasons", [{"code": "R03", "lines": [1, 2]}]), "decision"
    ),
    "another rationale beside the text": (lambda r: bent(r, "decision.rationale", "Because"), "decision"),
    "another policy": (lambda r: bent(r, "task.policy", "The ratio is at most 50.0%."), "task_digest"),
    "another task digest": (lambda r: bent(r, "task_digest", "0" * 64), "task_digest"),
    "a task without outcomes": (lambda r: bent(r, "task.outcomes", []), "task"),
    "a task with another key": (lambda r: bent(r, "task", {**r.content.task, "x": 1}), "task"),
    "no task": (lambda r: bent(r, "task", {}), "task"),
    "other events": (lambda r: bent(r, "events_digest", "0" * 64), "events_digest"),
    "another number of events": (lambda r: bent(r, "num_events", 2), "num_events"),
    "another engine": (lambda r: with_changes(r, engine=r.engine | {"kind": "vllm"}), "engine_identity"),
    "another engine's digest": (lambda r: bent(r, "engine_identity", "0" * 64), "engine_identity"),
    "an engine without identity": (lambda r: with_changes(r, engine={}), "engine_identity"),
    "an earlier head": (
        lambda r: with_changes(r, log_head={"position": 2, "entry_hash": r.log_head.entry_hash}), "case stream chain"
    ),
    "the head of nothing": (
        lambda r: with_changes(r, log_head={"position": 0, "entry_hash": "0" * 64}), "num_events"
    ),
    "an absurd head": (
        lambda r: with_changes(r, log_head={"position": -5, "entry_hash": "x"}), "case stream chain"
    ),
    "another case": (lambda r: with_changes(r, case_id="LN-8"), "case stream chain"),
    "a case that cannot be": (lambda r: with_changes(r, case_id="\x00"), "case stream chain"),
}  # fmt: skip


@pytest.mark.parametrize(("forge", "what"), RECORD_FORGERIES.values(), ids=RECORD_FORGERIES.keys())
def test_r0_finds_a_forged_record(
    store: EditedStore, record: AuditRecord, forge: Callable[[AuditRecord], AuditRecord], what: str
) -> None:
    check_found(replay_with(store, seal(store, forge(record))), "R0", what)


def test_r0_finds_a_record_of_an_earlier_head_whose_digest_was_fitted(store: EditedStore, record: AuditRecord) -> None:
    """He leaves out the last event and fits digest and head; the view cites what is no longer there, or R1 finds it."""
    cut = read(store, STREAM, up_to=2)
    head = list(store.entries(STREAM))[1].head
    forged = with_content(with_view(store, record, VIEW), events_digest=events_digest(cut), num_events=2)
    forged = with_changes(forged, log_head={"position": 2, "entry_hash": head.entry_hash})
    found = check_found(replay_with(store, seal(store, forged)), "R0", "closed_world")
    assert "[3]" in found.detail


@pytest.mark.parametrize(
    "text", ["null", "{}", '{"v":1}', "not json", "[" * 100_000, '{"content":{"projection":{"token_ids":[1e400]}}}']
)
def test_an_entry_that_holds_no_record_is_drift_at_r0(store: EditedStore, text: str) -> None:
    found = check_found(replay_with(store, seal_text(store, text)), "R0", "record", index=1)
    assert "no audit record" in found.detail


@pytest.mark.parametrize("change", [{"tenant_id": "other"}, {"case_id": "audit"}], ids=str)
def test_a_record_filed_in_the_wrong_place_is_drift_at_r0(
    store: EditedStore, record: AuditRecord, change: dict[str, Any]
) -> None:
    forged = with_changes(record, **change)
    found = check_found(replay_with(store, seal_text(store, forged.to_bytes().decode())), "R0", "record")
    assert "another tenant" in found.detail


def test_r0_needs_neither_tokenizer_nor_engine(store: EditedStore) -> None:
    sealed = decide_small_case(store)

    def unneeded() -> Any:
        raise AssertionError("asked for")

    events = read(store, STREAM)
    assert replay(sealed.record, events, "R0", ReplayTools(unneeded, unneeded), None).verdict == "PASS"
    scripted = ReplayTools(ScriptedTokenizer, unneeded)
    assert replay(sealed.record, events, "R1", scripted, None).verdict == "PASS"


def test_a_recorded_pattern_that_never_ends_is_an_error_and_no_verdict(store: EditedStore, record: AuditRecord) -> None:
    """What took too long may hold or not: nobody looked."""
    hostile = task().model_dump(mode="json")
    hostile["fields"][3]["pattern"] = r"(?:a|aa)+$"
    events = [replace(EVENTS[0].event, event_id="e4", text="a" * 5000 + "!")]
    append(store, STREAM, events, expected_position=3, now=NOW, salt=salts_from(50))
    logged = read(store, STREAM)
    head = store.head(STREAM)
    view = VIEW.replace("- coverage ratio: unknown", "- coverage ratio: 1.25x [4]")
    forged = with_view_text(record, view)
    forged = bent(bent(forged, "task", hostile), "task_digest", type(task()).model_validate(hostile).digest)
    forged = with_content(forged, events_digest=events_digest(logged), num_events=4)
    forged = with_changes(forged, log_head={"position": 4, "entry_hash": head.entry_hash})
    with pytest.raises(TaskError, match="backtrack"):
        replay_with(store, seal(store, forged))
