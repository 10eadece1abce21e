"""The certified lane: every cell of its matrix on tiny models, at least one of each kind on the pinned one.

The rows are made by the program that makes the evidence of docs/lane.md, on short prompts and small batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lane import measure, with_references
from benchmarks.lane_cells import CELLS
from determinism.tiny_model import write_tiny_model

pytestmark = pytest.mark.engine
CERTIFIED = tuple(cell.name for cell in CELLS if not cell.is_refused)
SLIDING_CELLS = ("plain", "all on")  # a window gives its old blocks back: nothing is ever short of room
PINNED_CELLS = ("plain", "all on", "preemption", "two threads, all on", "control: stock sampling")
Rows = Mapping[str, Mapping[str, Any]]


@pytest.fixture(scope="module")
def tiny_rows(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return _rows(str(write_tiny_model(model_dir, tmp_path_factory.mktemp("tiny"))), CERTIFIED)


@pytest.fixture(scope="module")
def sliding_rows(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return _rows(str(write_tiny_model(model_dir, tmp_path_factory.mktemp("sliding"), sliding_window=96)), SLIDING_CELLS)


@pytest.fixture(scope="module")
def pinned_rows(model_dir: Path) -> Rows:
    return _rows(str(model_dir), PINNED_CELLS)


def _rows(model: str, names: tuple[str, ...]) -> Rows:
    return {row["cell"]: row for row in measure(model, with_references(names), is_quick=True)}


@pytest.mark.parametrize("name", CERTIFIED)
def test_a_cell_of_the_matrix_holds_on_a_tiny_model(tiny_rows: Rows, name: str) -> None:
    assert tiny_rows[name]["problems"] == []


@pytest.mark.parametrize("name", SLIDING_CELLS)
def test_a_cell_holds_with_a_sliding_window(sliding_rows: Rows, name: str) -> None:
    assert sliding_rows[name]["problems"] == []


@pytest.mark.parametrize("name", PINNED_CELLS)
def test_a_cell_holds_on_the_pinned_model(pinned_rows: Rows, name: str) -> None:
    assert pinned_rows[name]["problems"] == []


def test_settings_that_keep_every_bit_are_identities_of_their_own(tiny_rows: Rows) -> None:
    identities = {row["engine_identity"] for name, row in tiny_rows.items() if not name.startswith("control")}
    assert len(identities) == len([name for name in tiny_rows if not name.startswith("control")])
