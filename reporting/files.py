"""Reports on the disk: a file is there whole, or as it was before."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from projection.errors import StorageError


def write_text(path: Path, text: str) -> None:
    """Write a file in UTF-8, in the place of an older one; its folder is made where it is missing.

    Raises:
        StorageError: it cannot be written. An older file is as it was before.
    """
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as exc:
        with suppress(OSError):
            unfinished.unlink()
        raise StorageError(f"{path} cannot be written: {exc.strerror}", path=str(path)) from exc
