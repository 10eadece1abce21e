"""The bytes of an entry are those of the format, and say nothing of its payload."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from projection.canonical import MAX_SAFE_INTEGER, canonical_bytes, sha256_hex
from projection.entry import Header, parse_header
from projection.events import LINK_KINDS, Link
from tests.projection.trajectories import NOW, make_entries


def test_the_bytes_of_an_entry_are_those_of_the_format() -> None:
    """Recomputed from the specification alone: hashlib and json."""
    first, second = make_entries(2)
    assert first.salt is not None
    header = {
        "v": 1,
        "tenant_id": "acme",
        "case_id": "LN-7",
        "position": 1,
        "event_id": "evt-1",
        "type": "loan.note",
        "source": "urn:los",
        "occurred_at": "2026-01-30T08:00:00Z",
        "recorded_at": NOW,
        "links": [],
        "payload_commitment": sha256_hex(b"dpm/payload/v1\0" + first.salt + b"event 1: DTI 1.5%"),
    }
    assert first.header == json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    assert first.entry_hash == sha256_hex(b"dpm/entry/v1\0" + bytes(32) + first.header)
    assert second.entry_hash == sha256_hex(b"dpm/entry/v1\0" + bytes.fromhex(first.entry_hash) + second.header)


def test_the_bytes_of_format_1_do_not_change() -> None:
    assert make_entries(8)[-1].entry_hash == "f3627983b2a4b63e9b4d0ceed977373f572f103a1219b504ce73f9b309ede225"


def test_a_header_does_not_hold_the_payload_or_the_salt() -> None:
    for entry in make_entries():
        assert entry.payload is not None
        assert entry.salt is not None
        assert entry.payload not in entry.header
        assert entry.salt.hex().encode() not in entry.header


STRINGS = st.text(st.characters(exclude_categories=["Cs"]))
HEADERS = st.builds(
    Header,
    *[STRINGS] * 2,
    st.integers(1, MAX_SAFE_INTEGER),
    *[STRINGS] * 3,
    st.none() | STRINGS,
    STRINGS,
    st.lists(st.builds(Link, st.sampled_from(LINK_KINDS), STRINGS), max_size=3).map(tuple),
    STRINGS,
)


@given(HEADERS)
def test_the_bytes_of_any_header_are_canonical_and_read_back(header: Header) -> None:
    members = {name: getattr(header, name) for name in Header.__slots__}
    links = [{"kind": link.kind, "event_id": link.event_id} for link in header.links]
    assert header.to_bytes() == canonical_bytes(members | {"links": links, "v": 1})
    assert parse_header(header.to_bytes(), 1) == header
