"""The flags and the environment of vLLM's server, written from a configuration. No vLLM is loaded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from inference import vllm_args
from inference.config import load_config
from inference.effective import read_model
from inference.manifest import scan, write_manifest
from projection.errors import ConfigurationError
from tests.inference.effective_values import GPU_PROFILES, PROFILES, profile

MODEL = Path("/models/m")


def test_the_cpu_profiles_flags() -> None:
    assert vllm_args.server_arguments(profile("cpu"), MODEL) == [
        "--model=/models/m", "--dtype=float32", "--seed=0", "--max-model-len=8192", "--max-num-seqs=32",
        "--max-num-batched-tokens=2048", "--block-size=128", "--kv-cache-memory-bytes=2147483648",
        "--kv-cache-dtype=auto", "--tensor-parallel-size=1", "--enforce-eager", "--enable-prefix-caching",
        "--enable-chunked-prefill",
        '--speculative-config={"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, '
        '"prompt_lookup_max": 4}',
        "--generation-config=vllm", "--logprobs-mode=processed_logprobs",
        "--structured-outputs-config.backend=xgrammar",
    ]  # fmt: skip


def test_a_gpu_profiles_flags() -> None:
    flags = vllm_args.server_arguments(profile("b200"), MODEL)
    assert {
        "--dtype=bfloat16", "--attention-backend=FLASH_ATTN", "--attention-config.flash_attn_version=2",
        "--no-enforce-eager", "--gpu-memory-utilization=0.9", "--max-num-batched-tokens=8192",
    } <= set(flags)  # fmt: skip
    assert not any(flag.startswith("--block-size") for flag in flags)


def test_features_are_flags_only_where_they_are_switched_on() -> None:
    speculation = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}
    flags = vllm_args.server_arguments(
        profile("cpu", features={"prefix_caching": True, "compile": True, "speculation": speculation}), MODEL
    )
    assert "--enable-prefix-caching" in flags
    assert "--no-enforce-eager" in flags
    assert '--speculative-config={"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}' in flags


def test_further_flags_come_last_and_each_is_one_word() -> None:
    config = profile(
        "cpu", vllm_arguments={"port": 8001, "disable-log-stats": True, "a.b": True, "c": False, "d": "-1"}
    )
    assert vllm_args.server_arguments(config, MODEL)[-5:] == [
        "--port=8001", "--disable-log-stats", "--a.b=true", "--no-c", "--d=-1"
    ]  # fmt: skip


def test_the_servers_environment() -> None:
    cpu = vllm_args.server_environment(profile("cpu"))
    assert cpu["VLLM_PLUGINS"] == "dpm_invariant_attention"
    assert cpu["VLLM_BATCH_INVARIANT"] == "0"
    assert cpu["TORCHDYNAMO_DISABLE"] == "1"
    assert "TORCHDYNAMO_DISABLE" not in vllm_args.server_environment(profile("cpu", features={"compile": True}))
    cuda = vllm_args.server_environment(profile("h100"))
    assert cuda["VLLM_BATCH_INVARIANT"] == "1"
    assert cuda["HF_HUB_OFFLINE"] == "1"
    assert not any(name.startswith("VLLM_CPU") for name in cuda)


@pytest.mark.parametrize("name", ["cpu", *GPU_PROFILES])
def test_every_value_of_a_profile_gives_its_reason(name: str) -> None:
    lines = (PROFILES / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    values = [line for line in lines if not line.startswith("#") and ": " in line]
    assert len(values) >= 10
    assert all("  # " in line for line in values)


@pytest.mark.parametrize("name", GPU_PROFILES)
def test_a_gpu_profile_promises_no_more_than_was_tested(name: str) -> None:
    config = load_config(PROFILES / f"{name}.yaml")
    assert config.device == "cuda"
    assert config.status == "to be proved on the device"
    assert config.tensor_parallel_size == 1
    assert not config.features.prefix_caching
    assert config.features.speculation is None
    assert config.vllm_arguments == {}


def test_the_a100_profile_says_what_speaks_against_it() -> None:
    text = (PROFILES / "a100.yaml").read_text(encoding="utf-8")
    assert "compute capability 8.0" in text
    assert "says 9.0" in text


@pytest.mark.parametrize(
    "line",
    [
        "device: rocm",
        "status: hoped for",
        "revision: main",
        "revision: 0123456789ABCDEF0123456789abcdef01234567",
        "manifest_digest: abc",
        "tensor_parallel_size: 0",
        "gpu_memory_utilization: 1.5",
        "gpu_memory_utilization: 0.0",
        "max_num_batched_tokens: many",
        "environment: {lower: x}",
        "environment: {VLLM_X: 1}",
        "vllm_arguments: {--port: 1}",
        "vllm_arguments: {port: [1]}",
        "vllm_arguments: {port: null}",
        "features: {caching: true}",
        "features: {prefix_caching: 1}",
        "features: {speculation: {method: ngram}}",
        "features: {speculation: {method: ngram, num_speculative_tokens: 0}}",
        "quantization: ''",
        "generation_config: false",
    ],
)
def test_a_wrong_value_of_a_gpu_key_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    text = (PROFILES / "cpu.yaml").read_text(encoding="utf-8")
    key = line.partition(":")[0]
    kept = re.sub(rf"^{key}:.*\n(?: .*\n)*", "", text, flags=re.MULTILINE).splitlines()
    path = tmp_path / "engine.yaml"
    path.write_text("\n".join([*kept, line]), encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_config(path)
    assert caught.value.fields["line"] == len(kept) + 1


def test_a_cuda_configuration_may_be_bfloat16_and_a_cpu_one_may_not(tmp_path: Path) -> None:
    text = (PROFILES / "h100.yaml").read_text(encoding="utf-8")
    assert load_config(PROFILES / "h100.yaml").dtype == "bfloat16"
    path = tmp_path / "engine.yaml"
    path.write_text(text.replace("device: cuda", "device: cpu"), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="float32"):
        load_config(path)


def test_a_model_directory_is_read_with_its_manifest(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}', encoding="utf-8")
    assert read_model(tmp_path).digest is None
    manifest = scan(tmp_path, "local")
    write_manifest(tmp_path, manifest)
    model = read_model(tmp_path)
    assert (model.digest, model.source, model.problem) == (manifest.digest, "local", None)
    assert model.model_config == {"architectures": ["LlamaForCausalLM"]}


@pytest.mark.parametrize("damage", ["longer", "added", "missing"])
def test_a_model_directory_that_changed_is_not_pinned(tmp_path: Path, damage: str) -> None:
    config = tmp_path / "config.json"
    config.write_text("{}", encoding="utf-8")
    write_manifest(tmp_path, scan(tmp_path, "local"))
    if damage == "added":
        (tmp_path / "more.json").write_text("{}", encoding="utf-8")
    elif damage == "longer":
        config.write_text("{ }", encoding="utf-8")
    else:
        config.unlink()
    model = read_model(tmp_path)
    assert model.digest is None
    assert ("more.json" if damage == "added" else "config.json") in str(model.problem)


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff"])
def test_a_config_json_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    assert read_model(tmp_path).model_config is None


def test_a_model_that_is_not_there_is_not_pinned(tmp_path: Path) -> None:
    model = read_model(tmp_path / "absent")
    assert model.digest is None
    assert "dpm weights pull" in str(model.problem)


def test_stretched_positions_reach_vllm_with_their_number(tmp_path: Path) -> None:
    flags = vllm_args.server_arguments(load_config(PROFILES / "cpu-16k.yaml"), tmp_path)
    given = next(flag.partition("=")[2] for flag in flags if flag.startswith("--hf-overrides="))
    assert json.loads(given) == {
        "max_position_embeddings": 16384,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 100000.0,
            "factor": 2.0,
            "original_max_position_embeddings": 8192,
        },
    }
    assert not [
        flag for flag in vllm_args.server_arguments(load_config(PROFILES / "cpu.yaml"), tmp_path) if "overrides" in flag
    ]
