"""A tiny model with a sliding window and random weights, in vLLM and in transformers.

`python -m tests.inference.sliding_window PINNED_DIR WORK_DIR` prints one JSON document: what vLLM said alone, in a
batch and scored, and what transformers says with the window and without it.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from inference.config import EngineConfig, load_config
from inference.containment import contained
from inference.transformers_engine import TransformersEngine
from inference.vllm_engine import VllmEngine
from inference.weights import pin
from projection.errors import EngineError
from tests.inference import invariance

WINDOW = 96
LENGTHS = (450, 90, 200)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def write_model(pinned_dir: Path, directory: Path, window: int | None) -> None:
    """Random weights, the same for every window, wide enough that no two tokens come close to a tie."""
    import torch
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=49152,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        sliding_window=window,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        dtype="float32",
    )
    MistralForCausalLM(config).save_pretrained(directory)
    for name in TOKENIZER_FILES:
        shutil.copyfile(pinned_dir / name, directory / name)
    pin(directory)


def say_with_transformers(config: EngineConfig, directory: Path, prompt: list[int]) -> list[int]:
    with TransformersEngine.load(config, directory) as engine:
        return list(engine.generate(prompt, invariance.MAX_TOKENS, None).token_ids)


def main() -> None:
    pinned_dir, work_dir = Path(sys.argv[1]), Path(sys.argv[2])
    config = load_config(invariance.ROOT / "gpu_configs" / "cpu.yaml").model_copy(update={"max_model_len": 1024})
    with contained("writing the models"):
        write_model(pinned_dir, work_dir / "window", WINDOW)
        write_model(pinned_dir, work_dir / "no_window", None)
    try:
        VllmEngine.load(config.model_copy(update={"max_model_len": 4096}), work_dir / "window")
        raise SystemExit("more context than the model has was taken")
    except EngineError:
        pass  # and the next start in this process must work
    with VllmEngine.load(config, work_dir / "window") as engine:
        prompt = invariance.make_prompt(engine, 0, LENGTHS[0])
        result: dict[str, Any] = {"vllm": invariance.collect(engine, LENGTHS, ())}
        full = invariance.make_prompt(engine, 1, engine.max_model_len - 1)
        said = engine.generate(full, 1, None).token_ids
        result["fills_the_context"] = [said, [p.best_token_id for p in engine.score(full, said, None).positions]]
    result["transformers"] = say_with_transformers(config, work_dir / "window", prompt)
    result["transformers_without_window"] = say_with_transformers(config, work_dir / "no_window", prompt)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
