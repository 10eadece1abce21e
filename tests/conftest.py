"""What tests of the real engine share: the pinned model and one vLLM engine for the whole session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from inference.config import EngineConfig, load_config

if TYPE_CHECKING:
    from inference.vllm_engine import VllmEngine

ROOT = Path(__file__).parents[1]
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")  # no test of ours fails because a machine is slow


@pytest.fixture(scope="session")
def engine_config() -> EngineConfig:
    """The CPU profile that ships with the project."""
    return load_config(ROOT / "gpu_configs" / "cpu.yaml")


@pytest.fixture(scope="session")
def model_dir(engine_config: EngineConfig) -> Path:
    """The pinned directory of the profile's model; `make weights` puts it there."""
    directory = ROOT / os.environ.get("DPM_HOME", ".dpm") / "weights" / engine_config.model
    assert directory.is_dir(), f"{directory} is not there; run 'make weights'"
    return directory


@pytest.fixture(scope="session")
def vllm_engine(engine_config: EngineConfig, model_dir: Path) -> Iterator[VllmEngine]:
    """The real engine, started once; tests must leave it as they found it."""
    from inference.vllm_engine import VllmEngine

    with VllmEngine.load(engine_config, model_dir) as engine:
        yield engine
