"""The mutation job on a real model under vLLM: one changed flag, weight byte, prompt byte or event turns the gate red.

The model is tiny and random, its kernels are real. Goldens are approved once; then every mutation is a run of `dpm
determinism gate` in a process of its own. `test_gate_mutations.py` does the same, and more, without a model.
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

from determinism.tiny_model import write_tiny_model
from tests.determinism.gate.pinned_script import flip_weight_byte, pin_again

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "claim"
CASES = ("untouched", "other_event", "other_prompt")
ENGINE_VARIABLES = ("OMP_", "VLLM_", "TORCHDYNAMO_", "HF_HUB_")  # an engine of this process may have set some


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    document: dict[str, Any]

    @property
    def findings(self) -> dict[str, dict[str, Any]]:
        return {finding["case"]: finding for finding in self.document["findings"]}


@dataclass(frozen=True, slots=True)
class Project:
    """A user's folder: three equal cases, their goldens, a configuration, and the pinned model in a home of its own."""

    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "home" / "weights" / "tiny"

    def dpm(self, *args: str, home: str = "home") -> Done:
        done = self.run("-m", "service.cli", "determinism", *args, "--goldens", "goldens", "--json", home=home)
        assert done.stdout, done.stderr
        return Done(done.returncode, json.loads(done.stdout))

    def run(self, *args: str, home: str = "home") -> subprocess.CompletedProcess[str]:
        """Python in the project's folder, with an environment that no engine has touched."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ENGINE_VARIABLES)}
        environ = kept | {"DPM_HOME": str(self.folder / home), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, *args]
        return subprocess.run(command, cwd=self.folder, env=environ, capture_output=True, text=True, check=False)

    def with_other_weights(self, home: str) -> Path:
        """A second home, whose model has one other bit; returns the model's folder."""
        copy = self.folder / home / "weights" / "tiny"
        shutil.copytree(self.model, copy)
        flip_weight_byte(copy)
        return copy


def flip_byte(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture(scope="module")
def project(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Approved on the tiny model; then one byte of one case's events and of another's task is changed."""
    project = Project(tmp_path_factory.mktemp("mutations"))
    project.model.parent.mkdir(parents=True)
    write_tiny_model(model_dir, project.model)
    text = (ROOT / "gpu_configs" / "cpu.yaml").read_text(encoding="utf-8")
    for name, context in (("tiny", "6000"), ("flag", "5999")):
        config = text.replace("model: smollm2-135m-instruct", "model: tiny").replace("8192", context)
        (project.folder / f"{name}.yaml").write_text(config, encoding="utf-8")
    (project.folder / "goldens").mkdir()
    listed = [
        f"- {{name: {name}, events: ../{name}/events.jsonl, task: ../{name}/task.yaml, budget_chars: 800}}"
        for name in CASES
    ]
    (project.folder / "goldens" / "cases.yaml").write_text("cases:\n" + "\n".join(listed), encoding="utf-8")
    for name in CASES:
        shutil.copytree(EXAMPLE, project.folder / name)
    approved = project.dpm("approve", "--reason", "first answers", "--by", "ann", "--config", "tiny.yaml")
    assert approved.code == 0, approved.document
    flip_byte(
        project.folder / "other_event" / "events.jsonl", "Prior claim CLM-2023-04471", "Prior claim CLM-2023-04472"
    )
    flip_byte(project.folder / "other_prompt" / "task.yaml", "on the latest figures", "on the latest Figures")
    return project


def test_one_event_and_one_prompt_byte_are_drifts_beside_a_case_that_passes(project: Project) -> None:
    """One run: R1 stops the changed cases before an answer is asked for; the control is asked for both of its calls."""
    done = project.dpm("gate", "--config", "tiny.yaml", "--strict")
    findings = done.findings
    assert done.code == 1
    assert {name: finding["verdict"] for name, finding in findings.items()} == {
        "untouched": "PASS", "other_event": "DRIFT", "other_prompt": "DRIFT",
    }  # fmt: skip
    assert findings["untouched"]["num_replays"] == 1
    event, prompt = findings["other_event"]["divergence"], findings["other_prompt"]["divergence"]
    assert (event["level"], event["call"], event["cause"]) == ("R1", "projection", "event 1 changed")
    assert (event["recorded"][:3], event["found"][:3]) == ("'1'", "'2'")
    assert (prompt["level"], prompt["call"], prompt["cause"]) == ("R1", "projection", "task question changed")
    assert prompt["index"] is not None
    assert "Fig" in prompt["found"]


def test_an_engine_flag_is_incomparable_and_named(project: Project) -> None:
    done = project.dpm("gate", "--config", "flag.yaml")
    assert done.code == 3
    assert {finding["verdict"] for finding in done.findings.values()} == {"INCOMPARABLE"}
    assert "flags.max_model_len" in done.findings["untouched"]["differing_fields"]
    assert not [name for name in done.findings["untouched"]["differing_fields"] if name.startswith("weights")]


def test_a_weight_byte_stops_the_start_and_is_named(project: Project) -> None:
    project.with_other_weights("changed")
    done = project.dpm("gate", "--config", "tiny.yaml", home="changed")
    assert done.code == 4
    (difference,) = done.document["error"]["fields"]["differences"]
    assert difference["name"] == "model.safetensors"


def test_a_weight_byte_that_was_pinned_again_is_incomparable_and_named(project: Project) -> None:
    pin_again(project.with_other_weights("pinned"))
    done = project.dpm("gate", "--config", "tiny.yaml", home="pinned")
    assert done.code == 3
    assert {finding["verdict"] for finding in done.findings.values()} == {"INCOMPARABLE"}
    assert done.findings["untouched"]["differing_fields"] == ["weights.manifest_digest"]


PLUGIN_TESTS = """
import pytest

@pytest.mark.dpm_replays(1, perturbations=["run_to_run", "batch_size", "arrival_order", "strangers", "neighbour_abort"])
def test_untouched(dpm_gate):
    dpm_gate("untouched")

def test_other_event(dpm_gate):
    dpm_gate("other_event", events="other_event/events.jsonl", task="other_event/task.yaml", budget_chars=800)
"""


def test_the_pytest_plugin_agrees_on_the_same_goldens_and_under_circumstances(project: Project) -> None:
    (project.folder / "test_cases.py").write_text(PLUGIN_TESTS, encoding="utf-8")
    plugin = ("-p", "no:dpm_determinism", "-p", "determinism.pytest_plugin")
    done = project.run("-m", "pytest", *plugin, "--det-config", "tiny.yaml", "--det-report", "plugin.json")
    findings = json.loads((project.folder / "plugin.json").read_text(encoding="utf-8"))["findings"]
    assert {finding["case"]: finding["verdict"] for finding in findings} == {
        "untouched": "PASS", "other_event": "DRIFT",
    }, done.stdout  # fmt: skip
    assert "1 failed, 1 passed" in done.stdout
    assert "DRIFT other_event: R1: event 1 changed; " in done.stdout
