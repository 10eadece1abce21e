"""Surfaces and cells: every bit counts, and a file that was changed is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from determinism.cell import Cell, Observed, tally
from determinism.surface import Surface, first_difference
from determinism.verdict import VERDICTS, exit_code
from projection.errors import VerificationError

A = Surface.build([5, 6, 7], "abc", [-0.5, -0.25, -1.0], [1.0, None, 0.5], "stop")
NEXT = math.nextafter(-0.25, -1)


def make_cell(*surfaces: Surface, **changes: Any) -> Cell:
    distinct, replays = tally(Observed(f"replay {n}", surface, 0.5) for n, surface in enumerate(surfaces))
    fields = {
        "engine": "an engine", "engine_identity": "0" * 64, "check": "a_check", "workload": "a-workload",
        "verdict": "PASS", "surfaces": distinct, "replays": replays, "evidence": {"n": 1}, "wall_s": 1.5,
    }  # fmt: skip
    return Cell(**{**fields, **changes})


@pytest.mark.parametrize(
    ("other", "what", "index"),
    [
        (Surface.build([5, 6, 8], "abc", [-0.5, -0.25, -1.0], [1.0, None, 0.5], "stop"), "token_ids", 2),
        (Surface.build([5, 6], "abc", [-0.5, -0.25], [1.0, None], "stop"), "token_ids", 2),
        (Surface.build([5, 6, 7], "abc", [-0.5, NEXT, -1.0], [1.0, None, 0.5], "stop"), "logprobs", 1),
        (Surface.build([5, 6, 8], "abc", [-0.5, NEXT, -1.0], [1.0, None, 0.5], "stop"), "logprobs", 1),
        (Surface.build([5, 6, 7], "abc", [-0.5, -0.25, -1.0], [1.0, 0.0, 0.5], "stop"), "margins", 1),
        (Surface.build([5, 6, 7], "abd", [-0.5, -0.25, -1.0], [1.0, None, 0.5], "stop"), "text", 2),
        (Surface.build([5, 6, 7], "abc", [-0.5, -0.25, -1.0], [1.0, None, 0.5], "length"), "finish_reason", None),
    ],
)
def test_every_part_of_a_surface_counts_and_the_first_difference_is_named(
    other: Surface, what: str, index: int | None
) -> None:
    difference = first_difference(A, other)
    assert difference is not None
    assert (difference.what, difference.index) == (what, index)
    assert A.sha256 != other.sha256
    assert A.xxh3 != other.xxh3
    assert first_difference(A, A) is None


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=8))
def test_numbers_keep_their_bits(logprobs: list[float]) -> None:
    surface = Surface.build(range(len(logprobs)), "", logprobs)
    again = Surface.model_validate_json(surface.model_dump_json())
    assert again == surface
    assert [float.fromhex(value).hex() for value in again.logprobs] == [value.hex() for value in logprobs]


def test_a_changed_surface_is_refused() -> None:
    value = A.model_dump(mode="json") | {"text": "abd"}
    with pytest.raises(ValidationError, match="the file was changed"):
        Surface.model_validate_json(json.dumps(value))


def test_the_smallest_margin_is_the_distance_from_flipping() -> None:
    assert A.min_margin == 0.5
    assert Surface.build([1], "", [0.0], [None]).min_margin is None


def test_equal_surfaces_stand_once_and_every_replay_is_counted() -> None:
    other = Surface.build([1], "x")
    cell = make_cell(A, A, other, A, other, verdict="DRIFT")
    assert [replay.surface for replay in cell.replays] == [0, 0, 1, 0, 1]
    assert (cell.num_replays, cell.num_comparisons, cell.num_drifted, len(cell.surfaces)) == (5, 4, 2, 2)
    assert cell.surface_of(cell.replays[2]) == other
    assert cell.first_difference == first_difference(A, other)


def test_a_cell_is_one_line_and_comes_back_equal() -> None:
    cell = make_cell(A, A, control="a fault", expected="DRIFT", reason="because")
    line = json.dumps(cell.to_value())
    assert "\n" not in line
    assert Cell.from_value(json.loads(line)) == cell
    assert not cell.holds


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": "dpm/determinism-cell/v2"},
        {"verdict": "MAYBE"},
        {"unknown": 1},
        {"replays": []},
        {"surfaces": []},
        {"wall_s": "soon"},
    ],
)
def test_what_is_no_cell_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(VerificationError):
        Cell.from_value(make_cell(A).to_value() | change)


def test_a_drift_outweighs_a_failure_and_a_failure_what_is_incomparable() -> None:
    assert exit_code(["PASS", "ERROR", "DRIFT"]) == exit_code(["MISSING"]) == 1
    assert exit_code(["INCOMPARABLE", "ERROR", "PASS"]) == 4
    assert exit_code(["PASS", "INCOMPARABLE"]) == 3
    assert exit_code(["PASS", "SKIPPED", "UNUSED"]) == 0
    assert exit_code(["SKIPPED"]) == exit_code([]) == 5
    assert all(exit_code([verdict]) in (0, 1, 3, 4, 5) for verdict in VERDICTS)
