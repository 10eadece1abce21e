"""Near-ties are found by the exact distance of float32 bits, and listed closest first."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from determinism.divergence import margin_ulp, ulp_distance
from determinism.near_ties import Limit, find_near_ties, has_near_tie, scan
from inference.scripted_engine import ScriptedTokenizer
from projection.entry import Stream
from projection.errors import RequestError
from projection.record import AuditRecord
from tests.projection.decided import EditedStore, decide_small_case, fill_case, seal, seal_text, with_call

floats32 = st.floats(width=32, allow_nan=False)


def above(value: float) -> float:
    """The next float32, found by its bits and not by the code under test."""
    (bits,) = struct.unpack(">I", struct.pack(">f", value))
    if value == 0:
        bits = 1
    else:
        bits += 1 if value > 0 else -1
    (found,) = struct.unpack(">f", struct.pack(">I", bits))
    return float(found)


@given(floats32.filter(math.isfinite))
def test_neighbours_are_one_step_apart(value: float) -> None:
    assert ulp_distance(value, above(value)) == 1
    assert ulp_distance(above(value), value) == 1


@given(floats32, floats32, floats32)
def test_distances_add_up_along_the_line(one: float, two: float, three: float) -> None:
    low, middle, high = sorted((one, two, three))
    assert ulp_distance(low, high) == ulp_distance(low, middle) + ulp_distance(middle, high)
    assert (ulp_distance(low, high) == 0) == (low == high)


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        (0.0, -0.0, 0),
        (1.0, 1.0 + 2**-23, 1),
        (-1.0, -1.0 - 2**-23, 1),
        (-1.0, -2.0, 2**23),
        (2.0**-149, -(2.0**-149), 2),
        (5e-324, 0.0, 0),
        (1e300, math.inf, 0),
        (-math.inf, math.inf, 2 * 0x7F800000),
    ],
)
def test_distances_that_are_known(one: float, other: float, distance: int) -> None:
    assert ulp_distance(one, other) == distance


def test_what_is_not_a_number_has_no_distance() -> None:
    with pytest.raises(RequestError, match="not a number"):
        ulp_distance(math.nan, 0.0)


def test_a_margin_is_measured_where_the_log_probabilities_lie() -> None:
    assert margin_ulp(-1.0, 2**-23) == 1
    assert margin_ulp(-1.0, 1.0) == 2**23


@pytest.fixture
def store() -> EditedStore:
    store = EditedStore()
    fill_case(store)
    return store


@pytest.fixture
def record(store: EditedStore) -> AuditRecord:
    return decide_small_case(store).record


def with_margins(record: AuditRecord, call: str, margins: dict[int, float]) -> AuditRecord:
    """The record as a model would have left it: log-probability -1 everywhere, and margins at some places."""
    recorded = record.content.projection if call == "projection" else record.content.decision_call
    size = len(recorded.token_ids)
    changes: dict[str, Any] = {
        "logprobs": [-1.0] * size,
        "margins": [margins.get(index) for index in range(size)],
    }
    return with_call(record, call, **changes)


def test_places_below_the_limit_are_listed_and_the_next_one_is_not(record: AuditRecord) -> None:
    at_limit, beyond = 1024 * 2**-23, 1025 * 2**-23
    record = with_margins(record, "projection", {3: at_limit, 5: beyond, 9: 0.0})
    found = list(find_near_ties(record, Limit(), ScriptedTokenizer()))
    assert [(tie.call, tie.index, tie.margin_ulp) for tie in found] == [("projection", 3, 1024), ("projection", 9, 0)]
    assert (found[0].before, found[0].text) == ("FAC", "T")
    assert has_near_tie(record, Limit())
    assert not has_near_tie(with_margins(record, "projection", {5: beyond}), Limit())


def test_a_margin_can_be_the_limit_instead(record: AuditRecord) -> None:
    record = with_margins(record, "decision", {4: 0.25, 7: 0.75})
    found = list(find_near_ties(record, Limit(max_ulp=None, max_margin=0.5)))
    assert [(tie.call, tie.index, tie.text) for tie in found] == [("decision", 4, None)]


def test_a_place_with_one_allowed_token_is_no_tie(record: AuditRecord) -> None:
    assert not has_near_tie(with_margins(record, "projection", {}), Limit(max_ulp=2**32, max_margin=math.inf))


def test_the_ledger_of_a_log_lists_the_closest_first_and_counts_the_rest(
    store: EditedStore, record: AuditRecord
) -> None:
    first = seal(store, with_margins(record, "projection", {3: 2**-20, 4: 1.0}))
    second = seal(store, with_margins(record, "decision", {6: 2**-22, 2: 2**-19}))
    seal_text(store, "no record")
    ledger = scan(store.entries(Stream("acme", "audit")), Limit(), 2, lambda record: None)
    assert [(row.record_id, row.tie.index) for row in ledger.rows] == [(second, 6), (first, 3)]
    assert (ledger.num_records, ledger.num_unreadable) == (3, 1)
    assert (ledger.num_choices, ledger.num_near_ties) == (4, 3)
