"""Configurations beside the one under test: the same engine with a feature on, and engines wrong on purpose."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from determinism.endpoints.endpoint import Request
from determinism.suite.faults import RealFault
from determinism.suite.pressure import num_blocks
from inference.config import AttentionConfig, EngineConfig, FeaturesConfig, SpeculationConfig
from inference.manifest import MANIFEST_NAME
from inference.vllm_runtime import BLOCK_SIZE
from inference.weights import pin
from projection.errors import WeightsError

Variant = Literal["speculation turned", "caching turned", "chunking", "crowded"]
SPECULATION = SpeculationConfig(method="ngram", num_speculative_tokens=4, prompt_lookup_max=4, prompt_lookup_min=2)
CHUNK_TOKENS = 256
BYTES_OF_A_NUMBER = 4  # float32, the one type of the KV cache here
NULL_BLOCKS = 1  # which vLLM keeps for itself


def variant(name: Variant, config: EngineConfig, weights_dir: Path, requests: Sequence[Request]) -> EngineConfig:
    """The configuration with one thing other, which must change no bit."""
    features = config.features
    match name:
        case "speculation turned":
            return _with_features(config, speculation=None if features.speculation else SPECULATION)
        case "caching turned":
            return _with_features(config, prefix_caching=not features.prefix_caching)
        case "chunking":
            chunked = _with_features(config, chunked_prefill=True, speculation=None)
            return chunked.model_copy(update={"max_num_batched_tokens": CHUNK_TOKENS})
        case "crowded":
            return _crowded(config, weights_dir, requests)


def _with_features(config: EngineConfig, **changes: Any) -> EngineConfig:
    return config.model_copy(update={"features": config.features.model_copy(update=changes)})


def _crowded(config: EngineConfig, weights_dir: Path, requests: Sequence[Request]) -> EngineConfig:
    """A KV cache of few blocks, and a context that fits into it."""
    blocks = num_blocks(requests)
    num_bytes = (blocks + NULL_BLOCKS) * BLOCK_SIZE * _bytes_of_a_token(weights_dir)
    return config.model_copy(
        update={
            "kv_cache_gib": num_bytes / 2**30,
            "max_model_len": min(config.max_model_len, blocks * BLOCK_SIZE),
            "max_num_batched_tokens": None,
            "features": FeaturesConfig(),
        }
    )


def _bytes_of_a_token(weights_dir: Path) -> int:
    """Of the KV cache, all layers together."""
    model = json.loads((weights_dir / "config.json").read_text(encoding="utf-8"))
    heads = model.get("num_key_value_heads") or model["num_attention_heads"]
    head_dim = model.get("head_dim") or model["hidden_size"] // model["num_attention_heads"]
    return int(2 * model["num_hidden_layers"] * heads * head_dim * BYTES_OF_A_NUMBER)


def faulty(fault: RealFault, config: EngineConfig, weights_dir: Path, scratch: Path) -> EngineConfig:
    """The configuration of an engine that must be found out."""
    split = AttentionConfig(invariant=False, split_kv=True)
    match fault:
        case "invariant attention off":
            return config.model_copy(update={"attention": AttentionConfig(invariant=False, split_kv=False)})
        case "two threads, split KV":
            return config.model_copy(update={"attention": split, "num_threads": 2})
        case "stock settings":
            features = FeaturesConfig(prefix_caching=True, chunked_prefill=True)
            return config.model_copy(update={"attention": split, "num_threads": 2, "features": features})
        case "one weight byte":
            copy = change_weight_byte(weights_dir, scratch / "one-weight-byte")
            return config.model_copy(update={"model": str(copy), "revision": None, "manifest_digest": None})


def change_weight_byte(weights_dir: Path, copy: Path) -> Path:
    """Pin a copy of a model with one bit of one byte of its last norm's first weight changed: by 2**-8 of its value."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(weights_dir, copy, ignore=shutil.ignore_patterns(MANIFEST_NAME))
    for path in sorted(copy.glob("*.safetensors")):
        place = _place_of_last_norm(path)
        if place is not None:
            with path.open("r+b") as file:
                file.seek(place + 1)
                (byte,) = file.read(1)
                file.seek(place + 1)
                file.write(bytes([byte ^ 0x80]))
            pin(copy)
            return copy
    raise WeightsError(f"{weights_dir} has no last norm to change a byte of", path=str(weights_dir))


def _place_of_last_norm(path: Path) -> int | None:
    """Where its weights begin in the file. Source: the safetensors format: 8 bytes of length, a JSON header, data."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    names = [name for name in header if name.endswith("norm.weight") and ".layers." not in name]
    return 8 + length + int(header[names[0]]["data_offsets"][0]) if names else None
