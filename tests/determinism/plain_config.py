"""A configuration with nothing switched on, for tests that switch: the shipped one changes as more is proved."""

from __future__ import annotations

from inference.config import EngineConfig

PLAIN = EngineConfig.model_validate(
    {
        "model": "smollm2-135m-instruct",
        "dtype": "float32",
        "max_model_len": 8192,
        "max_num_seqs": 8,
        "num_threads": 1,
        "kv_cache_gib": 2.0,
        "seed": 0,
        "attention": {"invariant": True, "split_kv": False},
        "projection": {"slot_candidates": 2},
    }
)
