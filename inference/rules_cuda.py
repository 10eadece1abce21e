"""The checker's rules for an engine on NVIDIA GPUs, where batch invariance is vLLM's own mode.

What the mode promises was read in vLLM 0.32's source, and what it does not keep in vLLM's public issues. Passing these
rules proves nothing about a device: the self-test there does.
"""

from __future__ import annotations

from collections.abc import Iterator

from inference.effective import Effective
from inference.rule import Rule
from inference.rules import MOE_BACKEND, SPECULATION

INVARIANT_BACKENDS = frozenset({"FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION", "FLASH_ATTN_MLA", "TRITON_MLA"})
"""Attention back ends that declare support for batch invariance (Source: vLLM 0.32, supports_batch_invariance)."""

NO_PREFIX_CACHING_BACKENDS = frozenset({"TRITON_MLA", "FLASHINFER"})
DENSE_ARCHITECTURES = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
MOE_ARCHITECTURES = frozenset({"DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Qwen3MoeForCausalLM"})
HYBRID_ARCHITECTURES = frozenset(
    {
        "BailingMoeV2_5ForCausalLM", "BambaForCausalLM", "FalconH1ForCausalLM", "GraniteMoeHybridForCausalLM",
        "JambaForCausalLM", "KimiLinearForCausalLM", "Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "Mamba2ForCausalLM",
        "MambaForCausalLM", "NemotronHForCausalLM", "OlmoHybridForCausalLM", "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "Zamba2ForCausalLM",
    }
)  # fmt: skip
"""Mamba and gated delta nets, alone or beside attention."""

FP8 = frozenset({"fp8", "fbgemm_fp8", "fp8_per_tensor", "fp8_per_block"})
MARLIN = frozenset({"auto_awq", "auto_gptq", "awq", "awq_marlin", "gptq", "gptq_marlin", "moe_wna16"})
DENSE_QUANTISATIONS = frozenset({"fp8"})
MOE_BACKENDS = frozenset({"auto", "triton"})
MIN_COMPUTE_CAPABILITY = (8, 0)
KNOWN_COMPUTE_MAJORS = frozenset({8, 9, 10, 12})  # Ampere and Ada, Hopper, Blackwell of the data centre and of desks


def _is_backend(effective: Effective, name: str) -> bool:
    return bool(effective.argument("attention_backend") == name)


def _is_moe(effective: Effective) -> bool:
    return not MOE_ARCHITECTURES.isdisjoint(effective.architectures)


def _mode_is_off(effective: Effective) -> Iterator[str]:
    if not effective.config.attention.invariant:
        yield "attention.invariant: false"
    if effective.config.environment.get("VLLM_BATCH_INVARIANT") is None:
        yield "VLLM_BATCH_INVARIANT is not set by the configuration"
    for value in effective.variable("VLLM_BATCH_INVARIANT"):
        if value != "1":
            yield f"VLLM_BATCH_INVARIANT={value}"


def _foreign_plugins(effective: Effective) -> Iterator[str]:
    yield from (f"VLLM_PLUGINS={value}" for value in effective.variable("VLLM_PLUGINS") if value != "")


def _cpu_settings(effective: Effective) -> Iterator[str]:
    for value in effective.variable("VLLM_CPU_ATTN_SPLIT_KV"):
        yield f"VLLM_CPU_ATTN_SPLIT_KV={value}"


def _attention_backend(effective: Effective) -> Iterator[str]:
    backend = effective.argument("attention_backend")
    if backend is None:
        yield "no attention back end named, so vLLM chooses one for the device"
    elif backend not in INVARIANT_BACKENDS:
        yield f"attention back end {backend}"


def _open_flash_attention(effective: Effective) -> Iterator[str]:
    is_open = effective.argument("attention_config.flash_attn_version") is None
    if _is_backend(effective, "FLASH_ATTN") and is_open:
        yield "FLASH_ATTN without attention.flash_attn_version"


def _flash_attention_3(effective: Effective) -> Iterator[str]:
    if effective.argument("attention_config.flash_attn_version") == 3:
        yield "attention.flash_attn_version: 3"
    if _is_backend(effective, "FLASH_ATTN_MLA"):
        yield "attention back end FLASH_ATTN_MLA, which is FlashAttention 3"


def _unknown_flash_attention(effective: Effective) -> Iterator[str]:
    version = effective.argument("attention_config.flash_attn_version")
    if version not in (None, 2, 3):
        yield f"attention.flash_attn_version: {version}"


def _speculation(effective: Effective) -> Iterator[str]:
    if effective.config.features.speculation is not None:
        yield f"features.speculation: {effective.config.features.speculation.method}"
    yield from effective.changed_under(*SPECULATION)


def _fp8_experts(effective: Effective) -> Iterator[str]:
    if _is_moe(effective) and effective.quantisation in FP8:
        yield f"{', '.join(effective.architectures)} with {effective.quantisation}"


def _marlin_experts(effective: Effective) -> Iterator[str]:
    if _is_moe(effective) and effective.quantisation in MARLIN:
        yield f"{', '.join(effective.architectures)} with {effective.quantisation}"
    yield from (found for found in _moe_backends(effective) if found.endswith("=marlin"))


def _unknown_moe_backend(effective: Effective) -> Iterator[str]:
    known = {*MOE_BACKENDS, "marlin"}
    yield from (found for found in _moe_backends(effective) if found.partition("=")[2] not in known)


def _moe_backends(effective: Effective) -> tuple[str, ...]:
    return effective.changed_under(*MOE_BACKEND)


def _cached_experts(effective: Effective) -> Iterator[str]:
    if _is_moe(effective) and effective.argument("enable_prefix_caching"):
        yield f"{', '.join(effective.architectures)} with prefix caching"


def _unknown_quantisation(effective: Effective) -> Iterator[str]:
    method = effective.quantisation
    explained = (FP8 | MARLIN) if _is_moe(effective) else DENSE_QUANTISATIONS
    if method is not None and method not in explained:
        yield f"quantisation {method}"


def _hybrid(effective: Effective) -> Iterator[str]:
    yield from (f"architecture {name}" for name in effective.architectures if name in HYBRID_ARCHITECTURES)


def _unknown_architecture(effective: Effective) -> Iterator[str]:
    known = DENSE_ARCHITECTURES | MOE_ARCHITECTURES | HYBRID_ARCHITECTURES
    if effective.model.model_config is None:
        if effective.model.digest is not None:
            yield "no config.json that can be read"
    elif not effective.architectures or not known.issuperset(effective.architectures):
        yield f"architecture {', '.join(effective.architectures) or 'not named'}"


def _uncached_backend(effective: Effective) -> Iterator[str]:
    backend = effective.argument("attention_backend")
    if effective.argument("enable_prefix_caching") and backend in NO_PREFIX_CACHING_BACKENDS:
        yield f"prefix caching with {backend}"


def _device(effective: Effective) -> Iterator[str]:
    found = effective.machine.compute_capabilities
    for major, minor in sorted(set(found)):
        if (major, minor) < MIN_COMPUTE_CAPABILITY or major not in KNOWN_COMPUTE_MAJORS:
            yield f"a GPU of compute capability {major}.{minor}"
    if len(set(found)) > 1:
        yield f"GPUs of different compute capabilities: {', '.join(f'{a}.{b}' for a, b in sorted(set(found)))}"


CUDA: tuple[Rule, ...] = (
    Rule(
        "cuda-batch-invariant-mode",
        _mode_is_off,
        "Without vLLM's batch-invariant mode, an answer depends on what else is in the batch.",
        'Set attention.invariant: true and environment VLLM_BATCH_INVARIANT: "1"; set nothing else outside.',
    ),
    Rule(
        "cuda-plugins",
        _foreign_plugins,
        "A plugin can replace any kernel; none is needed on a GPU.",
        "Unset VLLM_PLUGINS.",
    ),
    Rule(
        "cuda-cpu-setting",
        _cpu_settings,
        "A variable of the CPU lane means nothing on a GPU: the configuration was made for something else.",
        "Unset it.",
    ),
    Rule(
        "attention-backend",
        _attention_backend,
        f"Only {', '.join(sorted(INVARIANT_BACKENDS))} declare support for batch invariance; FlashInfer does not.",
        "Set attention.backend to one of them.",
    ),
    Rule(
        "flash-attention-open",
        _open_flash_attention,
        "vLLM then chooses by device: FlashAttention 3 on Hopper, which is not invariant, and 4 on Blackwell, which it "
        "silently replaces by 2.",
        "Set attention.flash_attn_version: 2, or attention.backend: TRITON_ATTN.",
        issue=51902,
    ),
    Rule(
        "flash-attention-3",
        _flash_attention_3,
        "A stranger's prefill changes its tiles, and with them the answer.",
        "Set attention.flash_attn_version: 2, or attention.backend: TRITON_ATTN (TRITON_MLA).",
        issue=51902,
    ),
    Rule(
        "flash-attention-4",
        _unknown_flash_attention,
        "FlashAttention 4 plans by the shape of the batch; in the batch-invariant mode vLLM silently takes 2 instead. "
        "Other versions are not known here.",
        "Set attention.flash_attn_version: 2: what vLLM would run, said openly.",
    ),
    Rule(
        "speculation",
        _speculation,
        "vLLM does not guard it: verifying several tokens at once is another shape than decoding one.",
        "Leave features.speculation out.",
        issue=54506,
    ),
    Rule(
        "moe-fp8",
        _fp8_experts,
        "The experts' inputs share one scale over all requests of the batch.",
        "Take the model's bfloat16 weights, or a dense model.",
        issue=57016,
    ),
    Rule(
        "moe-marlin",
        _marlin_experts,
        "The Marlin kernels for experts are not batch-invariant.",
        "Take the model's bfloat16 weights, or a dense model.",
        issue=46639,
    ),
    Rule(
        "moe-backend",
        _unknown_moe_backend,
        "Known are vLLM's own choice in the batch-invariant mode and the Triton kernels; these were never looked at.",
        "Take moe_backend out of `vllm_arguments`.",
    ),
    Rule(
        "moe-prefix-caching",
        _cached_experts,
        "A request answered from its cached prefix was seen to differ from the same request run cold.",
        "Set features.prefix_caching: false.",
        issue=57016,
    ),
    Rule(
        "quantisation-unknown",
        _unknown_quantisation,
        f"Known are plain weights, and {', '.join(sorted(DENSE_QUANTISATIONS))} of a dense model.",
        "Take plain weights.",
    ),
    Rule(
        "hybrid-model",
        _hybrid,
        "State-space and delta-net layers have no batch-invariant kernels; vLLM refuses them in this mode.",
        "Take a model with attention alone.",
    ),
    Rule(
        "architecture-unknown",
        _unknown_architecture,
        f"Known are {', '.join(sorted(DENSE_ARCHITECTURES | MOE_ARCHITECTURES))}; other layers may not be invariant.",
        "Take a model of a known architecture.",
    ),
    Rule(
        "prefix-caching-backend",
        _uncached_backend,
        "vLLM switches prefix caching off for this back end, with no more than a warning.",
        "Set features.prefix_caching: false, or take another back end.",
    ),
    Rule(
        "compute-capability",
        _device,
        "vLLM promises batch invariance from compute capability 8.0, on equal GPUs; known majors are "
        f"{', '.join(map(str, sorted(KNOWN_COMPUTE_MAJORS)))}.",
        "Use another GPU, or name one with CUDA_VISIBLE_DEVICES.",
    ),
)
