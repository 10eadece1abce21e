"""The doctor on real kernels: a record of an engine without our attention is explained by that, and by nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from determinism.tiny_model import write_tiny_model
from inference.config import EngineConfig
from tests.determinism.plain_config import PLAIN

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[3]
CLAIM = ROOT / "examples" / "claim"
TINY = PLAIN.model_copy(update={"model": "tiny", "kv_cache_gib": 0.25})


def write_config(path: Path, is_invariant: bool) -> Path:
    """The tiny model's configuration, with our attention or without."""
    values = TINY.model_dump(mode="json", exclude_none=True)
    values["attention"]["invariant"] = is_invariant
    EngineConfig.model_validate(values)
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def dpm(folder: Path, *arguments: object) -> tuple[int, dict[str, Any]]:
    """The command line in a process of its own, as vLLM needs; its exit code and document."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "OMP_"))}
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", *map(str, arguments), "--json"],
        cwd=folder,
        env=environ | {"PYTHONPATH": str(ROOT), "DPM_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_attention_that_was_switched_off_is_named_as_the_cause(model_dir: Path, tmp_path: Path) -> None:
    write_tiny_model(model_dir, tmp_path / "home" / "weights" / "tiny")
    without, ours = write_config(tmp_path / "without.yaml", False), write_config(tmp_path / "ours.yaml", True)
    code, decided = dpm(
        tmp_path, "decide", CLAIM / "events.jsonl", "--task", CLAIM / "task.yaml", "--config", without
    )  # fmt: skip
    assert code == 0
    code, found = dpm(tmp_path, "determinism", "explain", decided["record_id"], "--config", ours)
    assert (code, found["verdict"]) == (3, "INCOMPARABLE")
    assert [(cause["name"], cause["change"]) for cause in found["causes"]] == [("invariant attention", "on -> off")]
    assert found["fixed_fields"] == []
    first = found["divergences"][0]["first"]
    assert first["recorded"] != first["found"]  # the token, its log-probability or its margin
