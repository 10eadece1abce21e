"""A tiny Llama with random weights on the pinned model's tokenizer: hundreds of tokens a second, with real kernels.

It says nothing anybody could read. Its weights are drawn wide, so that no two tokens come close to a tie by design, and
its shapes are not those of the pinned model: other head counts, other sizes. Its output layer leans towards going round
in small circles of tokens, so that guessing ahead from what was said is often right and often wrong.
"""

from __future__ import annotations

import shutil
from pathlib import Path

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
VOCAB_SIZE = 49152
MAX_POSITIONS = 8192
CIRCLE = 6  # tokens
LEANING = 0.75  # of the output layer towards the circle


def write_tiny_model(pinned_dir: Path, directory: Path, sliding_window: int | None = None, seed: int = 0) -> Path:
    """Write and pin the model; returns `directory`.

    pinned_dir: a pinned directory whose tokenizer the model borrows.
    sliding_window: None is a Llama; else a Mistral of that window, in tokens.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

    from inference.weights import pin

    torch.manual_seed(seed)
    shape = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": MAX_POSITIONS,
        "initializer_range": 0.2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
    }
    model = (
        LlamaForCausalLM(LlamaConfig(**shape))
        if sliding_window is None
        else MistralForCausalLM(MistralConfig(**shape, sliding_window=sliding_window))
    )
    token_ids = torch.arange(VOCAB_SIZE)
    before = torch.where(token_ids % CIRCLE == 0, (token_ids + CIRCLE - 1).clamp(max=VOCAB_SIZE - 1), token_ids - 1)
    with torch.no_grad():
        model.lm_head.weight += LEANING * model.model.embed_tokens.weight[before]
    model.save_pretrained(directory)
    for name in TOKENIZER_FILES:
        shutil.copyfile(pinned_dir / name, directory / name)
    pin(directory)
    return directory
