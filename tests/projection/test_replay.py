"""Replay: each level finds what only it can find, and names the first point where record and replay part.

Every control below is broken in one property. Where a record is forged, its forger has fitted every digest that he can
fit with the project's own functions, so that only the level in question is left to find it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from inference.scripted_engine import ScriptedEngine, ScriptedTokenizer
from projection.engine import Completion, EngineIdentity, Progress, Score, Tokenizer
from projection.entry import Entry, Stream
from projection.errors import TaskError
from projection.events import events_digest
from projection.grammar import Grammar
from projection.log import append, read
from projection.record import AuditRecord, view_digest
from projection.replay import Divergence, Level, ReplayReport, ReplayTools, differing_fields, replay
from tests.projection.cases import EVENTS, task
from tests.projection.decided import (
    STREAM,
    EditedStore,
    decide_small_case,
    fill_case,
    replay_with,
    salts_from,
    seal,
    seal_text,
    with_call,
    with_changes,
    with_content,
    with_decision,
    with_view,
)
from tests.projection.trajectories import NOW

VIEW = """FACTS
- monthly income: $6,100.00 [2]
- debt-to-income ratio: 46.2% [3]
- closing date: unknown
- coverage ratio: unknown
REASONING
- [2] The log says so.
COMPLIANCE
- [3] Policy 4.2: The log says so.
"""
DECISIONS = ("Outcome: APPROVE\nRationale: It is so\n", "Outcome: DENY\nReason: R02 [L2]\nRationale: It is so\n")


@pytest.fixture
def store() -> EditedStore:
    store = EditedStore()
    fill_case(store)
    return store


@pytest.fixture
def record(store: EditedStore) -> AuditRecord:
    return decide_small_case(store).record


def check_found(report: ReplayReport, level: Level, what: str, **place: Any) -> Divergence:
    """The report is a DRIFT at this level and nowhere before it; `place` is what the divergence must say."""
    found = report.first_divergence
    assert found is not None, report
    assert (report.verdict, found.level, found.what) == ("DRIFT", level, what), found
    assert list(report.levels.items()) == [
        *((name, "PASS") for name in ("R0", "R1", "R2") if name < level), (level, "DRIFT")
    ]  # fmt: skip
    assert {name: getattr(found, name) for name in place} == place
    return found


# R0, the log


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


# R0, the record


def bent(record: AuditRecord, path: str, value: Any) -> AuditRecord:
    """The record with the member at a dotted path replaced, and a content digest that fits."""
    content = record.content.model_dump()
    *parents, last = path.split(".")
    place: Any = content
    for name in parents:
        place = place[name]
    place[last] = value
    return with_content(record, **content)


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


# R1


class OtherTokenizer(ScriptedTokenizer):
    """Says that it is the pinned tokenizer, and reads one text otherwise."""

    def render_chat(self, system: str, user: str) -> list[int]:
        return super().render_chat(system, user.replace("EVENTS", "Events"))


class ForgetfulTokenizer(ScriptedTokenizer):
    """Spells the last token otherwise."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return super().decode(token_ids)[:-1]


class OtherVocabulary(ScriptedTokenizer):
    SPECIALS = ("<s>", "<u>", "<a>", "<e>")


@pytest.mark.parametrize("call", ["projection", "decision"])
@pytest.mark.parametrize("index", [0, 100, -1])
def test_r1_finds_a_changed_prompt_token(store: EditedStore, record: AuditRecord, call: str, index: int) -> None:
    calls = {"projection": record.content.projection, "decision": record.content.decision_call}
    token_ids = list(calls[call].prompt_token_ids)
    token_ids[index] ^= 1
    forged = with_call(record, call, prompt_token_ids=token_ids)
    found = check_found(replay_with(store, seal(store, forged)), "R1", "prompt_token_ids", call=call)
    assert found.index == index % len(token_ids)
    assert found.recorded == token_ids[index]


@pytest.mark.parametrize("call", ["projection", "decision"])
def test_r1_finds_a_prompt_that_is_cut_off_or_goes_on(store: EditedStore, record: AuditRecord, call: str) -> None:
    whole = (record.content.projection if call == "projection" else record.content.decision_call).prompt_token_ids
    for token_ids in (whole[:-1], [*whole, 1], []):
        forged = with_call(record, call, prompt_token_ids=token_ids)
        report = replay_with(store, seal(store, forged))
        check_found(report, "R1", "prompt_token_ids length", call=call, index=min(len(token_ids), len(whole)))


R1_FORGERIES: dict[str, tuple[Callable[[AuditRecord], AuditRecord], dict[str, Any]]] = {
    "another grammar of the projection": (
        lambda r: with_call(r, "projection", grammar_digest="0" * 64),
        {"what": "grammar_digest", "call": "projection"},
    ),
    "another grammar of the decision": (
        lambda r: with_call(r, "decision", grammar_digest="0" * 64),
        {"what": "grammar_digest", "call": "decision"},
    ),
    "tokens that say something else": (
        lambda r: with_call(r, "projection", token_ids=[65, *r.content.projection.token_ids[1:]]),
        {"what": "text", "call": "projection"},
    ),
    "no tokens": (lambda r: with_call(r, "decision", token_ids=[]), {"what": "text", "call": "decision"}),
    "a wider profile": (
        lambda r: bent(r, "profile.slot_candidates", 1),
        {"what": "prompt_token_ids", "call": "projection"},
    ),
    "an absurd profile": (
        lambda r: bent(r, "profile.slot_candidates", -7),
        {"what": "prompt_token_ids", "call": "projection"},
    ),
    "another budget": (
        lambda r: bent(r, "budget.asked_chars", 1339),
        {"what": "prompt_token_ids", "call": "projection"},
    ),
    "an absurd budget": (
        lambda r: bent(r, "budget.asked_chars", 10**15),
        {"what": "prompt_token_ids", "call": "projection"},
    ),
    "another template": (lambda r: bent(r, "template_digest", "0" * 64), {"what": "template_digest"}),
}


@pytest.mark.parametrize(("forge", "place"), R1_FORGERIES.values(), ids=R1_FORGERIES.keys())
def test_r1_finds_what_does_not_follow_from_the_log(
    store: EditedStore, record: AuditRecord, forge: Callable[[AuditRecord], AuditRecord], place: dict[str, Any]
) -> None:
    report = replay_with(store, seal(store, forge(record)))
    assert report.first_divergence is not None
    assert report.levels == {"R0": "PASS", "R1": report.verdict}
    assert report.verdict == ("INCOMPARABLE" if place["what"] == "template_digest" else "DRIFT")
    assert {name: getattr(report.first_divergence, name) for name in place} == place


def test_r1_finds_a_budget_in_which_the_view_could_not_be_asked_for(store: EditedStore, record: AuditRecord) -> None:
    """The view happens to be shorter than its mandatory lines can be; nobody could have asked for that budget."""
    unknown = "FACTS\n" + "".join(f"- {field.description}: unknown\n" for field in task().fields)
    view = f"{unknown}REASONING\nCOMPLIANCE\n"
    forged = bent(with_view(store, record, view), "budget.asked_chars", len(view))
    found = check_found(replay_with(store, seal(store, forged)), "R1", "prompts and grammars")
    assert "the least that works" in found.detail


@pytest.mark.parametrize("call", ["projection", "decision"])
@pytest.mark.parametrize("token_id", [-1, -(2**50), 260, 49_152, 2**31, 2**53 - 1])
def test_r1_finds_token_ids_that_no_vocabulary_has(
    store: EditedStore, record: AuditRecord, call: str, token_id: int
) -> None:
    whole = (record.content.projection if call == "projection" else record.content.decision_call).token_ids
    forged = with_call(record, call, token_ids=[token_id, *whole[1:]])
    found = check_found(replay_with(store, seal(store, forged)), "R1", "token_ids", call=call)
    assert str(token_id) in found.detail


@pytest.mark.parametrize("call", ["projection", "decision"])
def test_r1_finds_a_missing_end_of_turn(store: EditedStore, record: AuditRecord, call: str) -> None:
    """All that is left is what the model finds best, so R2 would not see that it would have gone on."""
    whole = record.content.projection if call == "projection" else record.content.decision_call
    forged = with_call(record, call, token_ids=whole.token_ids[:-1])
    check_found(replay_with(store, seal(store, forged)), "R1", "end of turn", call=call, recorded="\n")


@pytest.mark.parametrize("token_id", [-1, 260, 2**53 - 1])
def test_r1_finds_absurd_tokens_in_a_prompt(store: EditedStore, record: AuditRecord, token_id: int) -> None:
    forged = with_call(record, "projection", prompt_token_ids=[token_id] * 20)
    check_found(replay_with(store, seal(store, forged)), "R1", "prompt_token_ids", index=0, recorded=token_id)


@pytest.mark.parametrize(
    ("tokenizer", "what"), [(OtherTokenizer(), "prompt_token_ids"), (ForgetfulTokenizer(), "text")]
)
def test_r1_finds_a_tokenizer_that_reads_or_spells_otherwise(
    store: EditedStore, tokenizer: Tokenizer, what: str
) -> None:
    sealed = decide_small_case(store)
    check_found(replay_with(store, sealed.record_id, tokenizer=tokenizer), "R1", what, call="projection")


def test_another_vocabulary_is_incomparable_at_r1(store: EditedStore) -> None:
    sealed = decide_small_case(store)
    report = replay_with(store, sealed.record_id, tokenizer=OtherVocabulary())
    assert (report.verdict, report.levels) == ("INCOMPARABLE", {"R0": "PASS", "R1": "INCOMPARABLE"})
    assert report.first_divergence == Divergence(
        "R1", "tokenizer_digest", ScriptedTokenizer().digest, OtherVocabulary().digest
    )


# R2


class OtherTaste(ScriptedEngine):
    """Finds another token best at one place."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self._index = index

    def score(
        self, prompt_token_ids: Sequence[int], completion_token_ids: Sequence[int], grammar: Grammar | None
    ) -> Score:
        score = super().score(prompt_token_ids, completion_token_ids, grammar)
        positions = list(score.positions)
        positions[self._index] = replace(positions[self._index], best_token_id=66)
        return replace(score, positions=tuple(positions))


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    return next(index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)


def test_r2_finds_a_view_that_the_model_would_not_have_written(store: EditedStore, record: AuditRecord) -> None:
    """It verifies, its tokens spell it, the decision's prompt follows from it: only the model can tell."""
    forged = with_view(store, record, VIEW)
    index = first_difference(forged.content.projection.token_ids, record.content.projection.token_ids)
    report = replay_with(store, seal(store, forged))
    check_found(
        report, "R2", "token_ids", call="projection", index=index,
        recorded=forged.content.projection.token_ids[index], recomputed=record.content.projection.token_ids[index],
    )  # fmt: skip


def test_r2_finds_a_decision_that_the_model_would_not_have_made(store: EditedStore, record: AuditRecord) -> None:
    other = next(text for text in DECISIONS if not text.startswith(f"Outcome: {record.content.decision.outcome}"))
    forged = with_decision(store, record, other)
    assert forged.content.decision.outcome != record.content.decision.outcome
    report = replay_with(store, seal(store, forged))
    check_found(report, "R2", "token_ids", call="decision", index=len("Outcome: "))


@pytest.mark.parametrize("index", [0, 7, -1])
def test_r2_finds_an_engine_that_finds_another_token_best(store: EditedStore, index: int) -> None:
    sealed = decide_small_case(store)
    num_tokens = len(sealed.record.content.projection.token_ids)
    report = replay_with(store, sealed.record_id, engine=OtherTaste(index))
    check_found(report, "R2", "token_ids", call="projection", index=index % num_tokens, recomputed=66)
    assert replay_with(store, sealed.record_id, "R1", engine=OtherTaste(index)).verdict == "PASS"


@pytest.mark.parametrize("call", ["projection", "decision"])
@pytest.mark.parametrize("change", [-1, 1, 10**12])
def test_r2_finds_another_token_limit(store: EditedStore, record: AuditRecord, call: str, change: int) -> None:
    recorded = record.content.projection if call == "projection" else record.content.decision_call
    forged = with_call(record, call, max_tokens=recorded.max_tokens + change)
    report = replay_with(store, seal(store, forged))
    check_found(report, "R2", "max_tokens", call=call, recorded=recorded.max_tokens + change)


def test_r2_finds_tokens_behind_the_end_of_turn(store: EditedStore, record: AuditRecord) -> None:
    """They change no text, so R1 cannot see them."""
    token_ids = [*record.content.projection.token_ids, ScriptedTokenizer.END]
    forged = with_call(record, "projection", token_ids=token_ids)
    report = replay_with(store, seal(store, forged))
    check_found(report, "R2", "token_ids", call="projection", index=len(token_ids) - 1, recomputed=-1)


def test_r2_finds_more_tokens_than_the_call_could_give(store: EditedStore, record: AuditRecord) -> None:
    token_ids = [*record.content.decision_call.token_ids, *[ScriptedTokenizer.END] * 300_000]
    forged = with_call(record, "decision", token_ids=token_ids)
    report = replay_with(store, seal(store, forged))
    check_found(report, "R2", "token_ids length", call="decision", recorded=len(token_ids))


# R3


class Wobbly(ScriptedEngine):
    """Gives one completion with one thing changed, and scores honestly."""

    def __init__(self, change: Callable[[Completion], Completion], call: int) -> None:
        super().__init__()
        self._change, self._calls_left = change, call

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        grammar: Grammar | None,
        progress: Progress | None = None,
    ) -> Completion:
        completion = super().generate(prompt_token_ids, max_tokens, grammar, progress)
        self._calls_left -= 1
        return completion if self._calls_left else self._change(completion)


def last_bit(values: Sequence[float], index: int) -> tuple[float, ...]:
    changed = list(values)
    changed[index] = math.nextafter(changed[index], -math.inf)
    return tuple(changed)


WOBBLES: dict[str, tuple[Callable[[Completion], Completion], str, int | None]] = {
    "the last bit of a log-probability": (lambda c: replace(c, logprobs=last_bit(c.logprobs, 3)), "logprobs", 3),
    "a margin where there was none": (lambda c: replace(c, margins=(*c.margins[:-1], 0.5)), "margins", -1),
    "a token": (lambda c: replace(c, token_ids=(*c.token_ids[:5], 66, *c.token_ids[6:])), "token_ids", 5),
    "one token more": (lambda c: replace(c, token_ids=(*c.token_ids, 66)), "token_ids length", None),
    "its text": (lambda c: replace(c, text=c.text + "."), "text", None),
    "the way it ended": (lambda c: replace(c, finish_reason="length"), "finish_reason", None),
    "a log-probability fewer": (lambda c: replace(c, logprobs=c.logprobs[:-1]), "logprobs length", None),
}


@pytest.mark.parametrize(("number", "call"), [(1, "projection"), (2, "decision")])
@pytest.mark.parametrize(("change", "what", "index"), WOBBLES.values(), ids=WOBBLES.keys())
def test_r3_finds_an_engine_that_says_anything_else(
    store: EditedStore, number: int, call: str, change: Callable[[Completion], Completion], what: str, index: int | None
) -> None:
    sealed = decide_small_case(store)
    content = sealed.record.content
    num_tokens = len((content.projection if call == "projection" else content.decision_call).token_ids)
    report = replay_with(store, sealed.record_id, engine=Wobbly(change, number))
    found = check_found(report, "R3", what, call=call)
    assert index is None or found.index == index % num_tokens
    assert replay_with(store, sealed.record_id, "R2", engine=Wobbly(change, number)).verdict == "PASS"


@pytest.mark.parametrize("call", ["projection", "decision"])
def test_r3_finds_the_last_bit_of_a_recorded_log_probability(
    store: EditedStore, record: AuditRecord, call: str
) -> None:
    recorded = record.content.projection if call == "projection" else record.content.decision_call
    forged = with_call(record, call, logprobs=list(last_bit(recorded.logprobs, 9)))
    report = replay_with(store, seal(store, forged))
    check_found(report, "R3", "logprobs", call=call, index=9, recorded=-5e-324, recomputed=0.0)


def test_r3_finds_a_recorded_margin_that_was_made_up(store: EditedStore, record: AuditRecord) -> None:
    """A made-up margin would say that the decision is far from flipping."""
    forged = with_call(record, "decision", margins=[9.0, *record.content.decision_call.margins[1:]])
    report = replay_with(store, seal(store, forged))
    check_found(report, "R3", "margins", call="decision", index=0, recorded=9.0, recomputed=None)


# Another engine


class Renamed(ScriptedEngine):
    """Another identity, in fields that a test names."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self._changes = changes

    @property
    def identity(self) -> EngineIdentity:
        return EngineIdentity({**super().identity.fields, **self._changes})

    def score(self, *args: object) -> Score:
        raise AssertionError("another engine was asked")

    def generate(self, *args: object) -> Completion:
        raise AssertionError("another engine was asked")


@pytest.mark.parametrize("level", ["R2", "R3"])
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"flags": {"max_model_len": 100_000}}, "flags.max_model_len"),
        ({"script": "dpm/script/v2"}, "script"),
        ({"script": "dpm/script/v2", "device": {"kind": "gpu"}}, "device, script"),
        ({"flags": {"max_model_len": 262_144, "seed": 1}}, "flags.seed"),
    ],
)
def test_another_engine_is_incomparable_and_never_asked(
    store: EditedStore, level: Level, changes: dict[str, Any], named: str
) -> None:
    sealed = decide_small_case(store)
    report = replay_with(store, sealed.record_id, level, engine=Renamed(**changes))
    assert (report.verdict, dict(report.levels)) == ("INCOMPARABLE", {"R0": "PASS", "R1": "PASS", "R2": "INCOMPARABLE"})
    found = report.first_divergence
    assert found is not None
    assert (found.level, found.what) == ("R2", "engine_identity")
    assert found.detail == f"the engines differ in {named}"
    assert report.engine_identity == sealed.record.content.engine_identity == found.recorded
    assert replay_with(store, sealed.record_id, "R1", engine=Renamed(**changes)).verdict == "PASS"


def test_a_context_of_another_length_is_another_engine(store: EditedStore) -> None:
    sealed = decide_small_case(store, ScriptedEngine(max_model_len=100_000))
    report = replay_with(store, sealed.record_id)
    assert report.verdict == "INCOMPARABLE"
    assert replay_with(store, sealed.record_id, engine=ScriptedEngine(max_model_len=100_000)).verdict == "PASS"


def test_differing_fields_are_named_from_both_sides_in_order() -> None:
    recorded = {"a": 1, "b": {"c": 2, "d": [1, 2]}, "e": None, "f": {"g": 1}}
    here = {"b": {"c": 2, "d": [2, 1], "x": 0}, "a": 1, "f": 7, "z": 1}
    assert differing_fields(recorded, here) == ["b.d", "b.x", "f", "z"]
    assert differing_fields(recorded, dict(reversed(recorded.items()))) == []
