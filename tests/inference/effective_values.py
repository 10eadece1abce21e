"""Facts for the checker, made by hand: what vLLM's parser gives for a configuration, without vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inference import vllm_args
from inference.config import EngineConfig, load_config
from inference.effective import Effective, Machine, PinnedModel

PROFILES = Path(__file__).parents[2] / "gpu_configs"
GPU_PROFILES = ("a100", "b200", "h100", "h200", "l40s")
CAPABILITIES = {"a100": (8, 0), "l40s": (8, 9), "h100": (9, 0), "h200": (9, 0), "b200": (10, 0)}
DIGEST = "5e" * 32
REVISION = "0123456789abcdef0123456789abcdef01234567"


def profile(name: str, **changes: Any) -> EngineConfig:
    """A shipped profile with some keys replaced, checked as a file would be; a section takes a mapping of changes."""
    value = load_config(PROFILES / f"{name}.yaml").model_dump()
    for key, change in changes.items():
        is_section = isinstance(change, Mapping) and key in ("attention", "features", "environment")
        value[key] = {**value[key], **change} if is_section else change
    return EngineConfig.model_validate(value)


def argument_values(config: EngineConfig) -> dict[str, Any]:
    """What vLLM's parser makes of a configuration's own keys, as far as rules ask."""
    return {
        "model": config.model,
        "dtype": config.dtype,
        "quantization": config.quantization,
        "kv_cache_dtype": config.kv_cache_dtype,
        "generation_config": config.generation_config,
        "max_num_seqs": config.max_num_seqs,
        "tensor_parallel_size": config.tensor_parallel_size,
        "attention_backend": config.attention.backend,
        "attention_config.flash_attn_version": config.attention.flash_attn_version,
        "enable_prefix_caching": config.features.prefix_caching,
        "enable_chunked_prefill": config.features.chunked_prefill,
    }


def pinned(architecture: str = "LlamaForCausalLM", **model_config: Any) -> PinnedModel:
    """A pinned model of that architecture."""
    config = {"architectures": [architecture], **model_config}
    return PinnedModel(DIGEST, f"hub:someone/something@{REVISION}", None, config)


def effective(
    config: EngineConfig,
    *,
    arguments: Mapping[str, Any] | None = None,
    outside: Mapping[str, str] | None = None,
    required: Mapping[str, str] | None = None,
    model: PinnedModel | None = None,
    machine: Machine | None = None,
    enrolled_max_num_seqs: int | None = None,
) -> Effective:
    """The facts of a machine on which nothing is wrong, but for what is given. `arguments`: further ones of vLLM."""
    more = dict(arguments or {})
    return Effective(
        config=config,
        arguments=vllm_args.ParsedArguments(
            {**argument_values(config), **more}, frozenset(more.keys() - argument_values(config).keys())
        ),
        outside=outside or {"PATH": "/usr/bin", "HOME": "/root"},
        required={**vllm_args.required_environment(config), **(required or {})},
        model=model or pinned("LlamaForCausalLM" if config.device == "cpu" else "Qwen3ForCausalLM"),
        machine=machine or Machine(num_cores=2, compute_capabilities=() if config.device == "cpu" else ((9, 0),)),
        enrolled_max_num_seqs=enrolled_max_num_seqs,
    )
