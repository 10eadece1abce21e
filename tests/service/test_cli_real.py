"""The command line on the real vLLM, each command in its own process: two give the same bytes, a third replays them.

About three minutes on two cores, most of it the model. The cases share one decision, made once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "mortgage"
ENGINE_VARIABLES = ("OMP_", "VLLM_", "TORCHDYNAMO_", "HF_HUB_")  # an engine of this process may have set some


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    document: dict[str, Any]


def dpm(*args: object, home: Path) -> Done:
    command = [sys.executable, "-m", "service.cli", *map(str, args), "--json"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ENGINE_VARIABLES)}
    environ = kept | {"DPM_HOME": str(home)}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return Done(done.returncode, json.loads(done.stdout))


def decide(db: Path, home: Path, *more: object) -> Done:
    return dpm("decide", EXAMPLE / "events.jsonl", "--task", EXAMPLE / "task.yaml", "--db", db, *more, home=home)


@pytest.fixture(scope="module")
def home(model_dir: Path) -> Path:
    """The folder that holds the pinned weights."""
    return model_dir.parents[1].resolve()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("decided")


@pytest.fixture(scope="module")
def decided(folder: Path, home: Path) -> dict[str, Any]:
    """The mortgage example, decided into one.sqlite."""
    done = decide(folder / "one.sqlite", home)
    assert done.code == 0, done.document
    return done.document


def test_a_second_process_with_a_log_of_its_own_gives_the_same_bytes(
    decided: dict[str, Any], folder: Path, home: Path
) -> None:
    again = decide(folder / "two.sqlite", home).document
    assert again["content_digest"] == decided["content_digest"]
    assert again["view"]["text"].encode() == decided["view"]["text"].encode()
    assert again["decision"] == decided["decision"]
    assert again["engine_identity"] == decided["engine_identity"]
    assert again["record_id"] != decided["record_id"]
    assert again["log_head"] != decided["log_head"]


def test_a_third_process_replays_the_decision_at_every_level(decided: dict[str, Any], folder: Path, home: Path) -> None:
    replayed = dpm("replay", decided["record_id"], "--level", "R3", "--db", folder / "one.sqlite", home=home)
    assert replayed.code == 0, replayed.document
    assert replayed.document["levels"] == {"R0": "PASS", "R1": "PASS", "R2": "PASS", "R3": "PASS"}
    assert replayed.document["engine_identity"] == decided["engine_identity"]


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("num_threads: 1", "num_threads: 2", "device.num_threads"),
        ("max_model_len: 8192", "max_model_len: 4096", "flags.max_model_len"),
    ],
)
def test_a_replay_on_another_configuration_is_incomparable_and_names_the_field(
    decided: dict[str, Any], folder: Path, home: Path, old: str, new: str, named: str
) -> None:
    text = (ROOT / "gpu_configs" / "cpu.yaml").read_text(encoding="utf-8")
    assert old in text
    config = folder / "other.yaml"
    config.write_text(text.replace(old, new), encoding="utf-8")
    replayed = dpm("replay", decided["record_id"], "--config", config, "--db", folder / "one.sqlite", home=home)
    assert (replayed.code, replayed.document.get("verdict")) == (3, "INCOMPARABLE"), replayed.document
    assert replayed.document["levels"] == {"R0": "PASS", "R1": "PASS", "R2": "INCOMPARABLE", "R3": None}
    assert named in replayed.document["first_divergence"]["detail"]


def test_a_changed_weight_byte_stops_the_start_and_is_named(
    decided: dict[str, Any], folder: Path, model_dir: Path
) -> None:
    other_home = folder / "home"
    copy = other_home / "weights" / model_dir.name
    shutil.copytree(model_dir, copy)
    weights = copy / "model.safetensors"
    with weights.open("r+b") as file:
        file.seek(weights.stat().st_size - 1000)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    try:
        for done in (
            decide(folder / "three.sqlite", other_home),
            dpm("replay", decided["record_id"], "--db", folder / "one.sqlite", home=other_home),
        ):
            assert done.code == 4, done.document
            error = done.document["error"]
            assert error["type"] == "WeightsError"
            assert "model.safetensors" in error["message"]
            (difference,) = error["fields"]["differences"]
            assert difference["name"] == "model.safetensors"
            assert difference["expected"] != difference["found"]
    finally:
        shutil.rmtree(other_home)
