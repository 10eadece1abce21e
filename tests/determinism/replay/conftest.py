"""What every module of this folder begins with: a log in memory."""

from __future__ import annotations

import pytest

from tests.projection.decided import EditedStore, filled_store


@pytest.fixture
def store() -> EditedStore:
    return filled_store()
