"""The configuration checker with vLLM's own argument parser. No engine is started and no device is touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from inference import vllm_args
from inference.checker import check
from inference.config import EngineConfig
from inference.effective import Effective
from projection.errors import ConfigurationError
from tests.inference.effective_values import (
    GPU_PROFILES,
    PROFILES,
    argument_values,
    effective,
    profile,
)

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[2]
MODEL = Path("/models/m")


def parsed(config: EngineConfig) -> Effective:
    """The facts, with vLLM's own reading of the flags and nothing else from this process."""
    return replace(effective(config), arguments=vllm_args.parse(config, MODEL))


@pytest.mark.parametrize("name", ["cpu", *GPU_PROFILES])
def test_vllm_takes_every_profile_and_no_rule_is_broken(name: str) -> None:
    facts = parsed(profile(name))
    assert facts.arguments.changed == frozenset()
    assert check(facts) == ()


@pytest.mark.parametrize("name", ["cpu", "h100", "b200"])
def test_what_the_rules_tests_take_for_vllms_reading_is_vllms_reading(name: str) -> None:
    config = profile(name)
    values = vllm_args.parse(config, MODEL).values
    expected = argument_values(config) | {"model": str(MODEL)}
    assert {key: values[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"no-such-flag": 3}, "unrecognized arguments: --no-such-flag=3"),
        ({"pipeline-parallel": 2}, "unrecognized arguments: --pipeline-parallel=2"),
        ({"pipeline-parallel-size": "two"}, "invalid int value: 'two'"),
        ({"moe-backend": "abacus"}, "invalid choice: 'abacus'"),
        ({"compilation-config": "{"}, "compilation-config"),
        ({"compilation-config.no_such_key": True}, "no_such_key"),
        ({"enable-lora": 3}, "enable-lora"),
        ({"help": True}, "help"),
    ],
)
def test_what_vllm_does_not_take_is_refused_in_its_words(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        vllm_args.parse(profile("cpu", vllm_arguments=arguments), MODEL)
    assert said in caught.value.message


@pytest.mark.parametrize(
    "changes",
    [{"kv_cache_dtype": "fp9"}, {"features": {"speculation": {"method": "ngram", "num_speculative_tokens": 2}}}],
)
def test_a_value_that_vllm_does_not_take_is_refused_or_judged(changes: dict[str, Any]) -> None:
    config = profile("h100", **changes)
    if "features" in changes:
        assert [violation.rule for violation in check(parsed(config))] == ["speculation"]
        return
    with pytest.raises(ConfigurationError, match="invalid choice: 'fp9'"):
        vllm_args.parse(config, MODEL)


@pytest.mark.parametrize(
    "arguments",
    [
        {"max-num-seqs": 64},
        {"max_num_seqs": 64},
        {"enable-prefix-caching": True},
        {"tensor-parallel-size": 4},
        {"quantization": "fp8"},
        {"speculative-config": '{"method": "ngram"}'},
        {"attention-config": '{"flash_attn_version": 3}'},
    ],
)
def test_a_further_flag_cannot_change_what_a_key_sets(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="Change those instead"):
        vllm_args.parse(profile("h100", vllm_arguments=arguments), MODEL)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"override-generation-config.temperature": 0.7}, "not-greedy"),
        ({"pipeline-parallel-size": 2}, "parallelism"),
        ({"enable-hc-sp": True}, "sequence-parallelism"),
        ({"cpu-offload-gb": 4}, "offloading"),
        ({"enable-lora": True}, "lora"),
        ({"moe-backend": "marlin"}, "moe-marlin"),
        ({"kernel-config.moe_backend": "marlin"}, "moe-marlin"),
        ({"spec-method": "ngram"}, "speculation"),
        ({"attention-config.backend": "FLASHINFER"}, "argument-unknown"),
        ({"trust-remote-code": True}, "argument-unknown"),
        ({"optimization-level": 3}, "argument-unknown"),
        ({"load-format": "dummy"}, "argument-unknown"),
    ],
)
def test_the_rules_know_the_flags_by_vllms_names(arguments: dict[str, Any], rule: str) -> None:
    facts = parsed(profile("h100", vllm_arguments=arguments))
    assert [violation.rule for violation in check(facts)] == [rule]


def test_the_servers_own_flags_are_no_violation() -> None:
    arguments = {"port": 8001, "host": "127.0.0.1", "middleware": "a.B", "fingerprint-mode": "custom",
                 "fingerprint-value": "x", "disable-log-stats": True, "served-model-name": "m"}  # fmt: skip
    assert check(parsed(profile("cpu", vllm_arguments=arguments))) == ()


def dpm_check(*arguments: object, home: Path, **environ: str) -> tuple[int, str]:
    """`dpm engine check` as a user runs it, without what this process has set."""
    prefixes = ("VLLM_", "OMP_", "KMP_", "HF_", "TORCH", "PYTORCH", "TRITON", "LD_PRELOAD")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    command = [sys.executable, "-m", "service.cli", "engine", "check", *map(str, arguments)]
    env = {**inherited, "DPM_HOME": str(home), **environ}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_the_shipped_cpu_profile_passes_on_the_command_line(model_dir: Path) -> None:
    code, said = dpm_check("--json", home=model_dir.parents[1])
    document = json.loads(said)
    assert (code, document["verdict"], document["violations"]) == (0, "PASS", [])
    assert document["config"]["model"] == "smollm2-135m-instruct"


def test_a_broken_configuration_is_told_everything_at_once(tmp_path: Path) -> None:
    value = yaml.safe_load((PROFILES / "h100.yaml").read_text(encoding="utf-8"))
    value["attention"]["backend"] = "FLASHINFER"
    value["features"]["speculation"] = {"method": "ngram", "num_speculative_tokens": 4}
    value["environment"] = {}
    value["vllm_arguments"] = {"override-generation-config.temperature": 0.7}
    path = tmp_path / "broken.yaml"
    path.write_text(yaml.safe_dump(value), encoding="utf-8")
    code, said = dpm_check("--config", path, home=tmp_path, VLLM_OF_NEXT_YEAR="1")
    assert code == 2
    for rule in (
        "cuda-batch-invariant-mode", "attention-backend", "speculation", "model-unpinned", "environment-unknown",
        "not-greedy",
    ):  # fmt: skip
        assert f"{rule}  " in said
    assert "vllm-project/vllm#54506" in said
    assert "verdict ERROR  6 violations" in said


def test_a_flag_that_vllm_does_not_know_ends_with_wrong_use(tmp_path: Path) -> None:
    text = (PROFILES / "cpu.yaml").read_text(encoding="utf-8")
    path = tmp_path / "engine.yaml"
    path.write_text(text + "vllm_arguments: {no-such-flag: 3}\n", encoding="utf-8")
    code, said = dpm_check("--config", path, "--json", home=tmp_path)
    error = json.loads(said)["error"]
    assert (code, error["type"]) == (2, "ConfigurationError")
    assert "--no-such-flag=3" in error["message"]
