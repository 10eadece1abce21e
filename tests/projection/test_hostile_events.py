"""Hostile events, one by one and all together: the prompt keeps its form, and a whole decision verifies and replays."""

from __future__ import annotations

import pytest

from inference.scripted_engine import ScriptedEngine, ScriptedTokenizer
from projection.case import decide_case, replay_record
from projection.entry import Stream
from projection.events import Event
from projection.ingest import check_event
from projection.log import append, read
from projection.prompt import render_projection, visible
from projection.quotes import find_quotes
from projection.replay import ReplayTools
from projection.store_memory import MemoryStore
from projection.view import verify_view
from projection.view_grammar import Profile
from tests.projection.cases import log_of, task
from tests.projection.hostile import HOSTILE_TEXTS
from tests.projection.trajectories import NOW, counted_salt

STREAM = Stream("acme", "LN-7")
each_text = pytest.mark.parametrize("text", HOSTILE_TEXTS.values(), ids=HOSTILE_TEXTS.keys())


@each_text
def test_the_prompt_has_exactly_the_templates_own_special_tokens(text: str) -> None:
    tokenizer = ScriptedTokenizer()
    plain, hostile = (render_projection(tokenizer, log_of(t), task(), 1338) for t in ("plain", text))
    assert [t for t in hostile if t >= 256] == [t for t in plain if t >= 256]


@each_text
def test_each_line_is_fenced_and_the_text_is_there_in_full(text: str) -> None:
    tokenizer = ScriptedTokenizer()
    user = tokenizer.decode(render_projection(tokenizer, log_of(text, "after it"), task(), 1338))
    fenced = "".join(f"| {line}\n" for line in visible(text).split("\n"))
    assert f"EVENTS\n[1] note 2026-03-05\n{fenced}[2] note 2026-03-05\n| after it\n\nFIELDS\n" in user


@each_text
def test_a_quote_is_one_line_that_can_be_seen_and_stands_in_the_text(text: str) -> None:
    for quote in find_quotes(text):
        assert quote in text
        assert "\n" not in quote
        assert quote == visible(quote)


@pytest.mark.parametrize("texts", [*([text] for text in HOSTILE_TEXTS.values()), list(HOSTILE_TEXTS.values())],
                         ids=[*HOSTILE_TEXTS, "all together"])  # fmt: skip
@pytest.mark.parametrize("slot_candidates", [2, None])
def test_a_case_of_hostile_events_is_decided_verified_and_replayed(
    texts: list[str], slot_candidates: int | None
) -> None:
    store, engine = MemoryStore(), ScriptedEngine()
    events = [Event(f"e{n}", "note", "test", None, text) for n, text in enumerate(texts)]
    for event in events:
        check_event(event)
    append(store, STREAM, events, expected_position=0, now=NOW, salt=counted_salt())
    sealed = decide_case(
        store, STREAM, engine, task(), 4000, Profile(slot_candidates), now=lambda: NOW, salt=counted_salt()
    )
    logged = read(store, STREAM)
    assert [e.text for e in logged] == texts
    assert verify_view(sealed.view.text, logged, task(), 4000) == sealed.view
    assert all(fact.position is None or fact.position <= len(texts) for fact in sealed.view.facts)
    report = replay_record(store, sealed.record_id, "R3", ReplayTools(lambda: engine.tokenizer, lambda: engine))
    assert report.verdict == "PASS", report.first_divergence
