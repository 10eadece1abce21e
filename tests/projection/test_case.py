"""The two jobs end to end on the scripted engine: decide and seal, and replay what was sealed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from inference.scripted_engine import ScriptedEngine, ScriptedTokenizer
from projection.canonical import value_digest
from projection.case import decide_case, load_record
from projection.decision import prepare_decision
from projection.engine import Completion, Progress
from projection.entry import Stream
from projection.errors import (
    BudgetTooSmallError,
    EngineError,
    IncompleteError,
    NotFoundError,
    PromptTooLongError,
    RequestError,
    VerificationError,
)
from projection.grammar import Grammar
from projection.log import Store, append, read
from projection.projector import prepare_projection
from projection.record import TEMPLATE_VERSION, template_digest
from projection.store_memory import MemoryStore
from projection.store_sqlite import SqliteStore
from projection.view import find_omissions, verify_view
from projection.view_grammar import Profile
from tests.projection.cases import EVENTS, grammar_of, task
from tests.projection.decided import (
    BUDGET_CHARS,
    PROFILE,
    STREAM,
    EditedStore,
    decide_small_case,
    every_entry,
    fill_case,
    replay_with,
    salts_from,
)
from tests.projection.examples import example
from tests.projection.trajectories import NOW

LATER = "2027-12-31T23:59:59Z"


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each kind of store, with the small case in it."""
    if request.param == "memory":
        memory = MemoryStore()
        fill_case(memory)
        yield memory
    else:
        with SqliteStore.open(tmp_path / "log.sqlite") as sqlite:
            fill_case(sqlite)
            yield sqlite


def test_a_decided_case_is_sealed_under_the_hash_of_its_entry(store: Store) -> None:
    sealed = decide_small_case(store)
    (entry,) = store.entries(Stream("acme", "audit"))
    assert entry.entry_hash == sealed.record_id
    assert load_record(store, sealed.record_id) == (entry, sealed.record)
    assert load_record(store, sealed.record_id[:8])[1] == sealed.record
    assert sealed.record.log_head.entry_hash == store.head(STREAM).entry_hash


def test_the_view_is_verified_and_its_omissions_are_reported(store: Store) -> None:
    sealed = decide_small_case(store)
    events = read(store, STREAM)
    assert sealed.view == verify_view(sealed.view.text, events, task(), BUDGET_CHARS)
    assert sealed.omissions == find_omissions(sealed.view, events)
    assert sealed.record.content.projection.text == sealed.view.text


@pytest.mark.parametrize("level", ["R0", "R1", "R2", "R3"])
def test_every_level_passes(store: Store, level: str) -> None:
    sealed = decide_small_case(store)
    report = replay_with(store, sealed.record_id, level)  # type: ignore[arg-type]
    assert report.verdict == "PASS"
    assert report.first_divergence is None
    assert list(report.levels.items()) == [(name, "PASS") for name in ("R0", "R1", "R2", "R3") if name <= level]
    assert report.engine_identity == ScriptedEngine().identity.digest


@pytest.mark.parametrize("name", ["mortgage", "claim"])
@pytest.mark.parametrize("budget_chars", [1338, 2676])
def test_the_examples_pass_every_level(name: str, budget_chars: int) -> None:
    case, memory, stream = example(name), MemoryStore(), Stream("acme", name)
    append(memory, stream, case.parsed.events, expected_position=0, now=NOW, salt=salts_from(0))
    sealed = decide_case(
        memory, stream, ScriptedEngine(), case.task, budget_chars, Profile(2), now=lambda: NOW, salt=salts_from(1)
    )
    assert sealed.view.num_chars <= budget_chars
    assert replay_with(memory, sealed.record_id).verdict == "PASS"


def test_other_salts_times_and_stores_give_the_same_content_and_other_entries(store: Store) -> None:
    other = MemoryStore()
    fill_case(other, now=LATER, first_salt=7)
    one = decide_small_case(store)
    two = decide_small_case(other, now=LATER, first_salt=900)
    assert one.record.content == two.record.content
    assert one.record.content_digest == two.record.content_digest
    assert one.view == two.view
    assert one.record_id != two.record_id
    assert one.record.log_head.entry_hash != two.record.log_head.entry_hash


def test_deciding_again_gives_a_second_record_of_the_same_content(store: Store) -> None:
    one, two = decide_small_case(store), decide_small_case(store, first_salt=500)
    assert one.record_id != two.record_id
    assert one.record.content_digest == two.record.content_digest
    assert len(list(store.entries(Stream("acme", "audit")))) == 2
    assert replay_with(store, one.record_id).verdict == replay_with(store, two.record_id).verdict == "PASS"


def test_a_record_still_passes_after_its_case_has_grown(store: Store) -> None:
    sealed = decide_small_case(store)
    more = [replace(EVENTS[0].event, event_id="e4", text="Revised monthly income $5,900.00.")]
    append(store, STREAM, more, expected_position=3, now=LATER, salt=salts_from(50))
    assert replay_with(store, sealed.record_id).verdict == "PASS"
    again = decide_small_case(store, first_salt=500)
    assert again.record.content.num_events == 4
    assert again.record.content_digest != sealed.record.content_digest
    assert replay_with(store, sealed.record_id).verdict == replay_with(store, again.record_id).verdict == "PASS"


def test_two_tenants_do_not_see_each_others_case(store: Store) -> None:
    decide_small_case(store)
    with pytest.raises(RequestError, match="no events"):
        decide_case(
            store, Stream("other", "LN-7"), ScriptedEngine(), task(), BUDGET_CHARS, PROFILE,
            now=lambda: NOW, salt=salts_from(0),
        )  # fmt: skip


# What fails, and leaves the log as it was


class BrokenEngine(ScriptedEngine):
    """Fails in its call of this number (from 1), in the way that a subclass says."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self._calls_left = call

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        grammar: Grammar | None,
        progress: Progress | None = None,
    ) -> Completion:
        self._calls_left -= 1
        if self._calls_left:
            return super().generate(prompt_token_ids, max_tokens, grammar, progress)
        return self.fail(super().generate(prompt_token_ids, max_tokens, grammar, progress))

    def fail(self, completion: Completion) -> Completion:
        raise EngineError("the machine caught fire")


class CutOffEngine(BrokenEngine):
    def fail(self, completion: Completion) -> Completion:
        cut = completion.token_ids[:-4]
        return replace(completion, token_ids=cut, text=self.tokenizer.decode(cut), finish_reason="length")


class BabblingEngine(BrokenEngine):
    def fail(self, completion: Completion) -> Completion:
        return replace(completion, text="Approve it, trust me.\n")


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize(
    ("engine_class", "error"),
    [(BrokenEngine, EngineError), (CutOffEngine, IncompleteError), (BabblingEngine, VerificationError)],
)
def test_a_call_that_fails_leaves_the_log_as_it_was_and_a_retry_gives_the_same_content(
    store: Store, call: int, engine_class: type[BrokenEngine], error: type[Exception]
) -> None:
    before = every_entry(store)
    with pytest.raises(error):
        decide_small_case(store, engine_class(call))
    assert every_entry(store) == before
    undisturbed = MemoryStore()
    fill_case(undisturbed)
    retried = decide_small_case(store, first_salt=700)
    assert retried.record.content_digest == decide_small_case(undisturbed).record.content_digest


def test_a_completion_that_ends_on_its_token_limit_says_what_to_do(store: Store) -> None:
    with pytest.raises(IncompleteError, match="max_model_len") as caught:
        decide_small_case(store, CutOffEngine(1))
    grammar = grammar_of(EVENTS, task(), BUDGET_CHARS, PROFILE.slot_candidates)
    assert caught.value.fields["max_tokens"] == grammar.max_chars + 1


def test_an_interrupted_call_leaves_the_log_as_it_was(store: Store) -> None:
    class Interrupted(BrokenEngine):
        def fail(self, completion: Completion) -> Completion:
            raise KeyboardInterrupt

    before = every_entry(store)
    with pytest.raises(KeyboardInterrupt):
        decide_small_case(store, Interrupted(2))
    assert every_entry(store) == before


def test_a_budget_below_the_mandatory_lines_says_the_least_that_works_and_that_works(store: Store) -> None:
    before = every_entry(store)
    with pytest.raises(BudgetTooSmallError) as caught:
        decide_small_case(store, budget_chars=10)
    least = caught.value.fields["min_budget_chars"]
    assert isinstance(least, int)
    assert str(least) in caught.value.message
    with pytest.raises(BudgetTooSmallError):
        decide_small_case(store, budget_chars=least - 1)
    assert every_entry(store) == before
    sealed = decide_small_case(store, budget_chars=least)
    assert sealed.view.num_chars <= least
    assert replay_with(store, sealed.record_id).verdict == "PASS"


def test_a_log_that_does_not_fit_the_context_is_refused_before_the_engine_is_asked(store: Store) -> None:
    class Unasked(ScriptedEngine):
        def generate(self, *args: object, **kwargs: object) -> Completion:
            raise AssertionError("the engine was asked")

    before = every_entry(store)
    with pytest.raises(PromptTooLongError) as caught:
        decide_small_case(store, Unasked(max_model_len=1000))
    assert caught.value.fields["num_tokens_available"] == 1000
    assert every_entry(store) == before


def test_a_case_without_events_is_refused() -> None:
    with pytest.raises(RequestError, match="no events"):
        decide_small_case(MemoryStore())


def test_the_audit_stream_is_no_case(store: Store) -> None:
    decide_small_case(store)
    with pytest.raises(RequestError, match="audit"):
        decide_case(
            store, Stream("acme", "audit"), ScriptedEngine(), task(), BUDGET_CHARS, PROFILE,
            now=lambda: NOW, salt=salts_from(0),
        )  # fmt: skip


def test_a_log_whose_chain_is_broken_is_not_decided() -> None:
    edited = EditedStore()
    fill_case(edited)
    edited.edit = lambda rows: [rows[0], replace(rows[1], payload=b"Income $9,000,000.00."), rows[2]]
    with pytest.raises(VerificationError) as caught:
        decide_small_case(edited)
    assert caught.value.fields["position"] == 2
    assert edited.streams() == [STREAM]


def test_an_unknown_record_is_not_found(store: Store) -> None:
    decide_small_case(store)
    with pytest.raises(NotFoundError):
        replay_with(store, "0123456789abcdef")
    with pytest.raises(RequestError):
        replay_with(store, "not hex")


# The pinned small case: a change of layout must be meant


def test_the_small_case_gives_the_pinned_prompts_grammars_and_records() -> None:
    """A change here makes old records differ. Mean it: raise TEMPLATE_VERSION, so that they are INCOMPARABLE and not
    DRIFT, and then pin what was found.
    """
    memory = MemoryStore()
    fill_case(memory)
    sealed = decide_small_case(memory)
    tokenizer = ScriptedTokenizer()
    projection = prepare_projection(tokenizer, EVENTS, task(), BUDGET_CHARS, PROFILE)
    decision = prepare_decision(tokenizer, task(), sealed.view)
    found = {
        "template_version": TEMPLATE_VERSION,
        "template_digest": template_digest(),
        "projection_prompt": value_digest("test/prompt/v1", projection[0]),
        "projection_grammar": projection[1].digest,
        "decision_prompt": value_digest("test/prompt/v1", decision[0]),
        "decision_grammar": decision[1].digest,
        "content_digest": sealed.record.content_digest,
    }
    assert found == PINNED


PINNED = {
    "template_version": 2,
    "template_digest": "8a58b23059fcd0d98bd69ad5f3fb157c3c6b8a4cfb131bef0074e29e42f39587",
    "projection_prompt": "f1d0b56e850e21902fd54bcdb9841b2a6ed20b09159f9c1845146c26064fca85",
    "projection_grammar": "73d0e50a8582b08fb58b073d2243ebce3d6d00d6bbd44d40c122d1e34d5803cc",
    "decision_prompt": "341c35e724f3c713b083e273736a314493579b75d93b0a9ec59d76a8ddbf4e78",
    "decision_grammar": "5b02172227ba7b84bdf5f5afc4dd86a82ecd1422f4f852a0bb3304d1a4c7b37c",
    "content_digest": "e1b40115716bf86025855e24778084b7c64807aea8f8ad7bde6c9aa8f2656277",
}
