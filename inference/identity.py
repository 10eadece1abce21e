"""Engine identity: everything about an engine that can change an output bit, as one JSON value.

Gathers what every kind of engine states in the same words: weights, library versions, environment, processor. Promises
that equal machines give equal values: no path, host name, clock or random value is in it. Whether two identities that
differ would give different bits is not its business; a replay on another identity is INCOMPARABLE.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import Any

from inference.manifest import Manifest
from projection.canonical import sha256_hex
from projection.errors import ConfigurationError

ENVIRONMENT_PREFIXES = (
    "ATEN_", "CUBLAS", "CUDNN_", "DEEP_GEMM_", "DNNL_", "FLASHINFER_", "GOMP_", "KMP_", "MKL_", "NCCL_",
    "NVIDIA_TF32_OVERRIDE", "OMP_", "ONEDNN_", "PYTORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "TORCH_", "TRITON_",
    "VLLM_",
)  # fmt: skip
SET_BY_VLLM = {
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TRITON_CACHE_AUTOTUNING": "1",
}
"""What importing vLLM leaves in the environment, so that it says nothing of an engine."""

# Variables of those families that change no output bit: talk, places, addresses, secrets.
SILENT_VARIABLE = re.compile(
    r".*_(LOG|LOGGING|USAGE|TRACE|DEBUG|VERBOSE|ROOT|HOME|PATH|DIR|FOLDER|FILE|HOST|PORT|IP|IDENT|KEY|TOKEN|SECRET)(_.*)?"
)
INSTRUCTION_SET = re.compile(r"(sse4_[12]|avx|fma|f16c|amx|asimd|sve|bf16|i8mm).*")
WEIGHT_SUFFIXES = (".safetensors", ".gguf")


def weights_fields(manifest: Manifest) -> dict[str, Any]:
    """The pinned directory: one digest over all of it, and the SHA-256 of every file that is not a tensor file."""
    return {
        "manifest_digest": manifest.digest,
        "files": {f.name: f.sha256 for f in manifest.files if not f.name.endswith(WEIGHT_SUFFIXES)},
    }


def library_versions(names: Sequence[str]) -> dict[str, str]:
    """Versions of installed distributions; `a|b` takes the first that is installed, under its own name.

    Raises:
        ConfigurationError: none of them is installed.
    """
    found = dict(_library_version(name) for name in names)
    return dict(sorted(found.items()))


def _library_version(names: str) -> tuple[str, str]:
    for name in names.split("|"):
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    raise ConfigurationError(f"{names.replace('|', ' or ')} is not installed; run the set-up again", library=names)


def environment_fields(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that can change an output bit. A value that is a path is given by its digest."""
    kept = {
        name: value
        for name, value in environ.items()
        if name.startswith(ENVIRONMENT_PREFIXES)
        and not SILENT_VARIABLE.fullmatch(name)
        and SET_BY_VLLM.get(name) != value
    }
    preloaded = [PurePath(path).name for path in re.split(r"[:\s]+", environ.get("LD_PRELOAD", "")) if path]
    if preloaded:
        kept["LD_PRELOAD"] = ":".join(preloaded)
    return {name: _without_path(value) for name, value in sorted(kept.items())}


def _without_path(value: str) -> str:
    return f"sha256:{sha256_hex(value.encode('utf-8', 'surrogateescape'))}" if "/" in value else value


def source_digests(paths: Sequence[Path]) -> dict[str, str]:
    """SHA-256 of source files, by file name: what a plugin of ours is."""
    return {path.name: sha256_hex(path.read_bytes()) for path in sorted(paths)}


def processor_fields() -> dict[str, Any]:
    """The processor: make, instruction sets that matter to kernels, and the cache sizes by which they cut tiles."""
    info = _first_processor()
    flags = info.get("flags", info.get("Features", "")).split()
    return {
        "machine": platform.machine(),
        "vendor": info.get("vendor_id", info.get("CPU implementer")),
        "model_name": info.get("model name", info.get("CPU part")),
        "family_model_stepping": [info.get(key) for key in ("cpu family", "model", "stepping")],
        "instruction_sets": sorted(flag for flag in flags if INSTRUCTION_SET.fullmatch(flag)),
        "l1d_cache": _cache_size(1),
        "l2_cache": _cache_size(2),
    }


def _first_processor() -> dict[str, str]:
    """The first block of /proc/cpuinfo; empty where there is none."""
    try:
        block = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n", 1)[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _cache_size(level: int) -> str | None:
    """Size of the first processor's data cache of that level, as the kernel writes it (`1024K`)."""
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            facts = [(index / name).read_text(encoding="ascii").strip() for name in ("level", "type", "size")]
        except OSError:
            continue
        if facts[0] == str(level) and facts[1] != "Instruction":
            return facts[2]
    return None
