"""The environment that vLLM is given: what may not contradict it, and what stdout may never see. No vLLM is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference import vllm_runtime
from inference.config import EngineConfig
from inference.containment import contained
from inference.transformers_engine import TransformersEngine
from inference.vllm_engine import VllmEngine
from projection.errors import ConfigurationError, EngineError, RequestError, WeightsError

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """An environment without a trace of an engine, given back afterwards."""
    saved = dict(os.environ)
    for name in [*os.environ]:
        if name.startswith(("VLLM_", "OMP_", "HF_", "TORCHDYNAMO_")):
            del os.environ[name]
    yield
    os.environ.clear()
    os.environ.update(saved)


def test_the_environment_is_set_from_the_configuration(engine_config: EngineConfig) -> None:
    environ = vllm_runtime.prepare_environment(engine_config)
    assert environ == dict(os.environ)
    assert environ["OMP_NUM_THREADS"] == "1"
    assert environ["VLLM_PLUGINS"] == "dpm_invariant_attention"
    assert environ["VLLM_CPU_ATTN_SPLIT_KV"] == "0"


def test_preparing_it_again_changes_nothing(engine_config: EngineConfig) -> None:
    assert vllm_runtime.prepare_environment(engine_config) == vllm_runtime.prepare_environment(engine_config)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OMP_NUM_THREADS", "2"),
        ("VLLM_ENABLE_V1_MULTIPROCESSING", "1"),
        ("VLLM_CPU_ATTN_SPLIT_KV", "1"),
        ("VLLM_BATCH_INVARIANT", "1"),
        ("VLLM_PLUGINS", ""),
        ("VLLM_CPU_KVCACHE_SPACE", "4"),
        ("HF_HUB_OFFLINE", "0"),
    ],
)
def test_a_variable_that_contradicts_the_configuration_is_named(
    engine_config: EngineConfig, name: str, value: str
) -> None:
    os.environ[name] = value
    before = dict(os.environ)
    with pytest.raises(ConfigurationError, match=name) as caught:
        vllm_runtime.prepare_environment(engine_config)
    assert caught.value.fields["variable"] == name
    assert dict(os.environ) == before


def test_what_is_not_about_bits_is_the_operators_choice(engine_config: EngineConfig) -> None:
    os.environ["VLLM_LOGGING_LEVEL"] = "DEBUG"
    assert vllm_runtime.prepare_environment(engine_config)["VLLM_LOGGING_LEVEL"] == "DEBUG"


@pytest.mark.parametrize("engine", [VllmEngine, TransformersEngine])
def test_weights_that_are_not_pinned_stop_the_start_before_anything_is_loaded(
    engine: type[VllmEngine] | type[TransformersEngine], engine_config: EngineConfig, tmp_path: Path
) -> None:
    before = dict(os.environ)
    with pytest.raises(WeightsError):
        engine.load(engine_config, tmp_path)
    assert dict(os.environ) == before


def test_foreign_errors_are_wrapped_once_and_ours_pass() -> None:
    with pytest.raises(EngineError, match="vLLM failed: KeyError") as caught, contained("vLLM"):
        raise KeyError("x")
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(RequestError), contained("vLLM"):
        raise RequestError("ours")
    with pytest.raises(KeyboardInterrupt), contained("vLLM"):
        raise KeyboardInterrupt


def test_stdout_is_kept_clean_of_python_and_of_c() -> None:
    program = """
import ctypes, os, warnings
from inference.containment import contained
print("ours", flush=True)
with contained("it"):
    print("python"); os.write(1, b"raw\\n"); warnings.warn("python")
    libc = ctypes.CDLL(None); libc.puts(b"c"); libc.fflush(None)
print("ours again")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "ours\nours again\n"
    assert sorted(done.stderr.split()) == ["c", "python", "raw"]


def test_two_threads_that_overlap_give_stdout_and_the_warnings_back_when_both_have_left() -> None:
    program = """
import os, sys, threading, warnings
from inference.containment import contained
filters, both_in, first_out = list(warnings.filters), threading.Barrier(2), threading.Event()
def leave_first():
    with contained("one"):
        both_in.wait()
    first_out.set()
def leave_last():
    with contained("other"):
        both_in.wait(); first_out.wait(); print("python"); os.write(1, b"raw\\n")
threads = [threading.Thread(target=leave) for leave in (leave_first, leave_last)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print("ours", flush=True); os.write(1, b"ours too\\n")
assert warnings.filters == filters
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "ours\nours too\n"
    assert sorted(done.stderr.split()) == ["python", "raw"]
