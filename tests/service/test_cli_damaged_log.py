"""Damaged logs, full disks and two writers, from the command line: found, said by exit code, and nothing lost."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.projection.sqlite_edits import EDITS, edit
from tests.projection.trajectories import make_events
from tests.service.conftest import DECIDE, ROOT, Dpm, log_state, write_events


@pytest.mark.parametrize("statements", EDITS.values(), ids=EDITS.keys())
def test_an_edited_file_does_not_hold_and_no_level_passes_on_it(
    dpm: Dpm, decided: Path, record_id: str, statements: list[str]
) -> None:
    edit(decided, *[f"{statement} AND case_id = 'LN-7'" if " WHERE " in statement else statement
                    for statement in statements])  # fmt: skip
    verified = dpm("log", "verify", "--tenant", "acme", "--case", "LN-7", "--json")
    assert (verified.code, verified.document["verdict"]) == (1, "DRIFT")
    assert verified.document["first_bad_position"] == 5
    replayed = dpm("replay", record_id, "--json")
    assert (replayed.code, replayed.document["verdict"]) == (1, "DRIFT")
    assert replayed.document["levels"] == {"R0": "DRIFT", "R1": None, "R2": None, "R3": None}
    assert replayed.document["first_divergence"]["index"] == 5
    assert replayed.document["first_divergence"]["what"] == "case stream chain"


def test_a_truncated_log_is_found_against_a_kept_head(dpm: Dpm, decided: Path, record_id: str) -> None:
    kept = dpm("log", "head", "--case", "LN-7", "--json").document["head"]
    edit(decided, "DELETE FROM entry WHERE case_id = 'LN-7' AND position > 10")
    for head in (kept, kept.upper(), f"12:{kept}"):
        verified = dpm("log", "verify", "--case", "LN-7", "--expected-head", head, "--json")
        assert (verified.code, verified.document["first_bad_position"]) == (1, 11)
    assert dpm("replay", record_id, "--level", "R0", "--json").document["first_divergence"]["index"] == 11


def test_a_flipped_byte_of_the_record_is_found(dpm: Dpm, decided: Path, record_id: str) -> None:
    edit(decided, "UPDATE entry SET payload = CAST(replace(CAST(payload AS TEXT), 'acme', 'acne') AS BLOB)"
                  " WHERE case_id = 'audit'")  # fmt: skip
    replayed = dpm("replay", record_id, "--json")
    assert (replayed.code, replayed.document["first_divergence"]["what"]) == (1, "audit stream chain")
    assert dpm("log", "verify", "--case", "audit", "--json").document["first_bad_position"] == 1


def test_a_damaged_page_is_drift_and_not_a_crash(dpm: Dpm, decided: Path, record_id: str) -> None:
    data = bytearray(decided.read_bytes())
    data[5000 : len(data) - 5000 : 97] = b"\x7f" * len(range(5000, len(data) - 5000, 97))
    decided.write_bytes(data)
    verified = dpm("log", "verify", "--json")
    assert verified.code == 1
    assert dpm("replay", record_id, "--level", "R0", "--json").code != 0


@pytest.mark.parametrize("content", [b"not a database", b"SQLite format 3\x00" + bytes(100)])
def test_a_file_that_is_no_log_is_exit_4_when_used_and_exit_1_when_verified(
    dpm: Dpm, case: Path, content: bytes
) -> None:
    (case / "dpm.sqlite").write_bytes(content)
    used = dpm("log", "append", "events.jsonl", "--json")
    assert (used.code, used.error["type"]) == (4, "StorageError")
    verified = dpm("log", "verify", "--json")
    assert (verified.code, verified.error["type"]) == (1, "VerificationError")
    assert (case / "dpm.sqlite").read_bytes() == content


@pytest.mark.parametrize("db", ["missing/dpm.sqlite", ".", "/proc/dpm.sqlite"])
def test_a_log_that_cannot_be_written_is_exit_4(dpm: Dpm, case: Path, db: str) -> None:
    result = dpm(*DECIDE, "--db", db)
    assert (result.code, result.error["type"]) == (4, "StorageError")


def test_a_full_disk_is_exit_4_and_keeps_what_was_there(dpm: Dpm, decided: Path, record_id: str) -> None:
    before = log_state(decided)
    write_events(decided.parent / "large.jsonl", make_events(4000, first=100))
    limit = decided.stat().st_size + 100_000
    command = [sys.executable, "-m", "service.cli", "log", "append", str(decided.parent / "large.jsonl"), "--tenant",
               "acme", "--db", str(decided), "--json"]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    assert json.loads(done.stdout)["error"]["type"] == "StorageError"
    assert log_state(decided) == before
    assert dpm("replay", record_id, "--json").document["verdict"] == "PASS"


def test_two_processes_that_append_at_once_get_each_event_in_once(dpm: Dpm, tmp_path: Path) -> None:
    events = make_events(600)
    parts = [write_events(tmp_path / "one.jsonl", events[:400]), write_events(tmp_path / "two.jsonl", events[200:])]
    command = [sys.executable, "-m", "service.cli", "log", "append"]
    db = tmp_path / "dpm.sqlite"
    processes = [
        subprocess.Popen([*command, str(part), "--db", str(db)], cwd=ROOT, stdout=subprocess.DEVNULL) for part in parts
    ]
    assert [process.wait() for process in processes] == [0, 0]
    verified = dpm("log", "verify", "--json").document
    assert (verified["verdict"], verified["num_entries"]) == ("PASS", 600)
    shown = dpm("log", "show", "--json").document["events"]
    assert sorted(event["event_id"] for event in shown) == sorted(event.event_id for event in events)
