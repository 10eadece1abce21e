"""What is said to hold and what is not: erased payloads, kept heads, absent streams; one entry in memory at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projection.entry import Entry, Head, Stream
from projection.errors import EventError, NotFoundError, RequestError, VerificationError
from projection.log import combined_head, parse_expected_head, read, read_heads, verify, verify_stream
from projection.store_memory import MemoryStore
from tests.projection.trajectories import STREAM, fill, make_entries, make_event, make_events


def test_an_erased_payload_is_counted_and_the_chain_still_holds() -> None:
    entries = make_entries()
    head = entries[-1].head
    for index in (2, 5):
        entries[index] = replace(entries[index], salt=None, payload=None)
    verdict = verify(entries, STREAM, expected_head=head)
    assert (verdict.holds, verdict.num_entries, verdict.num_erased, verdict.head) == (True, 8, 2, head)


def test_an_erased_payload_cannot_be_read_or_appended_again() -> None:
    store = MemoryStore()
    entries = make_entries(3)
    store.append(STREAM, [entries[0], replace(entries[1], salt=None, payload=None), entries[2]], expected_position=0)
    with pytest.raises(VerificationError, match="erased") as caught:
        read(store, STREAM)
    assert caught.value.fields["position"] == 2
    with pytest.raises(EventError, match="erased"):
        fill(store, make_events(3))


@given(st.integers(0, 7))
def test_a_log_that_has_grown_since_its_head_was_kept_holds(index: int) -> None:
    entries = make_entries()
    kept = entries[index].head
    for expected in (kept, kept.entry_hash, Head()):
        verdict = verify(entries, STREAM, expected_head=expected)
        assert (verdict.holds, verdict.num_entries) == (True, 8)


def test_a_stream_that_is_not_there_is_not_said_to_hold() -> None:
    with pytest.raises(NotFoundError):
        verify_stream(MemoryStore(), STREAM)
    verdict = verify_stream(MemoryStore(), STREAM, expected_head=make_entries()[-1].head)
    assert (verdict.holds, verdict.first_bad_position) == (False, 1)


def test_a_head_is_read_as_it_is_written() -> None:
    head = make_entries()[-1].head
    assert parse_expected_head(str(head)) == head
    assert parse_expected_head(head.entry_hash.upper()) == head.entry_hash
    for text in ("", "8", "8:", f"8:{head.entry_hash}0", f"x:{head.entry_hash}", f"-1:{head.entry_hash}"):
        with pytest.raises(RequestError):
            parse_expected_head(text)


def test_one_value_pins_the_heads_of_all_streams() -> None:
    store = MemoryStore()
    for case_id in ("LN-8", "LN-7"):
        fill(store, make_events(3), Stream("acme", case_id))
    heads = read_heads(store)
    kept = combined_head(heads)
    assert combined_head(dict(reversed(heads.items()))) == kept
    fill(store, [make_event(4)])
    assert combined_head(read_heads(store)) != kept
    assert combined_head({stream: head for stream, head in heads.items() if stream == STREAM}) != kept
    assert combined_head({}) != kept


def test_verifying_holds_one_entry_at_a_time() -> None:
    alive = 0
    most_alive = 0

    class Counted(Entry):
        def __init__(self, entry: Entry) -> None:
            nonlocal alive, most_alive
            super().__init__(
                entry.stream, entry.position, entry.event_id, entry.header, entry.entry_hash, entry.salt, entry.payload
            )
            alive += 1
            most_alive = max(most_alive, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    assert verify((Counted(entry) for entry in make_entries(50)), STREAM).num_entries == 50
    assert most_alive <= 2
