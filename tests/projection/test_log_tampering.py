"""Whatever is done to the entries of a log is found, at the first position that it touched."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projection.canonical import canonical_bytes, sha256_hex
from projection.entry import ZERO_HASH, Entry, Head, Stream, chain, entry_hash, payload_commitment
from projection.errors import VerificationError
from projection.log import read, verify
from projection.store_memory import MemoryStore
from tests.projection.trajectories import NOW, STREAM, counted_salt, make_entries, make_event, make_events


def with_header(entry: Entry, **changes: object) -> Entry:
    """The entry with an edited header, in canonical form."""
    return replace(entry, header=canonical_bytes(json.loads(entry.header) | changes))


def rehashed(entry: Entry, prev: Head) -> Entry:
    """The entry with a position and hash that follow `prev`."""
    moved = with_header(replace(entry, position=prev.position + 1), position=prev.position + 1)
    return replace(moved, entry_hash=entry_hash(prev.entry_hash, moved.header))


def committed(entry: Entry, payload: bytes) -> Entry:
    """The entry with another payload that its header commits to."""
    changed = replace(entry, payload=payload)
    return with_header(changed, payload_commitment=payload_commitment(entry.salt or b"", payload))


EDITS: dict[str, Callable[[Entry], Entry]] = {
    "payload": lambda e: replace(e, payload=b"DTI 1.5%"),
    "empty payload": lambda e: replace(e, payload=b""),
    "salt": lambda e: replace(e, salt=bytes(32)),
    "cut salt": lambda e: replace(e, salt=(e.salt or b"")[:31]),
    "no salt": lambda e: replace(e, salt=None),
    "no payload": lambda e: replace(e, payload=None),
    "bytes moved from payload to salt": lambda e: replace(
        e, salt=(e.salt or b"") + (e.payload or b"")[:1], payload=(e.payload or b"")[1:]
    ),
    "entry hash": lambda e: replace(e, entry_hash=sha256_hex(b"")),
    "entry hash of the empty stream": lambda e: replace(e, entry_hash=ZERO_HASH),
    "filed event id": lambda e: replace(e, event_id="evt-other"),
    "filed case": lambda e: replace(e, stream=Stream("acme", "LN-8")),
    "filed tenant": lambda e: replace(e, stream=Stream("other", "LN-7")),
    "filed position": lambda e: replace(e, position=e.position + 100),
    "header type": lambda e: with_header(e, type="loan.other"),
    "header source": lambda e: with_header(e, source="urn:other"),
    "header time": lambda e: with_header(e, occurred_at="2026-01-29T08:00:00Z"),
    "header recording time": lambda e: with_header(e, recorded_at="2026-01-29T08:00:00Z"),
    "header links": lambda e: with_header(e, links=[{"event_id": "evt-0", "kind": "contradicts"}]),
    "header position": lambda e: with_header(e, position=e.position + 1),
    "header position as text": lambda e: with_header(e, position=str(e.position)),
    "header position as a float": lambda e: replace(
        e, header=e.header.replace(b'"position":%d' % e.position, b'"position":%d.0' % e.position)
    ),
    "header position as true": lambda e: with_header(e, position=True),
    "header source as a number": lambda e: with_header(e, source=7),
    "header event id": lambda e: with_header(e, event_id="evt-other"),
    "header tenant": lambda e: with_header(e, tenant_id="other"),
    "header version": lambda e: with_header(e, v=2),
    "header with another member": lambda e: with_header(e, approved=True),
    "header without a member": lambda e: replace(e, header=e.header.replace(b'"links"', b'"lynks"')),
    "header in another form": lambda e: replace(e, header=e.header.replace(b":", b": ", 1)),
    "header with a key twice": lambda e: replace(e, header=e.header.replace(b"{", b'{"case_id":"LN-7",', 1)),
    "header with half a surrogate pair": lambda e: replace(e, header=e.header.replace(b"urn:los", b"\\ud800")),
    "header cut off": lambda e: replace(e, header=e.header[:-1]),
    "no header": lambda e: replace(e, header=b""),
    "header that is a list": lambda e: replace(e, header=b"[]"),
    "header nested too deep": lambda e: replace(e, header=b"[" * 100_000),
    "header that is not UTF-8": lambda e: replace(e, header=e.header.replace(b"urn:los", b"urn:\xff")),
    "payload and its commitment": lambda e: committed(e, b"DTI 1.5%"),
}
INDICES = st.integers(0, 7)


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
@given(index=INDICES)
def test_an_edited_entry_is_found_at_its_position(edit: Callable[[Entry], Entry], index: int) -> None:
    entries = make_entries()
    entries[index] = edit(entries[index])
    verdict = verify(entries, STREAM)
    assert (verdict.holds, verdict.num_entries, verdict.first_bad_position) == (False, index, index + 1)
    assert verdict.reason is not None
    assert verdict.reason.startswith(f"position {index + 1}: ")


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_reading_stops_at_an_edited_entry(edit: Callable[[Entry], Entry]) -> None:
    entries = make_entries()
    entries[4] = edit(entries[4])
    store = MemoryStore()
    store.append(STREAM, entries, expected_position=0)
    with pytest.raises(VerificationError) as caught:
        read(store, STREAM)
    assert caught.value.fields["position"] == 5


@given(st.binary(min_size=1), INDICES, st.sampled_from(["header", "salt", "payload"]))
def test_any_other_bytes_in_the_place_of_an_entrys_bytes_are_found(data: bytes, index: int, field: str) -> None:
    entries = make_entries()
    if getattr(entries[index], field) != data:
        entries[index] = {
            "header": replace(entries[index], header=data),
            "salt": replace(entries[index], salt=data),
            "payload": replace(entries[index], payload=data),
        }[field]
        assert verify(entries, STREAM).first_bad_position == index + 1


@given(INDICES, st.integers(0, 7), st.booleans())
def test_two_entries_that_change_places_are_found_at_the_first(one: int, other: int, refile: bool) -> None:
    first, second = sorted((one, other))
    entries = make_entries()
    entries[first], entries[second] = entries[second], entries[first]
    if refile:
        entries = [replace(entry, position=position) for position, entry in enumerate(entries, start=1)]
    verdict = verify(entries, STREAM)
    assert verdict.first_bad_position == (None if first == second else first + 1)


@given(INDICES)
def test_a_deleted_entry_is_found_at_its_position(index: int) -> None:
    entries = make_entries()
    head = entries[-1].head
    del entries[index]
    verdict = verify(entries, STREAM, expected_head=head)
    assert (verdict.holds, verdict.first_bad_position) == (False, index + 1)
    if index < 7:
        assert verify(entries, STREAM).first_bad_position == index + 1


@given(INDICES)
def test_a_deleted_entry_is_found_though_the_rest_was_moved_up(index: int) -> None:
    entries = make_entries()
    head = entries[-1].head
    del entries[index]
    moved = [with_header(replace(e, position=p), position=p) for p, e in enumerate(entries, start=1)]
    assert verify(moved, STREAM, expected_head=head).first_bad_position == index + 1


@given(INDICES, st.booleans())
def test_a_forged_entry_is_found_at_its_position(index: int, has_own_hash: bool) -> None:
    entries = make_entries()
    prev = entries[index - 1].head if index else Head()
    (forged,) = chain(STREAM, prev if has_own_hash else Head(), [make_event(99)], now=NOW, salt=counted_salt())
    forged = with_header(replace(forged, position=index + 1), position=index + 1) if not has_own_hash else forged
    following = [replace(e, position=e.position + 1) for e in entries[index:]]
    verdict = verify([*entries[:index], forged, *following], STREAM)
    first_bad = index + 2 if has_own_hash else index + 1
    if index == 0 and not has_own_hash:
        first_bad = index + 2  # at the start both forgeries are one
    assert verdict.first_bad_position == first_bad


@given(INDICES)
def test_a_tail_that_was_rewritten_with_hashes_of_its_own_is_found_against_a_kept_head(index: int) -> None:
    entries = make_entries()
    head = entries[-1].head
    forged = committed(entries[index], b"forged")
    prev = entries[index - 1].head if index else Head()
    rewritten = entries[:index]
    for entry in [forged, *entries[index + 1 :]]:
        rewritten.append(rehashed(entry, prev))
        prev = rewritten[-1].head
    assert verify(rewritten, STREAM).holds
    for expected in (head, head.entry_hash):
        assert not verify(rewritten, STREAM, expected_head=expected).holds
    kept_before = entries[index - 1].head if index else Head()
    assert verify(rewritten, STREAM, expected_head=kept_before).holds
    assert verify(rewritten, STREAM, expected_head=entries[index].head).first_bad_position == index + 1


@given(st.integers(0, 7))
def test_a_cut_tail_is_found_against_a_kept_head_only(num_kept: int) -> None:
    entries = make_entries()
    head = entries[-1].head
    cut = entries[:num_kept]
    assert verify(cut, STREAM).holds
    for expected in (head, head.entry_hash):
        verdict = verify(cut, STREAM, expected_head=expected)
        assert (verdict.holds, verdict.first_bad_position) == (False, num_kept + 1)


def test_the_entries_of_another_case_do_not_hold_as_this_one() -> None:
    other = list(chain(Stream("acme", "LN-8"), Head(), make_events(3), now=NOW, salt=counted_salt()))
    assert verify(other, STREAM).first_bad_position == 1
    refiled = [replace(entry, stream=STREAM) for entry in other]
    assert verify(refiled, STREAM).first_bad_position == 1
