"""A directory with every file of a model and next to nothing in them, for the tests of pinning and pulling."""

from __future__ import annotations

from pathlib import Path

FILES = {
    "chat_template.jinja": b"{{ messages[0].content }}\n",
    "config.json": b'{"model_type": "llama"}\n',
    "generation_config.json": b'{"eos_token_id": 2}\n',
    "model.safetensors": b"\x02\0\0\0\0\0\0\0{}",
    "tokenizer.json": b"{}\n",
    "tokenizer_config.json": b"",
}
REVISION = "0123456789abcdef0123456789abcdef01234567"


def write_model(directory: Path) -> Path:
    directory.mkdir(parents=True)
    for name, data in FILES.items():
        (directory / name).write_bytes(data)
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
