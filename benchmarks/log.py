"""What the log costs: durable append against bare sqlite3, and verification by size. `python -m benchmarks.log`

Append: batches of 100 events go through `projection.log.append` into one file, and the same rows, hashed beforehand,
through bare sqlite3 with the same durability settings into another, turn by turn in one run; the ratio is bare median
over our median (1 would be free; the target is at least 0.5). The bare table has the same columns and unique keys, and
no triggers.
Verify: logs of growing size, each verified in a process of its own; microseconds per event should not grow, and the
process should stay below 200 MB.

Every output is checked: both files hold the same rows, and every log verifies against the head it was given. Results go
to stdout, progress to stderr. Not a test: nothing fails because a machine is slow.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from projection.canonical import sha256_hex
from projection.entry import Entry, Head, Stream, chain
from projection.events import Event
from projection.log import append, parse_expected_head, verify_stream
from projection.store_sqlite import SqliteStore

NOW = "2026-01-31T09:30:00Z"
STREAM = Stream("bench", "case-1")
BATCH_EVENTS = 100
FILL_EVENTS = 10_000
VERIFY_RUNS = 3
SIZES = (10_000, 100_000)
FULL_SIZES = (10_000, 100_000, 1_000_000)
MIN_APPEND_RATIO = 0.5
MAX_RSS_BYTES = 200_000_000
TEXT = "Verification of employment: base pay $7,250.00 a month since 2019-04-01; overtime not counted. " * 3
BARE_TABLE = (
    "CREATE TABLE entry (entry_id INTEGER PRIMARY KEY, tenant_id TEXT NOT NULL, case_id TEXT NOT NULL,"
    " position INTEGER NOT NULL, event_id TEXT NOT NULL, header BLOB NOT NULL, entry_hash BLOB NOT NULL, salt BLOB,"
    " payload BLOB, UNIQUE (tenant_id, case_id, position), UNIQUE (tenant_id, case_id, event_id)) STRICT"
)
COLUMNS = "tenant_id, case_id, position, event_id, header, entry_hash, salt, payload"
BARE_INSERT = f"INSERT INTO entry ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Medians over batches of 100 events, in milliseconds."""

    num_batches: int
    log_ms: float
    bare_ms: float
    ratio: float
    is_target_met: bool


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """One log verified in a process of its own; wall_s is the median of three runs. is_target_met: memory only."""

    num_events: int
    wall_s: float
    us_per_event: float
    peak_rss_bytes: int
    file_bytes: int
    is_target_met: bool


def measure_append(folder: Path, num_batches: int) -> AppendResult:
    """Append the same batches through the log and through bare sqlite3, alternating which goes first."""
    rows = chain(STREAM, Head(), make_events(1, num_batches * BATCH_EVENTS), now=NOW, salt=counted_salt())
    log_s: list[float] = []
    bare_s: list[float] = []
    log_path, bare_path = folder / "log.sqlite", folder / "bare.sqlite"
    salt = counted_salt()
    with SqliteStore.open(log_path) as store, closing(open_bare(bare_path)) as bare:
        for number in range(num_batches):
            first = number * BATCH_EVENTS + 1
            events = list(make_events(first, BATCH_EVENTS))
            hashed = [bare_row(next(rows)) for _ in events]

            def append_to_log(events: list[Event] = events, position: int = first - 1) -> None:
                append(store, STREAM, events, expected_position=position, now=NOW, salt=salt)

            def append_bare(hashed: list[tuple[object, ...]] = hashed) -> None:
                bare.execute("BEGIN IMMEDIATE")
                bare.executemany(BARE_INSERT, hashed)
                bare.execute("COMMIT")

            turns: list[tuple[list[float], Callable[[], None]]] = [(log_s, append_to_log), (bare_s, append_bare)]
            for seconds, work in turns if number % 2 else reversed(turns):
                seconds.append(timed(work))
            if number % 10 == 9:
                say(f"\rappend: batch {number + 1} of {num_batches}")
    say("\n")
    check_same_rows(log_path, bare_path, num_batches * BATCH_EVENTS)
    log_ms, bare_ms = (statistics.median(seconds) * 1000 for seconds in (log_s, bare_s))
    ratio = bare_ms / log_ms
    return AppendResult(num_batches, round(log_ms, 3), round(bare_ms, 3), round(ratio, 3), ratio >= MIN_APPEND_RATIO)


def open_bare(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in ("PRAGMA journal_mode = DELETE", "PRAGMA synchronous = EXTRA", BARE_TABLE):
        connection.execute(statement)
    return connection


def bare_row(entry: Entry) -> tuple[object, ...]:
    names = (entry.stream.tenant_id, entry.stream.case_id, entry.position, entry.event_id)
    return (*names, entry.header, bytes.fromhex(entry.entry_hash), entry.salt, entry.payload)


def check_same_rows(log_path: Path, bare_path: Path, num_events: int) -> None:
    with closing(sqlite3.connect(log_path)) as log, closing(sqlite3.connect(bare_path)) as bare:
        sql = f"SELECT {COLUMNS} FROM entry ORDER BY position"
        num_same = sum(ours == theirs for ours, theirs in zip(log.execute(sql), bare.execute(sql), strict=True))
    if num_same != num_events:
        raise SystemExit(f"the two files differ: {num_same} of {num_events} rows are the same")


def measure_verify(folder: Path, num_events: int) -> VerifyResult:
    """Fill a log and verify it in another process."""
    path = folder / f"verify-{num_events}.sqlite"
    head = fill(path, num_events)
    command = [sys.executable, "-m", "benchmarks.log", "--verify-one", str(path), str(head)]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    if not found["holds"] or found["num_entries"] != num_events:
        raise SystemExit(f"the log of {num_events} events does not verify: {found}")
    wall_s, rss_bytes, file_bytes = found["wall_s"], found["peak_rss_bytes"], path.stat().st_size
    path.unlink()
    us_per_event = round(wall_s / num_events * 1e6, 2)
    return VerifyResult(num_events, round(wall_s, 3), us_per_event, rss_bytes, file_bytes, rss_bytes < MAX_RSS_BYTES)


def fill(path: Path, num_events: int) -> Head:
    head, salt = Head(), counted_salt()
    with SqliteStore.open(path) as store:
        for first in range(1, num_events + 1, FILL_EVENTS):
            events = list(make_events(first, min(FILL_EVENTS, num_events + 1 - first)))
            head = append(store, STREAM, events, expected_position=head.position, now=NOW, salt=salt)
            say(f"\rverify: {head.position} of {num_events} events appended ")
    say("\n")
    return head


def verify_one(path: str, expected_head: str) -> None:
    """What the process of its own does: verify one stream some times, and print verdict, median time and memory."""
    head = parse_expected_head(expected_head)
    verdicts, seconds = [], []
    with SqliteStore.open_read_only(path) as store:
        for number in range(1, VERIFY_RUNS + 1):
            say(f"\rverify: run {number} of {VERIFY_RUNS}, {str(head)[:24]}")
            start = time.perf_counter()
            verdicts.append(verify_stream(store, STREAM, expected_head=head))
            seconds.append(time.perf_counter() - start)
    say("\n")
    found = {
        "holds": all(verdict.holds for verdict in verdicts),
        "num_entries": verdicts[0].num_entries,
        "reason": verdicts[0].reason,
        "wall_s": statistics.median(seconds),
        "peak_rss_bytes": peak_rss_bytes(),
    }
    print(json.dumps(found))


def peak_rss_bytes() -> int:
    """Of this process alone: getrusage would count what its parent held before exec."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("/proc/self/status has no VmHWM: run this on Linux")


def make_events(first: int, num_events: int) -> Iterator[Event]:
    for number in range(first, first + num_events):
        yield Event(f"evt-{number:08d}", "loan.note", "urn:los", NOW, f"{number}: {TEXT}")


def counted_salt() -> Callable[[], bytes]:
    """Salts that repeat from run to run, at about the price of real ones."""
    numbers = iter(range(2**62))
    return lambda: bytes.fromhex(sha256_hex(next(numbers).to_bytes(8, "big")))


def timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def print_report(appended: AppendResult, verified: list[VerifyResult]) -> None:
    met = {True: "met", False: "missed"}
    print(f"durable append, batches of {BATCH_EVENTS}, median of {appended.num_batches}, turn by turn:")
    print(
        f"  log {appended.log_ms:.2f} ms, bare sqlite3 {appended.bare_ms:.2f} ms, ratio bare/log {appended.ratio:.2f}"
    )
    print(f"  target ratio >= {MIN_APPEND_RATIO}: {met[appended.is_target_met]}")
    print(f"verify, a process each, median of {VERIFY_RUNS}:")
    for row in verified:
        size = f"{row.num_events:>9} events ({row.file_bytes / 1e6:.0f} MB)"
        memory = f"peak {row.peak_rss_bytes / 1e6:.0f} MB"
        print(f"  {size}: {row.wall_s:.2f} s, {row.us_per_event:.1f} us per event, {memory}")
    print(f"  us per event, last size over first (linear is 1): {growth(verified):.2f}")
    print(f"  target memory < {MAX_RSS_BYTES / 1e6:.0f} MB: {met[all(row.is_target_met for row in verified)]}")


def growth(verified: list[VerifyResult]) -> float:
    return round(verified[-1].us_per_event / verified[0].us_per_event, 3)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.log", description="What the log costs, in ratios.")
    parser.add_argument("--full", action="store_true", help="verify up to 1,000,000 events (about 1 GB of disk)")
    parser.add_argument("--batches", type=int, default=200, help="batches of 100 to append (default 200)")
    parser.add_argument("--dir", help="folder on the disk to measure (default: the system's for temporary files)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--verify-one", nargs=2, metavar=("LOG", "HEAD"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.verify_one:
        verify_one(*options.verify_one)
        return
    with tempfile.TemporaryDirectory(prefix="dpm-bench-", dir=options.dir) as name:
        appended = measure_append(Path(name), options.batches)
        verified = [measure_verify(Path(name), size) for size in (FULL_SIZES if options.full else SIZES)]
    if not options.json:
        print_report(appended, verified)
        return
    machine = {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "machine": platform.machine(),
        "num_cpus": os.cpu_count(),
    }
    rows = [asdict(row) for row in verified]
    print(json.dumps({"machine": machine, "append": asdict(appended), "verify": rows, "growth": growth(verified)}))


if __name__ == "__main__":
    main()
