"""All architectures behind one call shape: counts, budgets, determinism, and DPM unchanged among them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baseline.architectures import ARCHITECTURES, load_architecture
from baseline.record import BaselineRecord, build_baseline_record, measure_surface
from baseline.run import run_architecture
from inference.scripted_engine import ScriptedEngine
from projection.errors import RequestError
from projection.events import LoggedEvent
from projection.projector import project
from projection.view_grammar import Profile
from tests.projection.cases import odd_logs, task
from tests.projection.examples import ExampleCase, example

PROFILE = Profile(2)
NAMES = [name for name in ARCHITECTURES if name != "retrieval_embeddings"]  # which needs a package of its own
CALLS_OF_MORTGAGE = {
    "dpm": 2,
    "summarize_every_event": 27,
    "summarize_every_event_closed_world": 27,
    "retrieval": 1,
}


def record_of(name: str, case: ExampleCase, budget_chars: int = 1338) -> BaselineRecord:
    engine, architecture = ScriptedEngine(), load_architecture(name)
    run = run_architecture(architecture, engine, case.events, case.task, budget_chars, PROFILE)
    return build_baseline_record(run, architecture, engine, case.events, case.task, PROFILE)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case_name", ["mortgage", "claim"])
def test_an_example_is_decided_within_its_budget_and_the_same_way_twice(name: str, case_name: str) -> None:
    case = example(case_name)
    first, second = record_of(name, case), record_of(name, case)
    assert first.content.budget.used_chars == len(first.content.memory_text) <= 1338
    assert first.content_digest == second.content_digest
    assert first.content.decision.outcome in {outcome.name for outcome in case.task.outcomes}


@pytest.mark.parametrize(("name", "num_calls"), CALLS_OF_MORTGAGE.items())
def test_calls_are_counted_exactly(name: str, num_calls: int) -> None:
    record = record_of(name, example("mortgage"))
    assert len(record.content.calls) == len(record.wall_s) == num_calls
    assert measure_surface(record, ScriptedEngine().tokenizer).num_calls == num_calls


def test_the_projection_among_them_is_the_projection_of_the_product() -> None:
    case = example("mortgage")
    built = load_architecture("dpm").build_memory(ScriptedEngine(), case.events, case.task, 1338, PROFILE)
    projection = project(ScriptedEngine(), case.events, case.task, 1338, PROFILE)
    assert built.memory == projection.view
    assert built.text == projection.view.text
    [call] = built.calls
    assert call.prompt_token_ids == projection.call.prompt_token_ids
    assert call.completion.token_ids == projection.call.completion.token_ids


@settings(max_examples=20)
@given(odd_logs, st.sampled_from(NAMES), st.integers(1_500, 3_000))
def test_any_log_is_decided_within_its_budget(events: list[LoggedEvent], name: str, budget_chars: int) -> None:
    run = run_architecture(load_architecture(name), ScriptedEngine(), events, task(), budget_chars, PROFILE)
    assert len(run.built.text) <= budget_chars
    assert run.num_calls == len(run.built.calls) + 1
    if name.startswith("summarize_every_event"):
        assert len(run.built.calls) == len(events)


def test_cases_in_threads_over_one_engine_come_out_as_alone() -> None:
    jobs = [(name, case_name) for name in NAMES for case_name in ("mortgage", "claim")]
    engine = ScriptedEngine()

    def decide(job: tuple[str, str]) -> str:
        name, case = job[0], example(job[1])
        architecture = load_architecture(name)
        run = run_architecture(architecture, engine, case.events, case.task, 1338, PROFILE)
        return build_baseline_record(run, architecture, engine, case.events, case.task, PROFILE).content_digest

    alone = [decide(job) for job in jobs]
    with ThreadPoolExecutor(max_workers=6) as pool:
        assert list(pool.map(decide, jobs)) == alone


def test_the_surface_is_the_bytes_of_every_prompt_and_completion() -> None:
    case, tokenizer = example("mortgage"), ScriptedEngine().tokenizer
    record = record_of("summarize_on_overflow", case)
    surface = measure_surface(record, tokenizer)
    assert surface.completion_bytes == sum(len(call.text.encode()) for call in record.content.calls)
    assert surface.prompt_bytes == sum(len(tokenizer.decode(c.prompt_token_ids).encode()) for c in record.content.calls)
    assert surface.record_bytes == len(record.to_bytes())


def test_an_unknown_architecture_is_refused_with_the_known_ones() -> None:
    with pytest.raises(RequestError, match="choose of dpm, summarize_every_event"):
        load_architecture("mem")
