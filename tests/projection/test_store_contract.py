"""What every store of logs promises: each test runs on the one in memory and on the one in a file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projection.entry import ZERO_HASH, Head, Stream, chain
from projection.errors import EventError, NotFoundError, RequestError, StalePositionError, StorageError
from projection.events import AUDIT_CASE_ID, MAX_EVENT_CHARS, Event
from projection.ingest import ParsedEvents
from projection.log import (
    Store,
    append,
    append_new,
    append_record,
    find_record,
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
