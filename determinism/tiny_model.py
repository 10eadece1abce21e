"""A tiny Llama with random weights on a pinned model's tokenizer: hundreds of tokens a second, with real kernels.

It says nothing anybody could read, and it is what wide matrices are run on: batches of 32, all workloads, hundreds of
replays. Its output layer leans towards going round in small circles of tokens, so that guessing ahead is often right
and often wrong. Its weights are a pure function of the seed and the version of torch.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from inference.manifest import MANIFEST_NAME

NAME = "tiny-random-llama"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
MAX_POSITIONS = 8192
CIRCLE = 6  # tokens
LEANING = 0.75  # of the output layer towards the circle


def ensure_tiny_model(pinned_dir: Path, directory: Path) -> Path:
    """Write and pin the model where it is not; returns `directory`. It appears whole or not at all.

    pinned_dir: a pinned directory whose tokenizer the model borrows.
    """
    if not (directory / MANIFEST_NAME).exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=directory.parent) as folder:
            write_tiny_model(pinned_dir, Path(folder) / "model").replace(directory)
    return directory


def write_tiny_model(pinned_dir: Path, directory: Path, sliding_window: int | None = None) -> Path:
    """Write and pin the model; returns `directory`.

    sliding_window: None is a Llama; else a Mistral of that window, in tokens.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

    from inference.weights import pin

    torch.manual_seed(0)
    vocab_size = _vocab_size(pinned_dir)
    shape = {
        "vocab_size": vocab_size,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": MAX_POSITIONS,
        "initializer_range": 0.2,  # wide, so that no two tokens come close to a tie by design
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
    }
    model = (
        LlamaForCausalLM(LlamaConfig(**shape))
        if sliding_window is None
        else MistralForCausalLM(MistralConfig(**shape, sliding_window=sliding_window))
    )
    token_ids = torch.arange(vocab_size)
    before = torch.where(token_ids % CIRCLE == 0, token_ids + CIRCLE - 1, token_ids - 1)
    with torch.no_grad():
        model.lm_head.weight += LEANING * model.model.embed_tokens.weight[before.clamp(max=vocab_size - 1)]
    model.save_pretrained(directory)
    for name in TOKENIZER_FILES:
        shutil.copyfile(pinned_dir / name, directory / name)
    pin(directory)
    return directory


def _vocab_size(pinned_dir: Path) -> int:
    from inference.tokenizer import PinnedTokenizer

    return PinnedTokenizer(pinned_dir).vocab_size
