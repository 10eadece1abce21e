"""The results folder: what a kill, a second writer, a full disk and a foreign file do to it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projection.errors import NotFoundError, StorageError
from reporting.journal import FILE_NAME, Journal, JournalError, read_journal

ROOT = Path(__file__).parents[2]
PARAMETERS = {"engine_identity": "ab" * 32, "num_replays": 3}


def open_journal(folder: Path, parameters: Mapping[str, Any] = PARAMETERS, version: int = 1) -> Journal:
    return Journal.open(folder, schema="test-run", version=version, parameters=parameters)


def read(folder: Path) -> Mapping[str, Any]:
    return read_journal(folder, schema="test-run", version=1).rows


def test_a_run_goes_on_where_it_was_left(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    with open_journal(folder) as journal:
        assert not journal.is_done("a")
        journal.append("a", {"value": 0.1})
        assert journal.is_done("a")
    with open_journal(folder) as journal:
        assert journal.is_done("a")
        assert not journal.is_done("b")
        journal.append("b", {"value": None})
        assert journal.rows == {"a": {"value": 0.1}, "b": {"value": None}}
    assert read_journal(folder, schema="test-run", version=1).parameters == PARAMETERS
    assert list(read(folder)) == ["a", "b"]


def test_rows_can_be_read_while_they_are_written(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        assert read(tmp_path) == {}
        journal.append("a", {})
        assert read(tmp_path) == {"a": {}}
        with pytest.raises(JournalError):  # reading in the same process has not given the lock back
            open_journal(tmp_path)


def test_a_second_writer_is_told_what_to_do_and_changes_nothing(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.append("a", {})
        program = (
            "import sys; from reporting.journal import Journal, JournalError\n"
            f"try: Journal.open(sys.argv[1], schema='test-run', version=1, parameters={PARAMETERS!r})\n"
            "except JournalError as error: print(error.fields['cause'], error.message)"
        )
        command = [sys.executable, "-c", program, str(tmp_path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("in_use another run is writing to")
        assert "choose another folder" in done.stdout
        journal.append("b", {})
    assert list(read(tmp_path)) == ["a", "b"]


def test_a_killed_writer_leaves_whole_rows_and_no_lock(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from reporting.journal import Journal\n"
        f"journal = Journal.open(sys.argv[1], schema='test-run', version=1, parameters={PARAMETERS!r})\n"
        "journal.append('a', {'text': 'whole'})\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    with open_journal(tmp_path) as journal:
        assert journal.rows == {"a": {"text": "whole"}}


@settings(deadline=None)  # every row waits for the disk
@given(cut=st.integers(min_value=0, max_value=10_000))
def test_a_file_cut_off_anywhere_keeps_its_whole_rows(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("cut")
    with open_journal(folder) as journal:
        for number in range(5):
            journal.append(f"row {number}", {"number": number, "text": "\u2028 \n é 😀 \ud800"})
    whole = (folder / FILE_NAME).read_bytes()
    cut %= len(whole) + 1
    (folder / FILE_NAME).write_bytes(whole[:cut])
    num_rows = max(0, whole[:cut].count(b"\n") - 1)
    with open_journal(folder) as journal:
        assert list(journal.rows) == [f"row {number}" for number in range(num_rows)]
        for number in range(num_rows, 5):
            journal.append(f"row {number}", {"number": number, "text": "\u2028 \n é 😀 \ud800"})
    assert (folder / FILE_NAME).read_bytes() == whole


def test_a_torn_last_line_is_dropped_by_the_writer_and_skipped_by_the_reader(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.append("a", {})
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(b'{"key": "b", "row": {"te')
    assert list(read(tmp_path)) == ["a"]
    with open_journal(tmp_path) as journal:
        journal.append("c", {})
    assert list(read(tmp_path)) == ["a", "c"]


@pytest.mark.parametrize("damage", [b"{}\n", b"not json\n", b"\xff\n", b"[" * 100_000 + b"\n", b"\n"])
def test_a_damaged_row_is_named_by_its_line(tmp_path: Path, damage: bytes) -> None:
    with open_journal(tmp_path) as journal:
        journal.append("a", {})
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(damage)
    with pytest.raises(JournalError, match="line 3") as caught:
        open_journal(tmp_path)
    assert caught.value.fields["cause"] == "damaged"


def test_a_row_that_stands_there_twice_is_damage(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.append("a", {})
    lines = (tmp_path / FILE_NAME).read_bytes().splitlines(keepends=True)
    (tmp_path / FILE_NAME).write_bytes(b"".join([*lines, lines[1]]))
    with pytest.raises(JournalError, match="line 3"):
        read(tmp_path)


def test_a_key_is_written_once(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.append("a", {"value": 1})
        with pytest.raises(JournalError) as caught:
            journal.append("a", {"value": 2})
        assert caught.value.fields["cause"] == "duplicate_key"
    assert read(tmp_path) == {"a": {"value": 1}}


@pytest.mark.parametrize("row", [{"value": float("nan")}, {"value": {1, 2}}, {"value": b"bytes"}])
def test_a_row_that_is_no_json_is_refused_and_nothing_is_written(tmp_path: Path, row: dict[str, Any]) -> None:
    with open_journal(tmp_path) as journal:
        with pytest.raises(JournalError) as caught:
            journal.append("a", row)
        assert caught.value.fields["cause"] == "not_json"
        assert not journal.is_done("a")
    assert read(tmp_path) == {}


def test_other_parameters_are_named_with_both_values(tmp_path: Path) -> None:
    with open_journal(tmp_path):
        pass
    with pytest.raises(JournalError, match="num_replays was 3 and is 10") as caught:
        open_journal(tmp_path, PARAMETERS | {"num_replays": 10, "added": True})
    assert caught.value.fields["parameters"] == ["added", "num_replays"]
    assert caught.value.fields["cause"] == "other_parameters"


def test_parameters_are_compared_as_json(tmp_path: Path) -> None:
    with open_journal(tmp_path, {"sizes": (1, 2)}):
        pass
    with open_journal(tmp_path, {"sizes": [1, 2]}) as journal:
        assert journal.parameters == {"sizes": [1, 2]}


def test_another_version_is_refused_by_writer_and_reader(tmp_path: Path) -> None:
    with open_journal(tmp_path, version=2):
        pass
    with pytest.raises(JournalError, match="test-run version 2, and this program reads test-run version 1") as caught:
        open_journal(tmp_path)
    assert caught.value.fields["cause"] == "other_schema"
    with pytest.raises(JournalError, match="test-run version 2"):
        read(tmp_path)


@pytest.mark.parametrize(
    "content", [b"my diary", b"my diary\nof today\n", b"my diary\nof today", b'{"key": "a", "row": {}}\n']
)
def test_a_foreign_file_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(JournalError) as caught:
        open_journal(tmp_path)
    assert caught.value.fields["cause"] == "not_a_journal"
    assert (tmp_path / FILE_NAME).read_bytes() == content


@pytest.mark.parametrize("damage", [b'"a"\n', b""])
def test_a_run_that_is_refused_keeps_its_unfinished_last_line(tmp_path: Path, damage: bytes) -> None:
    with open_journal(tmp_path, version=1 if damage else 2):
        pass
    content = (tmp_path / FILE_NAME).read_bytes() + damage + b'{"key": "a", "ro'
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(JournalError):
        open_journal(tmp_path)
    with pytest.raises(JournalError):
        open_journal(tmp_path, {"num_replays": 10})
    assert (tmp_path / FILE_NAME).read_bytes() == content


def test_a_refused_folder_is_not_kept_locked(tmp_path: Path) -> None:
    with open_journal(tmp_path):
        pass
    with pytest.raises(JournalError):
        open_journal(tmp_path, {})
    with open_journal(tmp_path):
        pass


def test_missing_results_and_a_folder_that_is_a_file_are_typed_errors(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no results"):
        read(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be used"):
        open_journal(tmp_path / "file")


def test_a_full_disk_leaves_the_rows_as_they_were(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open_journal(tmp_path) as journal:
        journal.append("a", {})
        size = os.path.getsize(tmp_path / FILE_NAME)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
        try:
            with pytest.raises(StorageError, match="File too large"):
                journal.append("b", {"text": "x" * 100})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
        assert os.path.getsize(tmp_path / FILE_NAME) == size
        assert not journal.is_done("b")
        journal.append("b", {})
    assert list(read(tmp_path)) == ["a", "b"]
