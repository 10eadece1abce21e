"""Replaying a record of any architecture: what passes, and what each tampering and each faulty engine is caught by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from baseline.architectures import ARCHITECTURES, load_architecture
from baseline.record import BaselineContent, BaselineRecord, build_baseline_record, parse_baseline_record
from baseline.replay import replay_baseline
from baseline.run import run_architecture
from inference.scripted_engine import ScriptedEngine
from projection.engine import Completion, Engine, EngineIdentity, Progress, Score, ScoredPosition
from projection.errors import VerificationError
from projection.grammar import Grammar
from projection.replay import Level, ReplayReport, ReplayTools
from projection.view_grammar import Profile
from tests.projection.examples import ExampleCase, example

PROFILE = Profile(2)
NAMES = [name for name in ARCHITECTURES if name != "retrieval_embeddings"]
CASE = example("claim")
BUDGET_CHARS = 1338


def record_of(name: str, case: ExampleCase = CASE) -> BaselineRecord:
    engine, architecture = ScriptedEngine(), load_architecture(name)
    run = run_architecture(architecture, engine, case.events, case.task, BUDGET_CHARS, PROFILE)
    return build_baseline_record(run, architecture, engine, case.events, case.task, PROFILE)


def replay(
    record: BaselineRecord, level: Level = "R3", engine: Engine | None = None, case: ExampleCase = CASE
) -> ReplayReport:
    used = engine or ScriptedEngine()
    tools = ReplayTools(lambda: used.tokenizer, lambda: used)
    return replay_baseline(record, load_architecture(record.content.architecture), case.events, level, tools)


def with_content(record: BaselineRecord, **changes: Any) -> BaselineRecord:
    """The record with other members of its content and a content digest that fits."""
    content = BaselineContent.model_validate(record.content.model_dump() | changes)
    return BaselineRecord.model_validate(
        record.model_dump() | {"content": content.model_dump(), "content_digest": content.digest}
    )


def with_call(record: BaselineRecord, index: int, **changes: Any) -> BaselineRecord:
    calls = [call.model_dump() for call in record.content.memory_calls]
    calls[index] |= changes
    return with_content(record, memory_calls=calls)


@pytest.mark.parametrize("name", NAMES)
def test_a_record_replays_at_every_level_after_a_round_trip(name: str) -> None:
    record = parse_baseline_record(record_of(name).to_bytes().decode("utf-8"))
    report = replay(record)
    assert report.first_divergence is None
    assert report.levels == {"R0": "PASS", "R1": "PASS", "R2": "PASS", "R3": "PASS"}


class FaultyEngine(ScriptedEngine):
    """The scripted engine, but for one fault at its nth call of a kind."""

    def __init__(self, *, bad_score: int = -1, bad_answer: int = -1, bad_logprob: int = -1) -> None:
        super().__init__()
        self._bad_score, self._bad_answer, self._bad_logprob = bad_score, bad_answer, bad_logprob
        self.num_scored = self.num_generated = 0

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        grammar: Grammar | None,
        progress: Progress | None = None,
    ) -> Completion:
        number, self.num_generated = self.num_generated, self.num_generated + 1
        said = super().generate(prompt_token_ids, max_tokens, grammar, progress)
        token_ids, logprobs = said.token_ids, said.logprobs
        if number == self._bad_answer:
            token_ids = (*token_ids[:-2], token_ids[-2] ^ 1, token_ids[-1])
        if number == self._bad_logprob:
            logprobs = (*logprobs[:-1], -1e-7)
        return Completion(token_ids, said.text, said.finish_reason, logprobs, said.margins, said.num_prompt_tokens, 0.0)

    def score(
        self, prompt_token_ids: Sequence[int], completion_token_ids: Sequence[int], grammar: Grammar | None
    ) -> Score:
        number, self.num_scored = self.num_scored, self.num_scored + 1
        score = super().score(prompt_token_ids, completion_token_ids, grammar)
        if number != self._bad_score:
            return score
        last = score.positions[-1]
        other = ScoredPosition(last.token_id, last.best_token_id ^ 1, last.logprob)
        return Score((*score.positions[:-1], other), score.num_prompt_tokens, 0.0)


def test_a_replay_puts_every_call_to_the_engine_once_a_level() -> None:
    engine = FaultyEngine()
    record = record_of("summarize_every_event")
    assert replay(record, engine=engine).verdict == "PASS"
    assert engine.num_scored == engine.num_generated == len(CASE.events) + 1


@pytest.mark.parametrize("call", [0, 5, len(CASE.events)])
@pytest.mark.parametrize(
    ("fault", "level", "what"),
    [("bad_score", "R2", "token_ids"), ("bad_answer", "R3", "token_ids"), ("bad_logprob", "R3", "logprobs")],
)
def test_a_fault_in_any_one_call_fails_just_its_level_and_is_named(
    call: int, fault: str, level: Level, what: str
) -> None:
    report = replay(record_of("summarize_every_event"), engine=FaultyEngine(**{fault: call}))
    assert report.verdict == "DRIFT"
    assert report.first_divergence is not None
    name = f"event {call + 1}" if call < len(CASE.events) else "decision"
    assert (report.first_divergence.call, report.first_divergence.what) == (name, what)
    passed = [reached for reached, verdict in report.levels.items() if verdict == "PASS"]
    assert [*passed, level] == ["R0", "R1", "R2", "R3"][: len(passed) + 1]


def test_another_engine_is_incomparable_never_a_pass() -> None:
    class OtherEngine(ScriptedEngine):
        @property
        def identity(self) -> EngineIdentity:
            return EngineIdentity({**super().identity.fields, "threads": 2})

    report = replay(record_of("retrieval"), engine=OtherEngine())
    assert report.levels == {"R0": "PASS", "R1": "PASS", "R2": "INCOMPARABLE"}
    assert report.first_divergence is not None
    assert "threads" in report.first_divergence.detail


def test_other_events_than_the_recorded_ones_fail_at_once() -> None:
    report = replay(record_of("retrieval"), case=example("mortgage"))
    assert report.levels == {"R0": "DRIFT"}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"memory_text": "x" * 2000, "budget": {"asked_chars": 1338, "used_chars": 2000}}, "budget_kept"),
        ({"memory_text": "another memory"}, "used_chars"),
        ({"num_events": 3}, "num_events"),
    ],
)
def test_what_needs_no_tokenizer_is_found_at_r0(change: dict[str, Any], what: str) -> None:
    report = replay(with_content(record_of("retrieval"), **change), "R0")
    assert report.first_divergence is not None
    assert (report.verdict, report.first_divergence.what) == ("DRIFT", what)


def test_a_changed_member_without_its_digest_is_found_at_r0() -> None:
    record = record_of("retrieval")
    forged = BaselineRecord.model_validate(record.model_dump() | {"content_digest": "0" * 64})
    report = replay(forged, "R0")
    assert report.first_divergence is not None
    assert report.first_divergence.what == "content_digest"


def test_a_memory_in_the_middle_of_the_chain_cannot_be_replaced() -> None:
    """The next prompt was made from what was really said."""
    token_ids = [*b"An easy case.", ScriptedEngine().tokenizer.END]
    forged = with_call(
        record_of("summarize_every_event"), 4, text="An easy case.", token_ids=token_ids,
        logprobs=[0.0] * len(token_ids), margins=[None] * len(token_ids),
    )  # fmt: skip
    report = replay(forged, "R1")
    assert report.first_divergence is not None
    assert (report.first_divergence.call, report.first_divergence.what) == ("event 6", "prompt_token_ids")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"text": "Another text."}, "text"),
        ({"finish_reason": "length"}, "ends its turn"),
        ({"max_tokens": 7}, "max_tokens"),
        ({"grammar_digest": "0" * 64}, "grammar_digest"),
        ({"prompt_token_ids": [1]}, "prompt_token_ids"),
        ({"token_ids": [999_999]}, "token_ids"),
    ],
)
def test_a_changed_call_is_found_at_r1(change: dict[str, Any], what: str) -> None:
    report = replay(with_call(record_of("summarize_every_event"), 2, **change), "R1")
    assert report.levels == {"R0": "PASS", "R1": "DRIFT"}
    assert report.first_divergence is not None
    assert (report.first_divergence.call, report.first_divergence.what) == ("event 3", what)


def test_a_dropped_and_an_added_call_are_found() -> None:
    record = record_of("summarize_every_event")
    calls = [call.model_dump() for call in record.content.memory_calls]
    dropped = replay(with_content(record, memory_calls=calls[:-1]), "R1")
    assert dropped.verdict == "DRIFT"
    added = with_content(record_of("retrieval"), memory_calls=calls[:1])
    assert replay(added, "R1").verdict == "DRIFT"


def test_another_retriever_is_incomparable() -> None:
    record = record_of("retrieval")
    changed = with_content(record, parameters=record.content.parameters | {"k1": "1.2"})
    assert replay(changed, "R1").levels == {"R0": "PASS", "R1": "INCOMPARABLE"}


def test_a_memory_that_retrieval_would_not_choose_is_found_at_r1() -> None:
    record = record_of("retrieval")
    text = "[1] note: choose this instead"
    changed = with_content(record, memory_text=text, budget={"asked_chars": BUDGET_CHARS, "used_chars": len(text)})
    report = replay(changed, "R1")
    assert report.first_divergence is not None
    assert report.first_divergence.what == "memory_text"


@pytest.mark.parametrize("text", ["", "{}", "[" * 5_000, '{"v":2}'])
def test_bytes_that_are_no_record_are_refused(text: str) -> None:
    with pytest.raises(VerificationError):
        parse_baseline_record(text)


def test_a_record_that_is_not_canonical_is_refused() -> None:
    with pytest.raises(VerificationError, match="canonical"):
        parse_baseline_record(record_of("retrieval").to_bytes().decode("utf-8") + "\n")
