"""The settings that the certified CPU lane is proved over, and the engine configuration of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from inference.config import AttentionConfig, EngineConfig, FeaturesConfig, RopeConfig, SpeculationConfig
from inference.vllm_runtime import BLOCK_SIZE

MAX_TOKENS = 64
LENGTHS = (50, 450, 1400, 2000)
"""Tokens of the prompts that every cell answers. Below about 400 a comparison is blind: stock vLLM passes it too."""
LONG_LENGTHS = (4000, 8000)
STRETCHED_LENGTHS = (450, 1400, 9000)
"""The last one stands beyond the 8,192 positions of the training, where only stretched positions reach."""
STRANGER_LENGTHS = (61, 200, 333, 520)
BATCH_SIZES = (2, 8)
WIDE_BATCH_SIZES = (2, 8, 32, 64)
WIDE = {"max_num_seqs": 64, "kv_cache_gib": 3.0}
TIGHT_BLOCKS = 20
"""Blocks of the KV cache in which a batch runs out of room; the longest prompt of `LENGTHS` alone does not."""
TIGHT_MAX_MODEL_LEN = 2304
BYTES_PER_VALUE = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting of the engine.

    reference: the cell whose answers, each alone, it must repeat; its own name where it is one.
    update: keys of the configuration that differ from the CPU profile with every feature off.
    witnesses: counters that must have moved, or the cell has shown nothing.
    is_short_of_room: the KV cache is too small for its batches.
    without: a part of the plugin that a control leaves out; its answers must differ.
    is_refused: the checker refuses this setting; the row shows why, and fails nothing.
    """

    name: str
    reference: str
    update: Mapping[str, Any] = field(default_factory=dict)
    witnesses: tuple[str, ...] = ()
    lengths: tuple[int, ...] = LENGTHS
    batch_sizes: tuple[int, ...] = BATCH_SIZES
    is_short_of_room: bool = False
    without: Literal["attention", "sampling"] | None = None
    is_refused: bool = False

    @property
    def process(self) -> tuple[Any, ...]:
        """Cells of equal values can run in one process, one after the other; vLLM reads the rest only once."""
        features = self.update.get("features", FeaturesConfig())
        return self.update.get("num_threads", 1), features.compile, self.without or ""


def configure(cell: Cell, base: EngineConfig, weights_dir: Path) -> EngineConfig:
    """The engine configuration of a cell; what the checker would refuse is not refused here."""
    update = {"features": FeaturesConfig(), "max_num_batched_tokens": None, "num_threads": 1, **cell.update}
    if cell.is_short_of_room:
        num_bytes = TIGHT_BLOCKS * bytes_per_block(weights_dir, update.get("dtype", base.dtype))
        update |= {"max_model_len": TIGHT_MAX_MODEL_LEN, "kv_cache_gib": num_bytes / 2**30}
    if cell.without == "attention":
        update["attention"] = AttentionConfig(invariant=False, split_kv=False)
    return base.model_copy(update=update)


def quick(cell: Cell) -> Cell:
    """The same cell on short prompts and small batches, for tests; long ones where the cell is about them."""
    lengths = STRETCHED_LENGTHS if cell.lengths == STRETCHED_LENGTHS else LENGTHS
    return replace(cell, lengths=lengths, batch_sizes=BATCH_SIZES)


def bytes_per_block(weights_dir: Path, dtype: str) -> int:
    """Bytes of one block of the KV cache over all layers of the model."""
    model = json.loads((weights_dir / "config.json").read_text(encoding="utf-8"))
    head_dim = model.get("head_dim") or model["hidden_size"] // model["num_attention_heads"]
    values = 2 * model["num_hidden_layers"] * model["num_key_value_heads"] * head_dim
    return int(values * BLOCK_SIZE * BYTES_PER_VALUE[dtype])


def _ngram(num_tokens: int) -> SpeculationConfig:
    return SpeculationConfig(
        method="ngram", num_speculative_tokens=num_tokens, prompt_lookup_max=4, prompt_lookup_min=2
    )


def _chunks(num_tokens: int) -> Cell:
    update = {"features": FeaturesConfig(chunked_prefill=True), "max_num_batched_tokens": num_tokens}
    return Cell(f"chunks of {num_tokens}", "plain", update)


DRAFTS = ("num_draft_tokens", "num_accepted_draft_tokens")
FEATURES_ON = FeaturesConfig(prefix_caching=True, chunked_prefill=True, speculation=_ngram(4))
ALL_ON = {"features": FEATURES_ON, "max_num_batched_tokens": 512}
ALL_WITNESSES = ("num_cached_tokens", *DRAFTS)
STRETCHED = {
    "max_model_len": 16384,
    "kv_cache_gib": 4.0,
    "rope_parameters": RopeConfig(
        rope_type="yarn", rope_theta=100_000.0, factor=2.0, original_max_position_embeddings=8192
    ),
}
"""Positions as in `gpu_configs/cpu-16k.yaml`."""
COMPILED = {"features": FeaturesConfig(compile=True)}
COMPILED_ALL_ON = ALL_ON | {"features": FEATURES_ON.model_copy(update={"compile": True})}

CELLS: tuple[Cell, ...] = (
    Cell("plain", "plain", WIDE, lengths=LENGTHS + LONG_LENGTHS, batch_sizes=WIDE_BATCH_SIZES),
    *(_chunks(num_tokens) for num_tokens in (64, 256, 512, 2048)),
    Cell("prefix caching", "plain", {"features": FeaturesConfig(prefix_caching=True)}, ("num_cached_tokens",)),
    *(
        Cell(f"speculation of {k}", "plain", {"features": FeaturesConfig(speculation=_ngram(k))}, DRAFTS)
        for k in range(1, 9)
    ),
    Cell("preemption", "plain", {}, ("num_preemptions",), is_short_of_room=True),
    Cell("preemption, all on", "plain", ALL_ON, ("num_preemptions", *ALL_WITNESSES), is_short_of_room=True),
    Cell("all on", "plain", ALL_ON | WIDE, ALL_WITNESSES, LENGTHS + LONG_LENGTHS, WIDE_BATCH_SIZES),
    Cell("stretched", "stretched", STRETCHED, lengths=STRETCHED_LENGTHS),
    Cell("stretched, all on", "stretched", STRETCHED | ALL_ON, ALL_WITNESSES, STRETCHED_LENGTHS),
    Cell("two threads", "plain", {"num_threads": 2}),
    Cell("two threads, all on", "plain", ALL_ON | {"num_threads": 2}, ALL_WITNESSES),
    Cell("compiled", "compiled", COMPILED, is_refused=True),
    Cell("compiled, all on", "compiled", COMPILED_ALL_ON, ALL_WITNESSES, is_refused=True),
    Cell("bfloat16", "bfloat16", {"dtype": "bfloat16"}, is_refused=True),
    Cell("bfloat16, all on", "bfloat16", ALL_ON | {"dtype": "bfloat16"}, ALL_WITNESSES, is_refused=True),
    Cell("control: stock attention", "plain", without="attention"),
    Cell("control: stock sampling", "plain", {"features": FeaturesConfig(speculation=_ngram(4))}, without="sampling"),
)
