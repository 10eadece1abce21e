"""A written report: whole, or as it was before, whatever the disk does."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from projection.errors import StorageError
from reporting.files import write_text


@contextmanager
def full_disk(num_bytes: int) -> Iterator[None]:
    """No file grows beyond that many bytes, as on a disk without more room."""
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_file_and_its_folder_are_made_and_an_older_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.md"
    for text in ("é\n", "newer\n"):
        write_text(path, text)
        assert path.read_bytes() == text.encode()
    assert list(path.parent.iterdir()) == [path]


def test_a_disk_without_room_leaves_the_older_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    write_text(path, "older\n")
    with full_disk(100), pytest.raises(StorageError, match="cannot be written"):
        write_text(path, "x" * 100_000)
    assert path.read_text() == "older\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["folder", "file/report.md"])
def test_a_place_that_takes_no_file_is_a_failure_of_the_storage(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        write_text(tmp_path / name, "text")
