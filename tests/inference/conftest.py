"""What several modules of this folder begin with: a directory that is a model, and a server in its wrapper."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.middleware import DpmMiddleware
from inference.weights import pin
from tests.inference.model_directory import write_model
from tests.inference.wrapped_server import KNOWN, LittleServer, server_settings


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


@pytest.fixture
def pinned(model: Path) -> Path:
    pin(model)
    return model


@pytest.fixture
def little() -> LittleServer:
    return LittleServer()


@pytest.fixture
def wrapped(little: LittleServer, tmp_path: Path) -> DpmMiddleware:
    return DpmMiddleware(little, server_settings(tmp_path, KNOWN))
