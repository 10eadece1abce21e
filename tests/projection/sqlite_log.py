"""A log file for the tests of the SQLite store: written, looked at, and used by processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from projection.entry import Entry, Head
from projection.log import LogVerdict, verify_stream
from projection.store_sqlite import SqliteStore
from tests.projection.trajectories import STREAM, fill, make_events

ROOT = Path(__file__).resolve().parents[2]
NUM_EVENTS = 40


def write_log(path: Path) -> Path:
    """A log of forty events."""
    with SqliteStore.open(path) as store:
        fill(store, make_events(NUM_EVENTS))
    return path


def verdict_on(path: Path, expected_head: Head | str | None = None) -> LogVerdict:
    with SqliteStore.open_read_only(path) as store:
        return verify_stream(store, STREAM, expected_head=expected_head)


def entries_of(path: Path) -> list[Entry]:
    with SqliteStore.open_read_only(path) as store:
        return list(store.entries(STREAM))


def command(mode: str, path: Path, argument: str = "") -> list[str]:
    return [sys.executable, "-m", "tests.projection.log_process", mode, str(path), argument]


def start(mode: str, path: Path, argument: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(mode, path, argument), cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def run(mode: str, path: Path, argument: str = "") -> tuple[int, list[list[str]]]:
    """Exit status, and the words of each line it said."""
    done = subprocess.run(command(mode, path, argument), cwd=ROOT, text=True, stdout=subprocess.PIPE, check=False)
    return done.returncode, [line.split() for line in done.stdout.splitlines()]
