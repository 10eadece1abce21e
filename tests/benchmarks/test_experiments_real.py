"""On a real engine too, eight at a time write the rows of one at a time."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from baseline.architectures import load_architecture
from benchmarks.experiments.answers import plan_jobs
from benchmarks.experiments.runner import SCHEMA_VERSION, Setting, run_experiment
from benchmarks.longhorizon.generator import generate_cases
from determinism.tiny_model import write_tiny_model
from inference.config import EngineConfig
from projection.view_grammar import Profile
from reporting.journal import read_journal
from tests.benchmarks.test_experiments import Quiet

pytestmark = pytest.mark.engine
SCHEMA = "dpm.bench.quality"


def test_on_the_pinned_lane_rows_do_not_depend_on_how_many_are_in_flight(
    tmp_path: Path, engine_config: EngineConfig, model_dir: Path
) -> None:
    from inference.vllm_engine import VllmEngine

    cases = list(generate_cases("mortgage", "small", count=3))
    architectures = [load_architecture(name) for name in ("dpm", "retrieval")]
    jobs = plan_jobs(cases, architectures, [Fraction(5)])
    with VllmEngine.load(engine_config, write_tiny_model(model_dir, tmp_path / "tiny")) as engine:
        for concurrency in (1, 8):
            setting = Setting(engine, Profile(2), tmp_path / str(concurrency))
            run_experiment(SCHEMA, jobs, setting, Quiet(), concurrency=concurrency)
        assert engine.counters().max_num_running > 1, "nothing ran side by side"
    one, eight = (read_journal(tmp_path / n, schema=SCHEMA, version=SCHEMA_VERSION).rows for n in ("1", "8"))
    assert one == eight
    assert len(one) == len(jobs)
    assert sum(row["status"] == "scored" for row in one.values()) == len(jobs)
