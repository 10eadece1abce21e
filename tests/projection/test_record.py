"""The audit record: its bytes, its digests, and what each of them covers."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.scripted_engine import ScriptedEngine
from projection.canonical import value_digest
from projection.errors import VerificationError
from projection.record import AuditRecord, parse_record
from projection.store_memory import MemoryStore
from tests.projection.decided import decide_small_case, fill_case, with_call, with_changes, with_content


@pytest.fixture(scope="module")
def record() -> AuditRecord:
    store = MemoryStore()
    fill_case(store)
    return decide_small_case(store).record


def sealed_text(record: AuditRecord) -> str:
    return record.to_event("decision-1").text


def test_a_record_comes_back_from_its_bytes(record: AuditRecord) -> None:
    again = parse_record(sealed_text(record))
    assert again == record
    assert again.to_bytes() == record.to_bytes()
    assert again.content.digest == again.content_digest == record.content_digest


def test_it_names_what_it_was_made_from(record: AuditRecord) -> None:
    content = record.content
    assert (record.tenant_id, record.case_id, record.log_head.position) == ("acme", "LN-7", 3)
    assert (content.num_events, content.budget.asked_chars) == (3, 1338)
    assert content.budget.used_chars == len(content.projection.text)
    assert content.engine_identity == ScriptedEngine().identity.digest == value_digest(
        "dpm/engine-identity/v1", record.engine
    )  # fmt: skip
    assert len(record.wall_s) == 2


def test_the_smallest_margin_is_the_distance_from_flipping(record: AuditRecord) -> None:
    margins = [None, 0.5, 0.25, None] + [1.0] * (len(record.content.projection.token_ids) - 4)
    assert record.content.projection.min_margin is None
    assert with_call(record, "projection", margins=margins).content.projection.min_margin == 0.25


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(finite, finite)
def test_a_log_probability_comes_back_bit_for_bit(record: AuditRecord, margin: float, logprob: float) -> None:
    changed = with_call(record, "decision", logprobs=[logprob, -0.5], margins=[margin, None])
    again = parse_record(sealed_text(changed)).content.decision_call
    assert (again.logprobs, again.margins) == ([logprob, -0.5], [margin, None])


CONTENT_CHANGES: dict[str, Any] = {
    "events_digest": "0" * 64,
    "num_events": 4,
    "task": {"question": "another"},
    "task_digest": "0" * 64,
    "template_digest": "0" * 64,
    "profile": {"slot_candidates": None},
    "budget": {"asked_chars": 1339, "used_chars": 1},
    "engine_identity": "0" * 64,
    "view_digest": "0" * 64,
    "decision": {"outcome": "APPROVE", "reasons": [], "rationale": "So it is"},
}
CALL_CHANGES: dict[str, Any] = {
    "prompt_token_ids": [1],
    "grammar_digest": "0" * 64,
    "max_tokens": 1,
    "token_ids": [1],
    "text": "another",
    "logprobs": [-5e-324],
    "margins": [0.0],
}


@pytest.mark.parametrize(("member", "value"), CONTENT_CHANGES.items(), ids=CONTENT_CHANGES.keys())
def test_the_content_digest_covers_every_member_of_the_content(record: AuditRecord, member: str, value: Any) -> None:
    assert with_content(record, **{member: value}).content_digest != record.content_digest


@pytest.mark.parametrize("call", ["projection", "decision"])
@pytest.mark.parametrize(("member", "value"), CALL_CHANGES.items(), ids=CALL_CHANGES.keys())
def test_the_content_digest_covers_every_member_of_a_call(
    record: AuditRecord, call: str, member: str, value: Any
) -> None:
    assert with_call(record, call, **{member: value}).content_digest != record.content_digest


def test_no_member_of_the_content_is_left_out_of_these_tests(record: AuditRecord) -> None:
    assert CONTENT_CHANGES.keys() | {"projection", "decision_call"} == type(record.content).model_fields.keys()
    assert CALL_CHANGES.keys() | {"finish_reason"} == type(record.content.projection).model_fields.keys()


@pytest.mark.parametrize(
    "change",
    [
        {"sealed_at": "2030-01-01T00:00:00Z"},
        {"wall_s": [1.0, 2.0]},
        {"case_id": "LN-8"},
        {"log_head": {"position": 9, "entry_hash": "1" * 64}},
    ],
    ids=str,
)  # fmt: skip
def test_the_content_digest_does_not_cover_when_and_where(record: AuditRecord, change: dict[str, Any]) -> None:
    changed = with_changes(record, **change)
    assert changed.content_digest == record.content.digest == changed.content.digest
    assert changed.to_bytes() != record.to_bytes()


def edited(record: AuditRecord, **changes: Any) -> str:
    return json.dumps(json.loads(sealed_text(record)) | changes, separators=(",", ":"), sort_keys=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"v": 2},
        {"v": True},
        {"extra": 1},
        {"sealed_at": None},
        {"wall_s": "soon"},
        {"wall_s": [math.nan]},
        {"wall_s": [math.inf]},
        {"engine": []},
        {"engine": {"a": 2**60}},
        {"engine": {"a": "\ud800"}},
        {"tenant_id": "\ud800"},
        {"content": {}},
        {"log_head": {"position": "3", "entry_hash": ""}},
        {"log_head": {"position": 2**70, "entry_hash": ""}},
    ],
    ids=str,
)
def test_what_is_no_record_is_an_error_of_verification(record: AuditRecord, changes: dict[str, Any]) -> None:
    with pytest.raises(VerificationError):
        parse_record(edited(record, **changes))


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "7", "{", "\ud800", "[" * 100_000, '{"v":1}', "9" * 5000, '"\\ud800"'], ids=repr
)
def test_what_is_no_json_object_is_an_error_of_verification(text: str) -> None:
    with pytest.raises(VerificationError, match="no audit record"):
        parse_record(text)


@pytest.mark.parametrize("token_id", [2**53, -(2**53), 2**100, 1.5, True, "1", None])
def test_token_ids_that_are_no_integers_of_json_are_refused(record: AuditRecord, token_id: Any) -> None:
    value = json.loads(sealed_text(record))
    value["content"]["projection"]["token_ids"][0] = token_id
    with pytest.raises(VerificationError):
        parse_record(json.dumps(value, separators=(",", ":"), sort_keys=True))


def test_another_spelling_of_the_same_record_is_refused(record: AuditRecord) -> None:
    text = sealed_text(record)
    for other in (
        json.dumps(json.loads(text)),
        text + " ",
        text.replace("{", '{"v":1,', 1),
        text.replace(":", ": ", 1),
    ):
        assert other != text
        with pytest.raises(VerificationError, match="canonical form"):
            parse_record(other)
