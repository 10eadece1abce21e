"""The demonstrations of failure: each measures what it says, and each has a control that comes out the other way."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baseline.architectures import load_architecture
from baseline.memory import NOTHING
from benchmarks.failures.__main__ import parse_arguments
from benchmarks.failures.cache import SummaryCache, Tenant, fold_cached, key_by_case, key_by_content, measure_leak
from benchmarks.failures.case import (
    CONCURRENT_AT,
    build_case_memory,
    demonstration_case,
    other_tenant_s_case,
    run_case,
    swap_arrivals,
)
from benchmarks.failures.cost import measure_replay_cost
from benchmarks.failures.demonstrations import (
    PARTS,
    Countdown,
    halved,
    plan_pinned,
    plan_uncontrolled,
    run_demonstrations,
    run_parameters,
)
from benchmarks.failures.order import measure_order, offered_values
from benchmarks.failures.survival import DriftingEngine, count_same_calls, measure_survival
from inference.scripted_engine import ScriptedEngine
from projection.engine import EngineIdentity
from projection.entry import Stream
from projection.errors import RequestError
from projection.events import LoggedEvent
from projection.grammar import Grammar
from projection.view_grammar import Profile
from reporting.journal import JournalError
from tests.baseline.speaking_engine import SpeakingEngine
from tests.projection.cases import odd_logs, task

CASE = demonstration_case(Profile(2))
FIRST = Tenant(Stream("tenant-a", "LN-7"), CASE)
SECOND = Tenant(Stream("tenant-b", "LN-7"), other_tenant_s_case(Profile(2)))
EVERY_EVENT = load_architecture("summarize_every_event")


def memory_in(prompt: str) -> str:
    """The memory that an update's prompt shows, without its bars."""
    memory = prompt.partition("MEMORY SO FAR\n")[2].partition("\n\n")[0].replace("| ", "")
    return "" if memory == NOTHING else memory


def keep_what_fits(prompt: str) -> str:
    """A summariser with room for three amounts: it adds each event's last one while there is room."""
    kept, amounts = memory_in(prompt).split(), re.findall(r"\$[0-9,.]+[0-9]", prompt.partition("NEXT EVENT\n")[2])
    return " ".join([*kept, *amounts[-1:]][:3])


def cite_the_credit_report(prompt: str) -> str:
    """A summariser that notes where the credit report stands, and nothing else."""
    found = re.search(r"\[[0-9]\](?= tool\.credit)", prompt)
    return f"it stands in {found[0]}" if found else memory_in(prompt)


def test_calls_grow_with_the_events_of_a_summary_and_not_of_a_projection() -> None:
    costs = {
        (name, case.events[-1].position): measure_replay_cost(load_architecture(name), ScriptedEngine(), case)
        for name in ("dpm", "summarize_every_event", "retrieval")
        for case in (halved(CASE), CASE)
    }
    assert {key: cost.num_calls for key, cost in costs.items()} == {
        ("dpm", 3): 2, ("dpm", 6): 2,
        ("summarize_every_event", 3): 4, ("summarize_every_event", 6): 7,
        ("retrieval", 3): 1, ("retrieval", 6): 1,
    }  # fmt: skip
    assert all(cost.replay_verdict == "PASS" for cost in costs.values())
    assert all(cost.audit_bytes > 0 for cost in costs.values())


def test_a_summariser_that_keeps_what_fits_keeps_other_values_in_the_other_order() -> None:
    engine = SpeakingEngine(keep_what_fits)
    found = measure_order(EVERY_EVENT, engine, CASE, CONCURRENT_AT)
    assert not found.is_same_memory
    assert found.values_lost == ("$6,100.00", "$9,310")
    assert found.num_same_prompts == CONCURRENT_AT - 1


def test_a_summariser_that_says_the_same_of_both_orders_is_no_finding() -> None:
    found = measure_order(EVERY_EVENT, SpeakingEngine(lambda _: "the same memory"), CASE, CONCURRENT_AT)
    assert (found.is_same_memory, found.values_lost, found.is_same_decision) == (True, (), True)


def test_memories_are_compared_with_their_citations_renumbered() -> None:
    found = measure_order(EVERY_EVENT, SpeakingEngine(cite_the_credit_report), CASE, CONCURRENT_AT)
    assert found.is_same_memory


def test_a_swap_moves_two_events_and_renumbers_them() -> None:
    swapped = swap_arrivals(CASE.events, CONCURRENT_AT)
    assert [event.event.event_id for event in swapped] == ["e1", "e2", "e4", "e3", "e5", "e6"]
    assert [event.position for event in swapped] == [1, 2, 3, 4, 5, 6]


@settings(deadline=None, max_examples=40)
@given(odd_logs, st.data())
def test_what_a_projection_can_choose_from_does_not_depend_on_the_order(
    events: list[LoggedEvent], data: st.DataObject
) -> None:
    order = data.draw(st.permutations([event.event for event in events]))
    other = [LoggedEvent(position, event) for position, event in enumerate(order, start=1)]
    assert offered_values(events, task()) == offered_values(other, task())


def test_a_cache_keyed_by_the_case_alone_serves_another_tenant() -> None:
    first, second = (Tenant(tenant.stream, halved(tenant.case)) for tenant in (FIRST, SECOND))
    leak = measure_leak(key_by_case, ScriptedEngine(), first, second)
    assert leak.num_hits == len(first.case.events)
    assert not leak.is_own_memory
    assert {"$7,250.00", "$268,000", "688"} <= set(leak.foreign_values)


def test_a_cache_keyed_by_content_and_tenant_does_not() -> None:
    leak = measure_leak(key_by_content, ScriptedEngine(), FIRST, SECOND)
    assert (leak.num_hits, leak.is_own_memory, leak.foreign_values) == (0, True, ())


def test_a_cache_serves_its_own_tenant_what_it_would_have_computed() -> None:
    cache = SummaryCache(key_by_content)
    first, again = fold_cached(cache, FIRST, ScriptedEngine()), fold_cached(cache, FIRST, ScriptedEngine())
    assert (first.num_hits, again.num_hits, again.text) == (0, len(CASE.events), first.text)
    uncached = run_case(load_architecture("summarize_on_overflow"), ScriptedEngine(), CASE)
    assert first.text == uncached.built.text


def test_every_replay_on_a_pinned_engine_survives() -> None:
    engine = ScriptedEngine()
    for name in ("dpm", "summarize_every_event", "summarize_on_overflow", "retrieval"):
        survival = measure_survival(load_architecture(name), engine, lambda _: engine, CASE, num_replays=5)
        assert survival.survived == (5,) * survival.num_calls
        assert (survival.num_same_memory, survival.drift_rate) == (5, 0.0)


def test_on_an_engine_that_always_drifts_nothing_survives() -> None:
    engine = ScriptedEngine()
    survival = measure_survival(EVERY_EVENT, engine, lambda n: DriftingEngine(engine, 1.0, n), CASE, num_replays=5)
    assert survival.survived == (0,) * 6
    assert (survival.drift_rate, survival.predicted) == (1.0, (0.0,) * 6)


def test_survival_falls_with_the_number_of_calls_as_the_formula_says() -> None:
    """The control's drifts are hashes, so these counts are exact: at 10%, of 100 replays, within 3 standard errors."""
    engine, num_replays = ScriptedEngine(), 100
    survival = measure_survival(EVERY_EVENT, engine, lambda n: DriftingEngine(engine, 0.1, n), CASE, num_replays)
    for num_calls, survived in enumerate(survival.survived, start=1):
        expected = 0.9**num_calls
        assert abs(survived / num_replays - expected) < 3 * (expected * (1 - expected) / num_replays) ** 0.5
        predicted = survival.predicted[num_calls - 1]
        assert abs(survived / num_replays - predicted) < 3 * (predicted * (1 - predicted) / num_replays) ** 0.5
    projected = measure_survival(
        load_architecture("dpm"), engine, lambda n: DriftingEngine(engine, 0.1, n), CASE, num_replays
    )
    assert projected.survived[-1] > survival.survived[-1]


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 255), min_size=1, max_size=9))
def test_a_drift_is_a_function_of_seed_and_prompt(seed: int, prompt: list[int]) -> None:
    engine = ScriptedEngine()
    assert not DriftingEngine(engine, 0.0, seed).drifts(prompt)
    assert DriftingEngine(engine, 1.0, seed).drifts(prompt)
    one, other = (DriftingEngine(engine, 0.5, seed).generate(prompt, 400, None) for _ in range(2))
    assert one.token_ids == other.token_ids
    is_same = one.token_ids == engine.generate(prompt, 400, None).token_ids
    assert is_same is not DriftingEngine(engine, 0.5, seed).drifts(prompt)


def test_calls_count_as_the_same_up_to_the_first_that_differs() -> None:
    engine = ScriptedEngine()
    reference = build_case_memory(EVERY_EVENT, engine, CASE)
    assert count_same_calls(reference, build_case_memory(EVERY_EVENT, engine, CASE)) == 6
    swapped = replace(CASE, events=swap_arrivals(CASE.events, 5))
    assert count_same_calls(reference, build_case_memory(EVERY_EVENT, engine, swapped)) == 4


def test_survival_is_measured_on_an_engine_that_takes_no_grammar(tmp_path: Path) -> None:
    class FreeEngine(ScriptedEngine):
        def script(self, prompt_token_ids: Sequence[int], grammar: Grammar | None) -> tuple[int, ...]:
            if grammar is not None:
                raise RequestError("no grammar can be imposed here")
            return super().script(prompt_token_ids, grammar)

    planned = plan_uncontrolled([EVERY_EVENT], Profile(2), num_replays=2, num_events=None)
    planned += plan_uncontrolled([EVERY_EVENT], Profile(2), num_replays=2, num_events=9)
    engine = FreeEngine()
    rows = run_demonstrations(
        planned, engine, run_parameters(engine.identity, Profile(2)), tmp_path, lambda _: None
    ).rows
    assert list(rows) == [f"survival/summarize_every_event/{n} events/2 replays" for n in (6, 9)]
    assert [(row["num_calls"], row["num_same_memory"]) for row in rows.values()] == [(6, 2), (9, 2)]


def test_every_part_is_run_once_and_a_killed_run_goes_on(tmp_path: Path) -> None:
    names = ("dpm", "retrieval")
    planned = plan_pinned([load_architecture(name) for name in names], ScriptedEngine(), Profile(2), 4)
    engine, said = ScriptedEngine(), list[str]()
    run_demonstrations(planned[:3], engine, run_parameters(engine.identity, Profile(2)), tmp_path, said.append)
    told = len(said)
    found = run_demonstrations(planned, engine, run_parameters(engine.identity, Profile(2)), tmp_path, said.append)
    assert [line.partition(":")[0] for line in said[told:] if "call" not in line] == [one.key for one in planned[3:]]
    parts = [key.partition("/")[0] for key in found.rows]
    assert list(dict.fromkeys(parts)) == list(PARTS)
    assert [parts.count(part) for part in PARTS] == [2] * 6
    assert found.parameters["engine_identity"] == engine.identity.digest
    others = [
        run_parameters(EngineIdentity({"kind": "another"}), Profile(2)),
        run_parameters(engine.identity, Profile(1)),
    ]
    for other in others:
        with pytest.raises(JournalError):
            run_demonstrations(planned, engine, other, tmp_path, said.append)


def test_on_a_pinned_engine_stateful_memories_replay_exactly_at_n_times_the_calls(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    planned = plan_pinned([load_architecture("dpm"), EVERY_EVENT], engine, Profile(2), 4)
    rows = run_demonstrations(
        planned, engine, run_parameters(engine.identity, Profile(2)), tmp_path, lambda _: None
    ).rows
    costs = {key: row for key, row in rows.items() if key.startswith("replay_cost")}
    assert {row["replay_verdict"] for row in costs.values()} == {"PASS"}
    assert [row["num_calls"] for row in costs.values()] == [2, 4, 2, 7]
    control = rows["survival_of_the_control/summarize_every_event"]
    assert control["survived"][-1] < control["num_replays"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--replays", "3"], "go with --uncontrolled"),
        (["--replays", "0"], "go with --uncontrolled"),
        (["--events", "9"], "go with --uncontrolled"),
        (["--uncontrolled", "float32", "--engine", "vllm"], "leave out --engine"),
        (["--uncontrolled", "float32", "--architectures", "dpm"], "no grammar of ours"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_arguments(["--out", "here", *words])
    assert message in capsys.readouterr().err


def test_options_that_go_together_are_taken() -> None:
    there = parse_arguments(["--out", "here", "--uncontrolled", "float32", "--replays", "3", "--events", "9"])
    assert (there.replays, there.events) == (3, 9)
    assert parse_arguments(["--out", "here", "--engine", "scripted"]).engine == "scripted"


def test_the_time_left_is_that_of_the_calls_that_are_left() -> None:
    said: list[str] = []
    countdown = Countdown(4, said.append)
    countdown.begin("one", 2)
    for _ in range(5):
        countdown.on_call()  # more than were expected
    countdown.begin("two", 2)
    assert said[0] == "one: time left unknown"
    assert said[-1].startswith("two: about ")
