"""On the pinned lane even a stateful memory replays exactly, at n times the cost. A drifting engine must not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from baseline.architectures import load_architecture
from baseline.memory import Architecture
from baseline.record import BaselineRecord, build_baseline_record
from baseline.replay import replay_baseline
from benchmarks.failures.case import CaseInput, demonstration_case, run_case
from benchmarks.failures.demonstrations import halved
from benchmarks.failures.survival import DriftingEngine, measure_survival
from determinism.tiny_model import write_tiny_model
from inference.config import EngineConfig
from projection.engine import Engine
from projection.replay import ReplayReport, ReplayTools
from projection.view_grammar import Profile

pytestmark = pytest.mark.engine

CASE = replace(demonstration_case(Profile(2)), budget_chars=200)
HALF = halved(demonstration_case(Profile(2)))


@pytest.fixture(scope="module")
def tiny_engine(
    engine_config: EngineConfig, model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    from inference.vllm_engine import VllmEngine

    directory = write_tiny_model(model_dir, tmp_path_factory.mktemp("tiny"))
    with VllmEngine.load(engine_config, directory) as engine:
        yield engine


@pytest.fixture(scope="module")
def every_event() -> Architecture:
    return load_architecture("summarize_every_event")


@pytest.fixture(scope="module")
def record(tiny_engine: Engine, every_event: Architecture) -> BaselineRecord:
    run = run_case(every_event, tiny_engine, CASE)
    return build_baseline_record(run, every_event, tiny_engine, CASE.events, CASE.task, CASE.profile)


def replay(record: BaselineRecord, architecture: Architecture, engine: Engine, case: CaseInput = CASE) -> ReplayReport:
    tools = ReplayTools(lambda: engine.tokenizer, lambda: engine)
    return replay_baseline(record, architecture, case.events, "R3", tools)


def test_six_summaries_and_their_decision_replay_bit_for_bit(
    record: BaselineRecord, every_event: Architecture, tiny_engine: Engine
) -> None:
    assert len(record.content.calls) == 7
    report = replay(record, every_event, tiny_engine)
    assert report.first_divergence is None
    assert report.levels == {"R0": "PASS", "R1": "PASS", "R2": "PASS", "R3": "PASS"}


def test_an_engine_that_drifts_fails_just_the_regeneration(
    record: BaselineRecord, every_event: Architecture, tiny_engine: Engine
) -> None:
    report = replay(record, every_event, DriftingEngine(tiny_engine, rate=1.0, seed=1))
    assert report.levels == {"R0": "PASS", "R1": "PASS", "R2": "PASS", "R3": "DRIFT"}
    assert report.first_divergence is not None
    assert report.first_divergence.call == "event 1"


def test_replays_beside_each_other_all_survive(every_event: Architecture, tiny_engine: Engine) -> None:
    survival = measure_survival(every_event, tiny_engine, lambda _: tiny_engine, CASE, num_replays=3)
    assert survival.survived == (3,) * 6
    assert (survival.num_same_memory, survival.drift_rate) == (3, 0.0)


def test_a_closed_world_summary_replays_too(tiny_engine: Engine) -> None:
    architecture = load_architecture("summarize_every_event_closed_world")
    run = run_case(architecture, tiny_engine, HALF)
    record = build_baseline_record(run, architecture, tiny_engine, HALF.events, HALF.task, HALF.profile)
    assert replay(record, architecture, tiny_engine, HALF).verdict == "PASS"
