"""A comparison on lanes that need no model: what counts as drift, what is kept, and what a lane must not do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from determinism.compare.lanes import Answered, Lane, live_lane, pinned_lane
from determinism.compare.live_surface import Question
from determinism.compare.plan import PINNED, Plan, load_questions, load_strangers, uncontrolled_name
from determinism.compare.report import comparison_report
from determinism.compare.run import SCHEMA, VERSION, Step, open_comparison, run_lanes
from determinism.compare.table import compared_cells, compared_rows, comparison_document, count_calls, drifted_lanes
from determinism.compare.traffic import strangers
from determinism.published import TABLE_3
from inference.anthropic_engine import AnthropicEngine
from inference.live_calls import CallLimitError, CallMeter
from inference.live_endpoint import official_endpoint
from inference.scripted_engine import ScriptedEngine
from projection.engine import EngineIdentity
from projection.errors import DpmError, EngineError, RequestError
from reporting.journal import JournalError, Row, read_journal
from reporting.markdown import render_markdown
from reporting.page import render_page
from tests.inference.live_server import LiveServer, Said, live_server, message

KEY = "sk-live-7f3a9c55e1"
LIVE = "anthropic:claude-haiku-4-5"
FREE = uncontrolled_name("bfloat16", "chat")
PLAN = Plan("no-model", num_replays=4, lengths=(20, 60), dtypes=(), num_strangers=0, width=2)
BUSY = replace(PLAN, num_strangers=2)
WITH_FREE = replace(PLAN, dtypes=("bfloat16",), routes=("chat",))
WITH_LIVE = replace(PLAN, pinned=False, live=LIVE)
Say = Callable[[Question, int], str]


def quiet(_step: Step) -> None:
    """Reports to nobody."""


def rows_of(folder: Path) -> Mapping[str, Row]:
    return read_journal(folder, schema=SCHEMA, version=VERSION).rows


def answered(text: str, **changes: Any) -> Answered:
    values: dict[str, Any] = {
        "text": text,
        "finish_reason": "length",
        "token_ids": tuple(text.encode()),
        "logprobs": "same",
        "input_tokens": 1,
        "output_tokens": len(text),
        "model": None,
        "fingerprint": None,
        "why_invalid": "no view",
        "wall_s": 0.5,
    }
    return Answered(**values | changes)


def lane(name: str, say: Callable[[Question, int], Answered], **changes: Any) -> Lane:
    return Lane(name, EngineIdentity({"kind": "test", "name": name}), say, lambda number: number, lambda: 3, **changes)


def steady(question: Question, max_tokens: int) -> Answered:
    return answered(f"{question.case} to {max_tokens}")


def drifting(longer_than: int, what: str = "text") -> Callable[[Question, int], Answered]:
    """Says the same up to a length, and beyond it something else each time."""
    turns = count()

    def say(question: Question, max_tokens: int) -> Answered:
        plain = steady(question, max_tokens)
        if max_tokens <= longer_than:
            return plain
        turn = str(next(turns))
        return answered(f"{plain.text} {turn}") if what == "text" else replace(plain, logprobs=turn)

    return say


def run(plan: Plan, folder: Path, *lanes: Lane) -> dict[str, Any]:
    with open_comparison(folder, plan) as journal:
        run_lanes(plan, journal, lanes, load_questions(plan), quiet)
        return comparison_document(plan, journal.rows, "dpm determinism compare", "2026-01-01", None)


def test_the_scripted_engine_does_not_drift_beside_strangers(tmp_path: Path) -> None:
    document = run(BUSY, tmp_path, pinned_lane(ScriptedEngine(), load_strangers(BUSY)))
    assert document["is_complete"]
    assert [(row["max_tokens"], row["num_comparisons"], row["num_drifted"]) for row in document["rows"]] == [
        (20, 8, 0),
        (60, 8, 0),
    ]
    assert document["rows"][0]["max_drift_rate"] == pytest.approx(1 - 0.05 ** (1 / 8))
    assert document["rows"][0]["logprobs_drifted"] == 0


def test_a_lane_that_drifts_is_found_from_its_length_on_and_no_other_is(tmp_path: Path) -> None:
    document = run(WITH_FREE, tmp_path, lane(PINNED, steady), lane(FREE, drifting(20)))
    drifted = {(row["lane"], row["max_tokens"]): row["num_drifted"] for row in document["rows"]}
    assert drifted == {(PINNED, 20): 0, (PINNED, 60): 0, (FREE, 20): 0, (FREE, 60): 8}
    row = document["rows"][-1]
    assert (row["first_differing_char"], row["first_differing_token"]) == (len("claim to 60 "), len("claim to 60 "))
    assert row["unique_texts"] == (5, 5)


def test_log_probabilities_drift_apart_from_the_text(tmp_path: Path) -> None:
    document = run(WITH_FREE, tmp_path, lane(PINNED, steady), lane(FREE, drifting(20, "logprobs")))
    row = document["rows"][-1]
    assert (row["num_drifted"], row["logprobs_drifted"]) == (0, 8)


@pytest.mark.parametrize("what", ["text", "logprobs"])
def test_only_the_pinned_lane_has_a_promise_to_break(tmp_path: Path, what: str) -> None:
    for name, expected in ((PINNED, [PINNED]), (FREE, [])):
        with open_comparison(tmp_path / name, WITH_FREE) as journal:
            run_lanes(WITH_FREE, journal, [lane(name, drifting(20, what))], load_questions(PLAN), quiet)
            assert drifted_lanes(compared_cells(WITH_FREE, journal.rows)) == expected


def test_an_answer_that_only_ends_otherwise_is_a_drift(tmp_path: Path) -> None:
    reasons = iter(["stop"] + ["length"] * 100)
    document = run(PLAN, tmp_path, lane(PINNED, lambda q, n: answered(q.case, finish_reason=next(reasons))))
    assert document["rows"][0]["num_drifted"] == 4


def test_the_reference_is_asked_alone_and_the_others_beside_strangers(tmp_path: Path) -> None:
    in_flight, seen = set[int](), list[int]()
    both_came, all_seen = threading.Event(), threading.Event()

    def stranger(number: int) -> None:
        in_flight.add(number)
        if len(in_flight) == 2:
            both_came.set()
        all_seen.wait()

    def say(question: Question, max_tokens: int) -> Answered:
        if seen:
            assert both_came.wait(60), "no strangers came"
        seen.append(len(in_flight))
        if len(seen) == 4:
            all_seen.set()
        return steady(question, max_tokens)

    plan = replace(BUSY, lengths=(20,), cases=("claim",), num_replays=3, width=1)
    run(plan, tmp_path, replace(lane(PINNED, say), send_stranger=stranger))
    assert seen == [0, 2, 2, 2]


def test_strangers_are_counted_and_end_with_the_context() -> None:
    both = threading.Barrier(3)
    with strangers(lambda number: both.wait() if number < 2 else None, 2) as traffic:
        assert traffic.num_answered == 0
        both.wait()
    assert traffic.num_answered >= 2


def test_a_stranger_that_fails_ends_the_run(tmp_path: Path) -> None:
    def failing(number: int) -> None:
        raise EngineError("the server ended")

    with pytest.raises(EngineError, match="the server ended"):
        run(BUSY, tmp_path, replace(lane(PINNED, steady), send_stranger=failing))


def test_a_run_that_was_stopped_continues_and_asks_nothing_twice(tmp_path: Path) -> None:
    asked = list[tuple[str, int]]()

    def say(question: Question, max_tokens: int) -> Answered:
        asked.append((question.case, max_tokens))
        if len(asked) == 13:
            raise EngineError("killed")
        return steady(question, max_tokens)

    with pytest.raises(EngineError):
        run(PLAN, tmp_path, lane(PINNED, say))
    kept = sum(PINNED in key and "identity" not in key for key in rows_of(tmp_path))
    assert 12 <= kept < 20  # a second thread may have answered meanwhile
    before = len(asked)
    document = run(PLAN, tmp_path, lane(PINNED, say))
    assert document["is_complete"]
    assert len(asked) - before == 20 - kept


def test_another_engine_cannot_continue_a_lane(tmp_path: Path) -> None:
    run(PLAN, tmp_path, lane(PINNED, steady))
    other = replace(lane(PINNED, steady), identity=EngineIdentity({"kind": "another"}))
    with pytest.raises(RequestError, match="two engines"):
        run(PLAN, tmp_path, other)


def test_another_plan_cannot_continue_a_run(tmp_path: Path) -> None:
    run(PLAN, tmp_path, lane(PINNED, steady))
    with pytest.raises(JournalError, match="num_replays"):
        run(replace(PLAN, num_replays=9), tmp_path)


def test_two_runs_cannot_write_one_folder(tmp_path: Path) -> None:
    with open_comparison(tmp_path, PLAN), pytest.raises(JournalError, match="another run"):
        open_comparison(tmp_path, PLAN)


@pytest.mark.parametrize(
    "changes",
    [
        {"pinned": False},
        {"cases": ()},
        {"cases": ("nothing",)},
        {"lengths": ()},
        {"lengths": (0,)},
        {"lengths": (5, 5)},
    ],
)
def test_a_plan_that_compares_nothing_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        replace(PLAN, **changes).check()


def test_a_cell_without_a_comparison_is_no_row(tmp_path: Path) -> None:
    with open_comparison(tmp_path, PLAN) as journal:
        assert compared_rows(compared_cells(PLAN, journal.rows)) == []
        assert comparison_document(PLAN, journal.rows, "c", "d", None)["is_complete"] is False


def test_empty_answers_are_not_taken_for_steady_ones(tmp_path: Path) -> None:
    document = run(PLAN, tmp_path, lane(PINNED, lambda question, max_tokens: answered("")))
    assert [row["num_empty"] for row in document["rows"]] == [10, 10]
    assert "20 answers were empty" in comparison_report(document).lead


@pytest.fixture
def server() -> Iterator[LiveServer]:
    with live_server() as script:
        yield script


def live_run(server: LiveServer, folder: Path, max_calls: int) -> dict[str, Any]:
    meter = CallMeter(max_calls)
    with closing(AnthropicEngine(official_endpoint("anthropic", "claude-haiku-4-5", server.url), meter)) as engine:
        return run(WITH_LIVE, folder, live_lane(f"live {LIVE}", engine, meter=meter))


def test_a_live_lane_records_what_was_pinned_and_why_its_answers_are_no_views(
    server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    server.say(Said(message("FACTS\n", "claude-haiku-4-5-20251001")))
    document = live_run(server, tmp_path, 100)
    live = document["lanes"][0]
    assert live["identity"]["kind"] == "unpinned"
    assert live["identity"]["pins"]["temperature"] == "sent: 0"
    assert live["calls"] == {
        "num_calls": 20,
        "num_answers": 20,
        "num_retries": 0,
        "num_rate_limits": 0,
        "waited_s": 0,
        "input_tokens": 260,
        "output_tokens": 140,
    }
    assert (live["models"], live["fingerprints"]) == (["claude-haiku-4-5-20251001"], [])
    assert (live["num_valid_views"], sum(found["count"] for found in live["why_invalid"])) == (0, 20)
    cell = document["cells"][0]
    assert cell["models"] == ["claude-haiku-4-5-20251001"]
    assert (cell["num_valid_views"], cell["why_invalid"][0]["count"]) == (0, 5)
    assert "section" in cell["why_invalid"][0]["reason"] or "field" in cell["why_invalid"][0]["reason"]
    assert document["rows"][0]["logprobs_drifted"] is None
    assert document["rows"][0]["first_differing_token"] is None


def test_the_key_stands_in_no_result(server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    server.say(Said(message("FACTS\n", "claude-haiku-4-5")))
    document = live_run(server, tmp_path, 100)
    assert KEY in json.dumps(dict(server.asked[0].headers))
    report = comparison_report(document, has_plot=True)
    written = [json.dumps(document), render_markdown(report), render_page(report)]
    written += [path.read_text(encoding="utf-8") for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) >= 4
    assert not any(KEY in text for text in written)


def test_the_limit_of_calls_keeps_what_was_paid_for_and_a_later_run_goes_on(
    server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    server.say(Said(message("FACTS\n", "claude-haiku-4-5")))
    with pytest.raises(CallLimitError):
        live_run(server, tmp_path, 7)
    assert len(server.asked) == 7
    rows = rows_of(tmp_path)
    assert count_calls(f"live {LIVE}", rows) == pytest.approx(
        {"num_calls": 7, "num_answers": 7, "num_retries": 0, "num_rate_limits": 0, "waited_s": 0}
        | {"input_tokens": 91, "output_tokens": 49}
    )
    document = live_run(server, tmp_path, 13)
    assert (len(server.asked), document["is_complete"]) == (20, True)
    assert document["lanes"][0]["calls"]["num_calls"] == 20


def test_a_refused_key_ends_the_run_with_nothing_written_as_an_answer(
    server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    server.say(Said({"error": {"type": "authentication_error", "message": KEY}}, 401))
    with pytest.raises(DpmError, match="ANTHROPIC_API_KEY"):
        live_run(server, tmp_path, 7)
    assert [key for key in rows_of(tmp_path) if key.rpartition(" | ")[2] == "0" and "calls" not in key] == []


def test_the_paper_s_figures_stand_in_the_report_as_published(tmp_path: Path) -> None:
    report = comparison_report(run(PLAN, tmp_path, lane(PINNED, steady)))
    measured, paper = report.sections[0].blocks[:2]
    assert [row[0] for row in paper.rows] == [row.case for row in TABLE_3]  # type: ignore[union-attr]
    assert "nothing in it was measured here" in paper.note  # type: ignore[union-attr]
    assert {row[0] for row in measured.rows} == {PINNED}  # type: ignore[union-attr]


def test_a_report_shows_a_model_s_words_as_text(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>|**x**\u202e"
    plan = replace(PLAN, pinned=False, live=f"openai:{hostile}")
    document = run(plan, tmp_path, lane(f"live openai:{hostile}", steady))
    shown, text = (f(comparison_report(document)) for f in (render_page, render_markdown))
    for output in (shown, text):
        assert "<script>" not in output
        assert "\u202e" not in output
    assert "|**x**" not in text


def test_a_run_that_is_not_complete_says_so_first(tmp_path: Path) -> None:
    document = run(WITH_FREE, tmp_path, lane(PINNED, steady))
    assert not document["is_complete"]
    text = render_markdown(comparison_report(document))
    assert "This run is not complete" in text.partition("Measured here")[0]


def test_equal_results_give_equal_bytes(tmp_path: Path) -> None:
    documents = [run(PLAN, tmp_path / name, lane(PINNED, steady)) for name in "ab"]
    pages = {render_page(comparison_report(document, has_plot=True)) for document in documents}
    assert len(pages) == 1
