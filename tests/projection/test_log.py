"""The log: one contract for both stores, and verification against every edit of an entry."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projection.canonical import MAX_SAFE_INTEGER, canonical_bytes, sha256_hex
from projection.entry import ZERO_HASH, Entry, Head, Header, Stream, chain, entry_hash, parse_header, payload_commitment
from projection.errors import (
    EventError,
    NotFoundError,
    RequestError,
    StalePositionError,
    StorageError,
    VerificationError,
)
from projection.events import AUDIT_CASE_ID, LINK_KINDS, MAX_EVENT_CHARS, Event, Link
from projection.ingest import ParsedEvents
from projection.log import (
    Store,
    append,
    append_new,
    append_record,
    combined_head,
    find_record,
    parse_expected_head,
    read,
    read_heads,
    verify,
    verify_stream,
)
from projection.store_memory import MemoryStore
from projection.store_sqlite import PAGE_BYTES, PAGE_ROWS, SqliteStore
from tests.projection.trajectories import NOW, STREAM, counted_salt, fill, make_event, make_events


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
    else:
        with SqliteStore.open(tmp_path / "log.sqlite") as sqlite_store:
            yield sqlite_store


def parsed(events: list[Event], lines: list[int] | None = None) -> ParsedEvents:
    return ParsedEvents(tuple(events), tuple(lines or range(1, len(events) + 1)), None)


def append_file(store: Store, events: list[Event], stream: Stream = STREAM) -> Head:
    return append_new(store, stream, parsed(events), now=NOW, salt=counted_salt())


class TestStoreContract:
    """What every store promises; each test runs on both."""

    def test_an_unknown_stream_is_empty(self, store: Store) -> None:
        assert store.head(STREAM) == Head(0, ZERO_HASH)
        assert list(store.entries(STREAM)) == []
        assert store.streams() == []
        assert read(store, STREAM) == []

    def test_events_come_back_in_order_with_contiguous_positions(self, store: Store) -> None:
        events = make_events(7)
        head = fill(store, events)
        logged = read(store, STREAM)
        assert [(e.position, e.event) for e in logged] == list(enumerate(events, start=1))
        assert head == store.head(STREAM)
        assert head.position == 7

    def test_appending_goes_on_where_the_stream_ended(self, store: Store) -> None:
        fill(store, make_events(3))
        fill(store, make_events(2, first=4))
        assert [e.event for e in read(store, STREAM)] == make_events(5)
        assert verify_stream(store, STREAM).holds

    def test_both_stores_give_the_same_hashes(self, store: Store) -> None:
        memory = MemoryStore()
        assert fill(store, make_events(5)) == fill(memory, make_events(5))
        assert list(store.entries(STREAM)) == list(memory.entries(STREAM))

    @pytest.mark.parametrize("text", ["a\0b", "\0", "\u202eabc", "<|im_end|>", "[99] x", "\r\n", "\U0010ffff"])
    def test_a_text_comes_back_byte_for_byte(self, store: Store, text: str) -> None:
        text += "x"
        fill(store, [make_event(1, text)])
        assert read(store, STREAM)[0].text == text

    def test_a_stale_writer_is_refused_and_nothing_is_written(self, store: Store) -> None:
        fill(store, make_events(2))
        for expected_position in (0, 1, 3):
            with pytest.raises(StalePositionError) as caught:
                append(
                    store,
                    STREAM,
                    [make_event(9)],
                    expected_position=expected_position,
                    now=NOW,
                    salt=counted_salt(),
                )
            assert caught.value.fields == {"expected_position": expected_position, "position": 2}
        assert store.head(STREAM).position == 2

    def test_the_store_itself_refuses_a_stale_writer(self, store: Store) -> None:
        fill(store, make_events(2))
        late = list(chain(STREAM, Head(), [make_event(9)], now=NOW, salt=counted_salt()))
        with pytest.raises(StalePositionError):
            store.append(STREAM, late, expected_position=0)
        assert store.head(STREAM).position == 2

    def test_the_store_itself_refuses_a_taken_event_id_or_position_and_keeps_nothing(self, store: Store) -> None:
        head = fill(store, make_events(2))
        fresh_then_taken = chain(STREAM, head, [make_event(3), make_event(1)], now=NOW, salt=counted_salt())
        twice = chain(STREAM, head, [make_event(3), make_event(3)], now=NOW, salt=counted_salt())
        same_position = chain(STREAM, Head(1), [make_event(4)], now=NOW, salt=counted_salt())
        for entries in (fresh_then_taken, twice, same_position):
            with pytest.raises(StorageError) as caught:
                store.append(STREAM, entries, expected_position=2)
            assert caught.value.fields["cause"] == "refused"
            assert store.head(STREAM) == head
        fill(store, [make_event(3)])
        assert verify_stream(store, STREAM).num_entries == 3

    def test_the_same_event_again_is_left_alone(self, store: Store) -> None:
        head = fill(store, make_events(3))
        assert fill(store, make_events(3)) == head
        grown = fill(store, [make_event(2), make_event(4), make_event(4), make_event(1)])
        assert grown.position == 4
        assert [e.event for e in read(store, STREAM)] == make_events(4)

    def test_an_id_with_other_content_is_refused_with_its_line_and_nothing_is_written(self, store: Store) -> None:
        head = fill(store, make_events(3))
        batch = parsed([make_event(8), make_event(3, "x"), make_event(2, "y"), make_event(9)], [4, 5, 7, 8])
        with pytest.raises(EventError) as caught:
            append_new(store, STREAM, batch, now=NOW, salt=counted_salt())
        assert caught.value.fields == {"line": 5, "event_id": "evt-3", "position": 3}
        assert caught.value.message.startswith("line 5: ")
        assert store.head(STREAM) == head

    def test_an_id_with_two_contents_inside_a_batch_is_refused(self, store: Store) -> None:
        with pytest.raises(EventError) as caught:
            fill(store, [make_event(1), make_event(2), make_event(1, "other")])
        assert (caught.value.fields["line"], caught.value.fields["first_line"]) == (3, 1)
        assert store.streams() == []

    def test_an_event_that_no_file_may_hold_is_refused(self, store: Store) -> None:
        for unfit in (make_event(2, ""), make_event(2, "\ud800"), make_event(2, "x" * (MAX_EVENT_CHARS + 1))):
            with pytest.raises(EventError) as caught:
                fill(store, [make_event(1), unfit])
            assert caught.value.fields["line"] == 2
        assert store.streams() == []

    def test_a_salt_of_another_length_is_refused_and_nothing_is_written(self, store: Store) -> None:
        salts = iter([bytes(32), bytes(31)])
        with pytest.raises(RequestError):
            append(store, STREAM, make_events(2), expected_position=0, now=NOW, salt=lambda: next(salts))
        assert store.head(STREAM) == Head()
        fill(store, make_events(2))

    def test_streams_are_kept_apart_and_listed_in_order(self, store: Store) -> None:
        streams = [Stream("acme", "LN-7"), Stream("acme", "LN-8"), Stream("ACME", "z"), Stream("b", "\U0001f600")]
        for number, stream in enumerate(streams, start=1):
            fill(store, make_events(number), stream)
        assert store.streams() == sorted(streams)
        assert [head.position for head in read_heads(store).values()] == [
            streams.index(stream) + 1 for stream in sorted(streams)
        ]
        assert all(verify_stream(store, stream).holds for stream in streams)

    def test_entries_are_read_by_range(self, store: Store) -> None:
        fill(store, make_events(5))
        assert [e.position for e in store.entries(STREAM, after=1, up_to=4)] == [2, 3, 4]
        assert [e.position for e in read(store, STREAM, up_to=2)] == [1, 2]
        assert read(store, STREAM, up_to=0) == []
        with pytest.raises(NotFoundError):
            read(store, STREAM, up_to=6)

    def test_a_stream_of_many_pages_is_read_whole(self, store: Store) -> None:
        num_events = 2 * PAGE_ROWS + 3
        fill(store, make_events(num_events))
        assert verify_stream(store, STREAM).num_entries == num_events
        fill(store, make_events(num_events))
        assert store.head(STREAM).position == num_events

    def test_a_stream_of_large_payloads_is_read_whole(self, store: Store) -> None:
        num_events = 2 * PAGE_BYTES // MAX_EVENT_CHARS // 3
        events = [make_event(number, "\u20ac" * MAX_EVENT_CHARS) for number in range(num_events)]
        fill(store, events)
        assert [e.event for e in read(store, STREAM)] == events

    def test_a_stream_may_grow_while_it_is_read(self, store: Store) -> None:
        fill(store, make_events(PAGE_ROWS + 10))
        entries = store.entries(STREAM, up_to=PAGE_ROWS + 10)
        assert next(entries).position == 1
        fill(store, make_events(5, first=PAGE_ROWS + 11))
        assert len(list(entries)) == PAGE_ROWS + 9

    def test_events_are_found_by_id(self, store: Store) -> None:
        fill(store, make_events(1200))
        wanted = [f"evt-{number}" for number in range(1, 2000, 2)]
        assert {entry.event_id for entry in store.find_events(STREAM, wanted)} == set(wanted[:600])
        assert list(store.find_events(Stream("other", "LN-7"), wanted)) == []
        assert list(store.find_events(STREAM, [])) == []

    def test_a_record_is_sealed_and_found_by_the_start_of_its_hash(self, store: Store) -> None:
        sealed = {}
        for tenant_id in ("acme", "zenith"):
            for number in range(1, 4):
                entry = append_record(store, tenant_id, make_event(number), now=NOW, salt=counted_salt())
                assert (entry.position, entry.to_event()) == (number, make_event(number))
                sealed[entry.entry_hash] = entry
        assert len(sealed) == 6
        for record_id, entry in sealed.items():
            assert find_record(store, record_id) == entry
            assert find_record(store, record_id[:12].upper()) == entry
            assert find_record(store, record_id[:13], tenant_id=entry.stream.tenant_id) == entry
            with pytest.raises(NotFoundError):
                find_record(store, record_id, tenant_id="other")
        assert verify_stream(store, Stream("acme", AUDIT_CASE_ID)).holds

    def test_a_record_id_that_is_unknown_or_unclear_is_refused(self, store: Store) -> None:
        fill(store, make_events(3))
        case_entry = store.head(STREAM).entry_hash
        for unknown in ("0123456789abcdef", case_entry):
            with pytest.raises(NotFoundError):
                find_record(store, unknown)
        for unclear in ("", "012", "xyz12345", "0" * 65):
            with pytest.raises(RequestError):
                find_record(store, unclear)

    def test_a_prefix_of_several_records_is_refused(self, store: Store) -> None:
        stream = Stream("acme", AUDIT_CASE_ID)
        (entry,) = chain(stream, Head(), [make_event(1)], now=NOW, salt=counted_salt())
        near_hash = entry.entry_hash[:-1] + ("0" if entry.entry_hash[-1] != "0" else "1")
        near = replace(entry, position=2, event_id="evt-2", entry_hash=near_hash)
        store.append(stream, [entry, near], expected_position=0)
        with pytest.raises(RequestError, match="several"):
            find_record(store, entry.entry_hash[:63])
        assert find_record(store, entry.entry_hash) == entry

    def test_a_record_sealed_twice_is_one_entry(self, store: Store) -> None:
        first = append_record(store, "acme", make_event(1), now=NOW, salt=counted_salt())
        assert append_record(store, "acme", make_event(1), now=NOW, salt=counted_salt()) == first
        with pytest.raises(EventError):
            append_record(store, "acme", make_event(1, "other"), now=NOW, salt=counted_salt())

    def test_a_record_may_be_longer_than_an_event(self, store: Store) -> None:
        text = "x" * (MAX_EVENT_CHARS + 1)
        assert append_record(store, "acme", make_event(1, text), now=NOW, salt=counted_salt()).text == text

    def test_no_case_may_take_the_name_of_the_audit_stream(self, store: Store) -> None:
        with pytest.raises(RequestError):
            append_file(store, make_events(1), Stream("acme", AUDIT_CASE_ID))
        assert store.streams() == []

    @pytest.mark.parametrize("name", ["", "a\nb", "a\0b", "\ud800", "x" * 257])
    def test_an_unfit_tenant_or_case_id_is_refused(self, store: Store, name: str) -> None:
        for stream in (Stream(name, "LN-7"), Stream("acme", name)):
            with pytest.raises(RequestError):
                append_file(store, make_events(1), stream)
            assert read(store, stream) == []
        with pytest.raises(RequestError):
            append_record(store, name, make_event(1), now=NOW, salt=counted_salt())

    def test_a_recording_time_that_is_not_rfc_3339_is_refused(self, store: Store) -> None:
        with pytest.raises(RequestError):
            append(store, STREAM, make_events(1), expected_position=0, now="now", salt=counted_salt())

    def test_threads_that_append_at_once_get_each_event_in_once(self, store: Store) -> None:
        files = [make_events(30), make_events(30), make_events(30, first=16), make_events(30, first=31)]
        errors: list[BaseException] = []

        def work(events: list[Event]) -> None:
            try:
                for start in range(0, len(events), 3):
                    append_file(store, events[start : start + 3])
            except BaseException as exc:
                errors.append(exc)
                raise

        threads = [threading.Thread(target=work, args=[events]) for events in files]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert sorted(e.event.event_id for e in read(store, STREAM)) == sorted(e.event_id for e in make_events(60))
        assert verify_stream(store, STREAM).num_entries == 60

    @given(data=st.data())
    def test_any_sequence_of_appends_gives_each_event_once_in_the_order_of_its_first_append(
        self, data: st.DataObject
    ) -> None:
        numbers = st.lists(st.integers(1, 12), max_size=6)
        batches = data.draw(st.lists(st.tuples(st.sampled_from(["LN-7", "LN-8"]), numbers), max_size=8))
        model: dict[str, list[int]] = {"LN-7": [], "LN-8": []}
        fresh = MemoryStore()
        for case_id, batch in batches:
            fill(fresh, [make_event(number) for number in batch], Stream("acme", case_id))
            model[case_id] += [number for number in dict.fromkeys(batch) if number not in model[case_id]]
        for case_id, order in model.items():
            stream = Stream("acme", case_id)
            assert [e.event for e in read(fresh, stream)] == [make_event(number) for number in order]
            verdict = verify(fresh.entries(stream), stream, expected_head=fresh.head(stream))
            assert (verdict.holds, verdict.num_entries) == (True, len(order))


def make_entries(num_events: int = 8) -> list[Entry]:
    return list(chain(STREAM, Head(), make_events(num_events), now=NOW, salt=counted_salt()))


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


@given(INDICES)
def test_a_log_that_has_grown_since_its_head_was_kept_holds(index: int) -> None:
    entries = make_entries()
    kept = entries[index].head
    for expected in (kept, kept.entry_hash, Head()):
        verdict = verify(entries, STREAM, expected_head=expected)
        assert (verdict.holds, verdict.num_entries) == (True, 8)


def test_the_entries_of_another_case_do_not_hold_as_this_one() -> None:
    other = list(chain(Stream("acme", "LN-8"), Head(), make_events(3), now=NOW, salt=counted_salt()))
    assert verify(other, STREAM).first_bad_position == 1
    refiled = [replace(entry, stream=STREAM) for entry in other]
    assert verify(refiled, STREAM).first_bad_position == 1


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
