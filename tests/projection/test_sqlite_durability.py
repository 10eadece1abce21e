"""The log file against dying processes and full disks: every acknowledged batch is there, and no half one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from projection.log import verify_stream
from projection.store_sqlite import SqliteStore
from tests.projection.log_process import BATCH
from tests.projection.sqlite_log import NUM_EVENTS, ROOT, command, entries_of, run, start, verdict_on
from tests.projection.trajectories import STREAM, fill, make_event

# Killed processes


@pytest.mark.parametrize("num_acknowledged", [1, 2, 7, 25])
def test_every_acknowledged_event_is_there_after_kill_9_and_no_half_batch(path: Path, num_acknowledged: int) -> None:
    with start("append_for_ever", path) as process:
        assert process.stdout is not None
        said = [process.stdout.readline().split() for _ in range(num_acknowledged)]
        process.kill()
    assert said[-1] == ["acknowledged", str(num_acknowledged * BATCH)]
    verdict = verdict_on(path)
    assert verdict.holds
    assert verdict.num_entries >= num_acknowledged * BATCH
    assert verdict.num_entries % BATCH == 0
    with SqliteStore.open(path) as store:
        fill(store, [make_event(1_000_000)])
        assert verify_stream(store, STREAM).holds
        assert store.find_file_problem() is None


def test_a_batch_that_kill_9_cut_off_inside_the_transaction_is_rolled_back(filled: Path) -> None:
    before = entries_of(filled)
    returncode, said = run("kill_in_append", filled)
    assert (returncode, said) == (-9, [])
    assert Path(f"{filled}-journal").stat().st_size > 0
    assert filled.stat().st_size > 1_000_000, (
        "part of the batch must have reached the file for this test to mean anything"
    )
    assert entries_of(filled) == before
    assert not Path(f"{filled}-journal").exists()
    assert verdict_on(filled).holds


def test_the_next_append_after_a_cut_off_one_goes_on_where_the_log_ended(filled: Path) -> None:
    run("kill_in_append", filled)
    with SqliteStore.open(filled) as store:
        assert fill(store, [make_event(NUM_EVENTS + 1)]).position == NUM_EVENTS + 1
        assert verify_stream(store, STREAM).holds


def test_appends_are_synchronised_to_the_disk(filled: Path) -> None:
    with SqliteStore.open(filled) as store:
        extra = 3
        assert store._connection.execute("PRAGMA synchronous").fetchone() == (extra,)


# Full disks


def check_after_full_disk(path: Path, said: list[list[str]], cause: str) -> None:
    assert said[-1] == ["cause", cause]
    acknowledged = [int(words[1]) for words in said[:-1]]
    assert acknowledged, "at least one batch fits"
    assert verdict_on(path).num_entries == acknowledged[-1]
    assert verdict_on(path).holds


def test_a_file_that_may_not_grow_keeps_every_acknowledged_batch_and_no_half_one(path: Path) -> None:
    """A real failed write (RLIMIT_FSIZE), which works for every user on every file system."""
    returncode, said = run("append_limited", path, str(9_000_000))
    assert returncode == 0
    check_after_full_disk(path, said, "io")
    with SqliteStore.open(path) as store:
        fill(store, [make_event(1_000_000)])
        assert verify_stream(store, STREAM).holds


def test_a_full_disk_keeps_every_acknowledged_batch_and_no_half_one(tmp_path: Path) -> None:
    """A real full file system: nine megabytes of memory, mounted in a name space of the test's own."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare on this machine")
    disk, kept = tmp_path / "disk", tmp_path / "kept.sqlite"
    disk.mkdir()
    log = disk / "log.sqlite"
    mount = 'mount -t tmpfs -o size=9m tmpfs "$1" && echo mounted'
    script = f'{mount} && shift && kept=$1 && shift && "$@" && cp "$0" "$kept"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, str(log), str(disk), str(kept), *command("append_large", log)],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    )
    if not done.stdout.startswith("mounted"):
        pytest.skip("this user may not mount a file system")
    assert done.returncode == 0, done.stderr
    check_after_full_disk(kept, [line.split() for line in done.stdout.splitlines()[1:]], "disk_full")
