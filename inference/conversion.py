"""Conversion of a GGUF file into a directory that vLLM and transformers read: float32 safetensors and JSON files.

Promises that the written bytes are a function of the GGUF file and of the locked library versions alone: no time, no
path, no thread count, and no version string, is written. Dequantisation multiplies numbers of few bits and adds once,
so it does not depend on the order of operations. Does not download, pin or verify: see `catalogue` and `weights`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from projection.errors import EngineError

CONFIG_KEYS_DROPPED = frozenset({"_name_or_path", "_model_name_or_path", "transformers_version", "_from_model_config"})
"""Written by the converter about itself; no engine computes with them."""

TOKENIZER_CONFIG_KEYS_KEPT = ("bos_token", "eos_token", "pad_token", "unk_token")

SMOLLM_PRE_TOKENIZER: Mapping[str, Any] = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}
"""The split that the file's `tokenizer.ggml.pre: smollm` stands for: every digit by itself, then byte-level words.
transformers knows no such name and would leave the digits' split out (Source: llama.cpp, LLAMA_VOCAB_PRE_TYPE_SMOLLM).
"""


def convert_gguf(gguf: Path, dest: Path) -> None:
    """Write weights, configuration, tokenizer and chat template of a SmolLM2 GGUF file into the directory `dest`.

    Raises:
        EngineError: the libraries are missing or cannot read the file.
    """
    try:
        _save_pretrained(gguf, dest)
    except (ImportError, OSError, RuntimeError, ValueError) as exc:
        raise EngineError(
            f"{gguf.name} could not be converted: {exc}. The conversion needs torch, transformers, gguf and "
            "accelerate as locked in locks/cpu.txt ('make setup' installs them)",
            name=gguf.name,
        ) from exc
    _rewrite_configs(dest)
    _rewrite_tokenizer(dest)
    for path in dest.iterdir():
        path.chmod(0o644)


def _save_pretrained(gguf: Path, dest: Path) -> None:
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True, "trust_remote_code": False}
    AutoTokenizer.from_pretrained(str(gguf.parent), **where).save_pretrained(str(dest))
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), dtype=torch.float32, quantization_config=GgufConfig(dequantize=True), **where
    )
    try:
        model.save_pretrained(str(dest), max_shard_size="5GB")
    except SafetensorError as exc:
        raise OSError(f"the weights could not be written: {exc}") from exc


def _rewrite_configs(dest: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        value = _read_json(dest / name)
        _write_json(dest / name, {key: value[key] for key in value if key not in CONFIG_KEYS_DROPPED})


def _rewrite_tokenizer(dest: Path) -> None:
    tokenizer = _read_json(dest / "tokenizer.json")
    tokenizer["pre_tokenizer"] = SMOLLM_PRE_TOKENIZER
    _write_json(dest / "tokenizer.json", tokenizer)
    written = _read_json(dest / "tokenizer_config.json")
    config = {key: written[key] for key in TOKENIZER_CONFIG_KEYS_KEPT}
    config["clean_up_tokenization_spaces"] = False
    config["model_max_length"] = _read_json(dest / "config.json")["max_position_embeddings"]
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    _write_json(dest / "tokenizer_config.json", config)


def _read_json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
