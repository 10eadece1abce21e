"""A scripted engine with weights: a pinned directory, checked at every start, whose bytes decide what it says.

What a mutation of weights or flags does to a real engine, it does to this one: in milliseconds, and without a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from inference.identity import weights_fields
from inference.manifest import MANIFEST_NAME, hash_file, load_manifest
from inference.scripted_engine import ScriptedEngine
from inference.weights import check, pin
from projection.engine import EngineIdentity
from projection.grammar import Grammar

WEIGHTS_NAME = "model.safetensors"


def write_weights(directory: Path) -> Path:
    """Write and pin a directory that has the form of a model; returns it."""
    directory.mkdir()
    (directory / WEIGHTS_NAME).write_bytes(bytes(range(256)) * 16)
    for name in ("config.json", "tokenizer.json"):
        (directory / name).write_text("{}", encoding="utf-8")
    pin(directory)
    return directory


def flip_weight_byte(directory: Path) -> None:
    """One bit of one byte in the middle of the weights."""
    with (directory / WEIGHTS_NAME).open("r+b") as file:
        file.seek(file.seek(0, 2) // 2)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def pin_again(directory: Path) -> None:
    """Make a new manifest over whatever is there now."""
    (directory / MANIFEST_NAME).unlink()
    pin(directory)


class PinnedScript(ScriptedEngine):
    """Says what its weights make of a prompt. claimed: another identity than its own, for an engine that lies."""

    def __init__(self, directory: Path, max_model_len: int = 8192, claimed: EngineIdentity | None = None) -> None:
        super().__init__(max_model_len)
        self._manifest = load_manifest(directory) if claimed else check(directory)
        self._weights = bytes.fromhex(hash_file(directory / WEIGHTS_NAME, "sha256"))
        self._claimed = claimed

    @property
    def identity(self) -> EngineIdentity:
        own = {**super().identity.fields, "weights": weights_fields(self._manifest)}
        return self._claimed or EngineIdentity(own)

    def script(self, prompt_token_ids: Sequence[int], grammar: Grammar | None) -> tuple[int, ...]:
        return super().script([*prompt_token_ids, *self._weights], grammar)
