"""The projection asked of a model that no grammar holds: the same prompt, and the same judgement of its text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from determinism.compare.live_surface import Question, ask_surface, count_validity, why_invalid
from inference.live_calls import CallMeter
from inference.live_endpoint import official_endpoint
from inference.openai_engine import OpenAIEngine
from inference.scripted_engine import ScriptedEngine
from projection.projector import project
from projection.prompt import PROJECTION_SYSTEM, render_projection
from projection.view_grammar import Profile
from tests.inference.live_server import LiveServer, Said, chat_completion, live_server
from tests.projection.cases import EVENTS, task

QUESTION = Question("small", tuple(EVENTS), task(), 900)
VIEW = project(ScriptedEngine(), EVENTS, task(), 900, Profile(2)).view.text


@pytest.fixture
def server() -> Iterator[LiveServer]:
    with live_server() as script:
        yield script


@pytest.fixture
def engine(server: LiveServer) -> Iterator[OpenAIEngine]:
    live = OpenAIEngine(replace(official_endpoint("openai", "gpt-4o", server.url), key_variable=None), CallMeter(10))
    yield live
    live.close()


def test_a_live_model_reads_what_the_pinned_one_reads(server: LiveServer, engine: OpenAIEngine) -> None:
    server.say(Said(chat_completion(VIEW, "gpt-4o")))
    ask_surface(engine, QUESTION, 50)
    prompt = render_projection(engine.tokenizer, QUESTION.events, QUESTION.task, QUESTION.budget_chars)
    sent = server.asked[0].body["messages"]
    assert engine.tokenizer.render_chat(sent[0]["content"], sent[1]["content"]) == prompt
    assert sent[0]["content"] == PROJECTION_SYSTEM


@pytest.mark.parametrize("text", [VIEW, VIEW.removesuffix("\n")])
def test_an_answer_that_is_a_view_of_the_log_is_valid_with_and_without_its_last_line_feed(
    server: LiveServer, engine: OpenAIEngine, text: str
) -> None:
    server.say(Said(chat_completion(text, "gpt-4o")))
    surface = ask_surface(engine, QUESTION, 50)
    assert surface.why_invalid is None
    assert surface.answer.text == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the view does not begin with FACTS"),
        ("Here is the view:\n" + VIEW, "the view does not begin with FACTS"),
        (VIEW.replace("REASONING", "Reasoning"), "stands in the wrong place"),
        (VIEW.replace("[1]", "[9]").replace("[2]", "[9]").replace("[3]", "[9]"), "which the log does not have"),
        (VIEW + "- [1] Policy 4.2: the ratio is 99.9%\n", "99.9%"),
        (VIEW + "x" * 900, "budget"),
    ],
)
def test_an_answer_that_is_none_has_its_reason(text: str, reason: str) -> None:
    found = why_invalid(text, "stop", QUESTION)
    assert found is not None
    assert reason in found


def test_an_answer_that_was_cut_off_is_no_view_even_if_it_reads_like_one() -> None:
    assert why_invalid(VIEW, "length", QUESTION) == "it ended on its token limit"


def test_valid_and_invalid_answers_are_counted_with_their_reasons() -> None:
    counted = count_validity([None, "b", "a", "a", None])
    assert (counted.num_valid, counted.num_invalid, counted.reasons) == (2, 3, (("a", 2), ("b", 1)))
    assert count_validity([]).reasons == ()
