"""What the durability tests run in a process of its own: `python -m tests.projection.log_process MODE DB [ARGUMENT]`.

Every mode says what it did on stdout, a line at a time, and what an error was as `cause NAME`.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from projection.entry import Entry, Stream, chain
from projection.errors import StorageError
from projection.events import Event
from projection.ingest import ParsedEvents, parse_events
from projection.log import append_new, verify_stream
from projection.store_sqlite import SqliteStore
from tests.projection.trajectories import NOW, STREAM, counted_salt, fill, make_event, make_events

BATCH = 20
NOBODY = 65534
LARGE_TEXT = "x" * 100_000  # a batch of these is larger than SQLite's cache, and reaches the file before the commit


def say(*words: object) -> None:
    print(*words, flush=True)


def append_files(store: SqliteStore, argument: str) -> None:
    """Append each file's events, three at a time, once the parent says go."""
    files = [parse_events(Path(name).read_bytes(), source_name=name) for name in argument.split(",")]
    say("ready")
    sys.stdin.readline()
    for parsed in files:
        for start in range(0, len(parsed.events), 3):
            part = ParsedEvents(parsed.events[start : start + 3], parsed.lines[start : start + 3], None)
            say("acknowledged", append_new(store, STREAM, part, now=NOW, salt=counted_salt()).position)


def append_for_ever(store: SqliteStore, argument: str) -> None:
    """Append batches until somebody kills this process."""
    first = 1
    while True:
        say("acknowledged", fill(store, make_events(BATCH, first)).position)
        first += BATCH


def kill_in_append(store: SqliteStore, argument: str) -> None:
    """Die inside the transaction, after every row of the batch was handed to SQLite."""
    head = store.head(STREAM)
    events = [large_event(number) for number in range(head.position + 1, head.position + 1 + BATCH * 4)]

    def entries() -> Iterator[Entry]:
        yield from chain(STREAM, head, events, now=NOW, salt=counted_salt())
        os.kill(os.getpid(), signal.SIGKILL)

    store.append(STREAM, entries(), expected_position=head.position)


def append_large(store: SqliteStore, argument: str) -> None:
    """Append batches until the disk is full."""
    first = store.head(STREAM).position + 1
    while True:
        say("acknowledged", fill(store, [large_event(number) for number in range(first, first + BATCH)]).position)
        first += BATCH


def append_limited(store: SqliteStore, argument: str) -> None:
    """Append batches until a file of this process would be larger than the argument says."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(argument), int(argument)))
    append_large(store, argument)


def append_one(store: SqliteStore, argument: str) -> None:
    parsed = ParsedEvents((make_event(1_000_000),), (1,), None)
    say("acknowledged", append_new(store, STREAM, parsed, now=NOW, salt=counted_salt()).position)


def large_event(number: int) -> Event:
    return make_event(number, LARGE_TEXT)


def verify_unprivileged(path: str) -> None:
    """Verify a file, and try to append to it, as a user who may only read it."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    with SqliteStore.open_read_only(path) as store:
        verdict = verify_stream(store, Stream("acme", "LN-7"))
        say("verified", verdict.holds, verdict.num_entries, store.find_file_problem())
    with SqliteStore.open(path) as store:
        append_one(store, "")


MODES = {
    mode.__name__: mode
    for mode in (append_files, append_for_ever, kill_in_append, append_large, append_limited, append_one)
}


def main(mode: str, path: str, argument: str = "") -> None:
    try:
        if mode == "verify_unprivileged":
            verify_unprivileged(path)
        else:
            with SqliteStore.open(path) as store:
                MODES[mode](store, argument)
    except StorageError as exc:
        say("cause", exc.fields["cause"])


if __name__ == "__main__":
    main(*sys.argv[1:])
