"""The configuration checker: each rule on a configuration that breaks just that rule, and those that break none."""

from __future__ import annotations

from typing import Any

import pytest

from inference.checker import check, rules_for, to_be_proved
from inference.effective import Effective, Machine, PinnedModel
from tests.inference.effective_values import (
    CAPABILITIES,
    DIGEST,
    GPU_PROFILES,
    REVISION,
    effective,
    pinned,
    profile,
)

FORTY_HEX = "f" * 40
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
MOE = pinned("Qwen3MoeForCausalLM")
UNPINNED = PinnedModel(None, None, "qwen3-14b is not pinned", None)


def cpu(given: dict[str, Any] | None = None, **changes: Any) -> Effective:
    return effective(profile("cpu", **changes), **(given or {}))


def cuda(given: dict[str, Any] | None = None, **changes: Any) -> Effective:
    return effective(profile("h100", **changes), **(given or {}))


def flash(version: int | None) -> dict[str, Any]:
    return {"backend": "FLASH_ATTN", "flash_attn_version": version}


EVERY_DEVICE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("model-unpinned", {"model": UNPINNED}, {}),
    ("model-differs", {}, {"revision": FORTY_HEX}),
    ("model-differs", {}, {"manifest_digest": "0" * 64}),
    ("environment-contradiction", {"outside": {"OMP_NUM_THREADS": "7"}}, {}),
    ("environment-contradiction", {"outside": {"HF_HUB_OFFLINE": "0"}}, {}),
    ("environment-contradiction", {}, {"environment": {"OMP_NUM_THREADS": "7"}}),
    ("environment-unknown", {"outside": {"VLLM_NEW_KERNELS": "1"}}, {}),
    ("environment-unknown", {"outside": {"VLLM_CPU_KVCACHE_SPACE": "4"}}, {}),
    ("environment-unknown", {"outside": {"VLLM_TUNED_CONFIG_FOLDER": "/etc/kernels"}}, {}),
    ("environment-unknown", {"outside": {"MKL_CBWR": "AVX2"}}, {}),
    ("environment-unknown", {"outside": {"NCCL_ALGO": "ring"}}, {}),
    ("environment-unknown", {"outside": {"TORCHINDUCTOR_COMPILE_THREADS": "2"}}, {}),
    ("environment-unknown", {"outside": {"NVIDIA_TF32_OVERRIDE": "1"}}, {}),
    ("environment-unknown", {"outside": {"LD_PRELOAD": "/opt/libm.so"}}, {}),
    ("environment-unknown", {}, {"environment": {"LC_ALL": "C"}}),
    ("argument-unknown", {"arguments": {"disable_sliding_window": True}}, {}),
    ("argument-unknown", {"arguments": {"compilation_config.mode": 1}}, {}),
    ("argument-unknown", {"arguments": {"attention_config.backend": "FLASHINFER"}}, {}),
    ("argument-unknown", {"arguments": {"trust_remote_code": True}}, {}),
    ("argument-unknown", {"arguments": {"a_flag_of_next_year": 1}}, {}),
    ("generation-config", {}, {"generation_config": "auto"}),
    ("not-greedy", {"arguments": {"override_generation_config.temperature": 0.7}}, {}),
    ("not-greedy", {"arguments": {"logits_processors": ["my.Processor"]}}, {}),
    ("batch-not-covered", {"enrolled_max_num_seqs": 4}, {"max_num_seqs": 5}),
    ("kv-cache-quantised", {}, {"kv_cache_dtype": "fp8"}),
    ("sequence-parallelism", {"arguments": {"enable_hc_sp": True}}, {}),
    ("sequence-parallelism", {"arguments": {"compilation_config.pass_config.enable_sp": True}}, {}),
    ("sequence-parallelism", {"outside": {"VLLM_ENABLE_GEMM_RS": "1"}}, {}),
    ("parallelism", {"arguments": {"data_parallel_size": 2}}, {}),
    ("parallelism", {"arguments": {"pipeline_parallel_size": 2}}, {}),
    ("parallelism", {"arguments": {"nnodes": 2}}, {}),
    ("parallelism", {"arguments": {"enable_expert_parallel": True}}, {}),
    ("lora", {"arguments": {"enable_lora": True}}, {}),
    ("offloading", {"arguments": {"cpu_offload_gb": 4.0}}, {}),
    ("offloading", {"arguments": {"kv_transfer_config.kv_connector": "LMCache"}}, {}),
]

ONLY_CPU: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("cpu-batch-invariant-mode", {"outside": {"VLLM_BATCH_INVARIANT": "1"}}, {}),
    ("cpu-batch-invariant-mode", {}, {"environment": {"VLLM_BATCH_INVARIANT": "1"}}),
    ("cpu-split-kv", {"outside": {"VLLM_CPU_ATTN_SPLIT_KV": "1"}}, {}),
    ("cpu-split-kv", {"required": {"VLLM_CPU_ATTN_SPLIT_KV": "1"}}, {}),
    ("cpu-stock-attention", {}, {"attention": {"invariant": False}}),
    ("cpu-stock-attention", {"outside": {"VLLM_PLUGINS": "theirs"}}, {}),
    ("cpu-foreign-kernels", {}, {"attention": {"backend": "FLASH_ATTN"}}),
    ("cpu-foreign-kernels", {}, {"attention": {"flash_attn_version": 2}}),
    ("cpu-foreign-kernels", {"arguments": {"moe_backend": "marlin"}}, {}),
    ("cpu-dtype", {"arguments": {"dtype": "bfloat16"}}, {}),
    ("cpu-quantisation", {}, {"quantization": "fp8"}),
    ("cpu-quantisation", {"model": pinned(quantization_config={"quant_method": "awq"})}, {}),
    ("cpu-speculation-method", {}, {"features": {"speculation": {**NGRAM, "method": "eagle"}}}),
    ("cpu-speculation-method", {"arguments": {"spec_method": "ngram"}}, {}),
    ("cpu-compiled", {}, {"features": {"compile": True}}),
    ("cpu-speculation-depth", {}, {"features": {"speculation": {**NGRAM, "num_speculative_tokens": 9}}}),
    ("cpu-threads", {"machine": Machine(num_cores=2)}, {"num_threads": 3}),
    ("cpu-tensor-parallel", {}, {"tensor_parallel_size": 2}),
    ("cpu-zentorch", {"machine": Machine(num_cores=2, has_zentorch=True)}, {}),
    ("architecture-unknown", {"model": pinned("GPT2LMHeadModel")}, {}),
    ("architecture-unknown", {"model": PinnedModel(DIGEST, "local", None, None)}, {}),
    ("architecture-unknown", {"model": PinnedModel(DIGEST, "local", None, {})}, {}),
    ("batch-not-covered", {}, {"max_num_seqs": 65}),
]

ONLY_CUDA: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("cuda-batch-invariant-mode", {}, {"environment": {"VLLM_BATCH_INVARIANT": "0"}}),
    ("cuda-batch-invariant-mode", {"outside": {"VLLM_BATCH_INVARIANT": "0"}}, {}),
    ("cuda-batch-invariant-mode", {}, {"attention": {"invariant": False}}),
    ("cuda-plugins", {"outside": {"VLLM_PLUGINS": "theirs"}}, {}),
    ("cuda-cpu-setting", {"outside": {"VLLM_CPU_ATTN_SPLIT_KV": "0"}}, {}),
    ("attention-backend", {}, {"attention": {"backend": None}}),
    ("attention-backend", {}, {"attention": {"backend": "FLASHINFER"}}),
    ("attention-backend", {}, {"attention": {"backend": "A_BACKEND_OF_NEXT_YEAR"}}),
    ("flash-attention-open", {}, {"attention": flash(None)}),
    ("flash-attention-3", {}, {"attention": flash(3)}),
    ("flash-attention-3", {}, {"attention": {"backend": "FLASH_ATTN_MLA"}}),
    ("flash-attention-4", {}, {"attention": flash(4)}),
    ("speculation", {}, {"features": {"speculation": NGRAM}}),
    ("speculation", {}, {"features": {"speculation": {**NGRAM, "method": "of_next_year"}}}),
    ("speculation", {"arguments": {"spec_method": "ngram"}}, {}),
    ("moe-fp8", {"model": MOE}, {"quantization": "fp8"}),
    ("moe-fp8", {"model": pinned("Qwen3MoeForCausalLM", quantization_config={"quant_method": "fp8"})}, {}),
    ("moe-marlin", {"model": MOE}, {"quantization": "awq"}),
    ("moe-marlin", {"model": MOE, "arguments": {"moe_backend": "marlin"}}, {}),
    ("moe-backend", {"model": MOE, "arguments": {"moe_backend": "deep_gemm"}}, {}),
    ("moe-prefix-caching", {"model": MOE}, {"features": {"prefix_caching": True}}),
    ("quantisation-unknown", {}, {"quantization": "awq"}),
    ("quantisation-unknown", {"model": pinned("Qwen3ForCausalLM", quantization_config={"quant_method": "new"})}, {}),
    ("quantisation-unknown", {"model": MOE}, {"quantization": "new"}),
    ("hybrid-model", {"model": pinned("Qwen3NextForCausalLM")}, {}),
    ("hybrid-model", {"model": pinned("Mamba2ForCausalLM")}, {}),
    ("architecture-unknown", {"model": pinned("GPT2LMHeadModel")}, {}),
    ("architecture-unknown", {"model": PinnedModel(DIGEST, "local", None, None)}, {}),
    ("kv-cache-quantised", {"model": pinned("Qwen3ForCausalLM", quantization_config={"kv_cache_scheme": {}})}, {}),
    ("prefix-caching-backend", {}, {"attention": {"backend": "TRITON_MLA"}, "features": {"prefix_caching": True}}),
    ("compute-capability", {"machine": Machine(num_cores=8, compute_capabilities=((7, 5),))}, {}),
    ("compute-capability", {"machine": Machine(num_cores=8, compute_capabilities=((13, 0),))}, {}),
    ("compute-capability", {"machine": Machine(num_cores=8, compute_capabilities=((8, 0), (9, 0)))}, {}),
]


@pytest.mark.parametrize(("rule", "given", "changes"), [*EVERY_DEVICE, *ONLY_CPU])
def test_a_cpu_configuration_that_breaks_one_rule_breaks_just_that(
    rule: str, given: dict[str, Any], changes: dict[str, Any]
) -> None:
    (violation,) = check(cpu(given, **changes))
    assert violation.rule == rule
    assert violation.found
    assert violation.reason.endswith(".")
    assert violation.remedy.endswith(".")


@pytest.mark.parametrize(("rule", "given", "changes"), [*EVERY_DEVICE, *ONLY_CUDA])
def test_a_gpu_configuration_that_breaks_one_rule_breaks_just_that(
    rule: str, given: dict[str, Any], changes: dict[str, Any]
) -> None:
    (violation,) = check(cuda(given, **changes))
    assert violation.rule == rule
    assert violation.found


def test_every_rule_is_broken_by_a_test() -> None:
    assert {rule.id for rule in rules_for("cpu")} == {rule for rule, *_ in [*EVERY_DEVICE, *ONLY_CPU]}
    assert {rule.id for rule in rules_for("cuda")} == {rule for rule, *_ in [*EVERY_DEVICE, *ONLY_CUDA]}


def test_a_rule_stands_once_in_its_list() -> None:
    for device in ("cpu", "cuda"):
        ids = [rule.id for rule in rules_for(device)]
        assert len(ids) == len(set(ids))


def test_the_cpu_profile_breaks_no_rule() -> None:
    assert check(cpu()) == ()


@pytest.mark.parametrize("name", GPU_PROFILES)
def test_a_gpu_profile_breaks_no_rule_on_its_device(name: str) -> None:
    machine = Machine(num_cores=16, compute_capabilities=(CAPABILITIES[name],))
    assert check(effective(profile(name), machine=machine)) == ()


FIXED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"revision": REVISION, "manifest_digest": DIGEST}),
    ({"enrolled_max_num_seqs": 32}, {"max_num_seqs": 32}),
    ({"outside": {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_API_KEY": "x", "CUDA_VISIBLE_DEVICES": "1"}}, {}),
    ({"outside": {"OMP_NUM_THREADS": "1", "LANG": "C.UTF-8", "SOMETHING_ELSE": "1"}}, {}),
    ({"arguments": {"port": 8001, "host": "127.0.0.1", "middleware": ["a.B"], "ssl_keyfile": "k"}}, {}),
    ({"arguments": {"fingerprint_mode": "custom", "fingerprint_value": "x", "uvicorn_log_level": "error"}}, {}),
    ({"outside": {"VLLM_ENABLE_GEMM_RS": "0"}}, {}),
    ({"outside": {"TORCHINDUCTOR_COMPILE_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}}, {}),
]


@pytest.mark.parametrize(("given", "changes"), FIXED)
def test_a_fixed_configuration_breaks_no_rule(given: dict[str, Any], changes: dict[str, Any]) -> None:
    assert check(cpu(given, **changes)) == ()
    assert check(cuda(given, **changes)) == ()


@pytest.mark.parametrize(
    ("given", "changes"),
    [
        ({"outside": {"VLLM_BATCH_INVARIANT": "1"}}, {}),
        ({}, {"attention": flash(2)}),
        ({}, {"attention": {"backend": "FLEX_ATTENTION"}}),
        ({}, {"tensor_parallel_size": 2}),
        ({}, {"quantization": "fp8"}),
        ({}, {"kv_cache_dtype": "bfloat16"}),
        ({}, {"features": {"prefix_caching": True}}),
        ({"model": MOE, "arguments": {"moe_backend": "triton"}}, {}),
        ({"model": pinned("DeepseekV2ForCausalLM")}, {"attention": {"backend": "TRITON_MLA"}}),
        ({"machine": Machine(num_cores=8, compute_capabilities=((8, 0), (8, 0)))}, {}),
    ],
)
def test_what_vllm_keeps_invariant_on_a_gpu_breaks_no_rule(given: dict[str, Any], changes: dict[str, Any]) -> None:
    assert check(cuda(given, **changes)) == ()


def test_all_violations_are_listed_at_once() -> None:
    broken = cuda(
        {"outside": {"VLLM_NEW": "1", "VLLM_NEWER": "1"}, "model": UNPINNED, "arguments": {"enable_lora": True}},
        attention={"backend": "FLASHINFER"},
        features={"speculation": NGRAM},
        generation_config="auto",
    )
    assert [violation.rule for violation in check(broken)] == [
        "attention-backend", "speculation", "model-unpinned", "environment-unknown", "environment-unknown",
        "generation-config", "lora",
    ]  # fmt: skip


ISSUES = {
    "batch-not-covered": 51187,
    "flash-attention-3": 51902,
    "flash-attention-open": 51902,
    "moe-fp8": 57016,
    "moe-marlin": 46639,
    "moe-prefix-caching": 57016,
    "sequence-parallelism": 56370,
    "speculation": 54506,
}


def test_a_violation_names_the_public_issue_where_there_is_one() -> None:
    assert {rule.id: rule.issue for rule in rules_for("cuda") if rule.issue is not None} == ISSUES
    (violation,) = check(cuda(features={"speculation": NGRAM}))
    assert violation.reference == "vllm-project/vllm#54506"
    (violation,) = check(cuda(generation_config="auto"))
    assert violation.reference is None


def test_a_batch_that_an_enrolment_does_not_cover_is_named_with_both_sizes() -> None:
    (violation,) = check(cuda({"enrolled_max_num_seqs": 16}, max_num_seqs=17))
    assert "17" in violation.found
    assert "16" in violation.found


def test_what_only_the_device_can_show_is_said_and_is_no_violation() -> None:
    nowhere = cuda({"machine": Machine(num_cores=2)})
    assert check(nowhere) == ()
    said = " ".join(to_be_proved(nowhere))
    assert "to be proved on the device" in said
    assert "compute capability" in said
    assert "max_num_seqs=8" in said


def test_nothing_is_left_to_prove_on_an_enrolled_device_with_a_proved_profile() -> None:
    assert to_be_proved(cuda({"enrolled_max_num_seqs": 8}, status="proved")) == ()
    assert to_be_proved(cpu(status="proved")) == ()
