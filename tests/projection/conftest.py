"""What several modules of this folder begin with: a log in memory with its record, and a log in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from projection.record import AuditRecord
from tests.projection.decided import EditedStore, decide_small_case, filled_store
from tests.projection.sqlite_log import write_log


@pytest.fixture
def store() -> EditedStore:
    return filled_store()


@pytest.fixture
def record(store: EditedStore) -> AuditRecord:
    return decide_small_case(store).record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite"


@pytest.fixture
def filled(path: Path) -> Path:
    return write_log(path)
