"""The folder of goldens: only an approval changes it, each is recorded, and a kill leaves nothing half."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from determinism.gate.cases import read_cases
from determinism.gate.golden import Golden, GoldenKey
from determinism.gate.run import observe
from determinism.gate.store import approve, golden_path, read_approvals, read_goldens
from inference.scripted_engine import ScriptedEngine
from projection.errors import NotFoundError, RequestError, StorageError
from tests.determinism.gate.folder import PROFILE, AlteredEngine, approve_all, run, write_cases
from tests.projection.trajectories import NOW

ROOT = Path(__file__).parents[3]


@pytest.fixture
def goldens(tmp_path: Path) -> Path:
    return write_cases(tmp_path)


def observed(goldens: Path, engine: ScriptedEngine | None = None) -> list[Golden]:
    return [observe(engine or ScriptedEngine(), case, PROFILE) for case in read_cases(goldens)]


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_an_approval_writes_goldens_and_records_them(goldens: Path) -> None:
    approvals = approve_all(goldens, reason=" looked at by two people ")
    assert read_approvals(goldens) == approvals
    assert [(entry.case, entry.old_digest, entry.reason, entry.by, entry.at) for entry in approvals] == [
        ("small", None, "looked at by two people", "ann", NOW),
        ("tight", None, "looked at by two people", "ann", NOW),
    ]
    approved = read_goldens(goldens).approved
    assert {key: golden.digest for key, golden in approved.items()} == {e.key: e.new_digest for e in approvals}


def test_a_change_is_recorded_with_both_digests_and_earlier_lines_stay_byte_for_byte(goldens: Path) -> None:
    first = approve_all(goldens)
    log = (goldens / "approvals.jsonl").read_bytes()
    changed = AlteredEngine(margins=lambda old: (1.0, *old[1:]))
    second = approve_all(goldens, changed, reason="the new weights were reviewed")
    assert [entry.old_digest for entry in second] == [entry.new_digest for entry in first]
    assert (goldens / "approvals.jsonl").read_bytes().startswith(log)
    assert [finding.verdict for finding in run(goldens, changed).values()] == ["PASS", "PASS"]
    assert [finding.verdict for finding in run(goldens).values()] == ["DRIFT", "DRIFT"]


def test_what_is_approved_already_is_neither_written_nor_recorded(goldens: Path) -> None:
    approve_all(goldens)
    before = tree(goldens)
    assert approve_all(goldens, reason="again") == ()
    assert tree(goldens) == before


@pytest.mark.parametrize(("reason", "by"), [("", "ann"), (" \n", "ann"), ("ok", ""), ("ok", "  "), ("x" * 2001, "ann")])
def test_an_approval_that_says_nothing_is_refused_and_writes_nothing(goldens: Path, reason: str, by: str) -> None:
    before = tree(goldens)
    with pytest.raises(RequestError, match="an approval needs a"):
        approve(goldens, observed(goldens), reason=reason, by=by, now=NOW)
    assert tree(goldens) == before


def test_one_case_with_two_answers_is_refused(goldens: Path) -> None:
    other = AlteredEngine(margins=lambda old: (1.0, *old[1:]))
    with pytest.raises(RequestError, match="different answers"):
        approve(goldens, [*observed(goldens), *observed(goldens, other)], reason="r", by="ann", now=NOW)
    assert read_approvals(goldens) == ()


def test_a_golden_can_be_removed_and_that_is_recorded(goldens: Path) -> None:
    small, tight = (entry.key for entry in approve_all(goldens))
    (entry,) = approve(goldens, [], reason="case withdrawn", by="ann", now=NOW, remove=[tight])
    assert (entry.key, entry.new_digest) == (tight, None)
    assert list(read_goldens(goldens).approved) == [small]
    assert read_goldens(goldens).faults == {}
    assert run(goldens)["tight"].verdict == "MISSING"


def test_a_golden_written_past_the_approvals_is_a_fault(goldens: Path) -> None:
    """A whole golden with digests that fit, put there by hand."""
    approve_all(goldens)
    forged = observed(goldens, AlteredEngine(margins=lambda old: (1.0, *old[1:])))[0]
    golden_path(goldens, forged.key).write_bytes(forged.to_bytes())
    faults = read_goldens(goldens).faults
    assert list(faults) == [forged.key]
    assert "changed by hand" in faults[forged.key]


def test_a_golden_that_nobody_approved_is_a_fault(goldens: Path) -> None:
    golden = observed(goldens)[0]
    (goldens / "small").mkdir()
    golden_path(goldens, golden.key).write_bytes(golden.to_bytes())
    assert "nobody approved it" in read_goldens(goldens).faults[golden.key]


def put_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def put_dangling(path: Path) -> None:
    path.symlink_to("nowhere")


NO_FILES = [os.mkfifo, put_endless, put_dangling, Path.mkdir]


@pytest.mark.parametrize("put", NO_FILES)
def test_what_is_no_file_in_a_goldens_place_is_the_fault_of_its_case_alone(
    goldens: Path, put: Callable[[Path], None]
) -> None:
    small, tight = (entry.key for entry in approve_all(goldens))
    path = golden_path(goldens, small)
    path.unlink()
    put(path)
    found = read_goldens(goldens)
    assert (list(found.approved), found.faults) == (
        [tight],
        {small: f"{path}: it is no file: put the approved golden back"},
    )


@pytest.mark.parametrize("put", NO_FILES)
def test_an_approvals_log_that_is_no_file_is_refused(goldens: Path, put: Callable[[Path], None]) -> None:
    put(goldens / "approvals.jsonl")
    with pytest.raises(StorageError, match=r"approvals\.jsonl is no file"):
        read_goldens(goldens)


@pytest.mark.parametrize(("reason", "by"), [("\udcff", "ann"), ("ok", "\udcff")])
def test_an_approval_that_is_no_text_is_refused(goldens: Path, reason: str, by: str) -> None:
    with pytest.raises(RequestError, match="is not UTF-8"):
        approve(goldens, [], reason=reason, by=by, now=NOW)


def test_other_files_in_the_folder_are_left_alone(goldens: Path) -> None:
    (goldens / "mine").mkdir()
    (goldens / "mine" / "task.json").write_text("{}")
    assert read_goldens(goldens).case_names == []


@pytest.mark.parametrize("line", [b"", b"{}", b"<<<<<<< HEAD", b"\xff", b'{"v":1,"case":"small"}'])
def test_a_damaged_approvals_log_is_refused_with_its_line(goldens: Path, line: bytes) -> None:
    approve_all(goldens)
    path = goldens / "approvals.jsonl"
    first, second = path.read_bytes().splitlines()
    path.write_bytes(first + b"\n" + line + b"\n" + second + b"\n")
    with pytest.raises(StorageError, match="line 2: no approval") as refused:
        read_goldens(goldens)
    assert refused.value.fields["line"] == 2
    with pytest.raises(StorageError):
        approve_all(goldens, AlteredEngine({"a": 1}))


@pytest.mark.parametrize("name", ["../enrolments", "small/..", ".", "", "a\x1b[31m", "small\n", "x" * 101])
def test_an_approval_of_a_case_that_there_cannot_be_is_a_damaged_line(goldens: Path, name: str) -> None:
    small, _ = approve_all(goldens)
    path = goldens / "approvals.jsonl"
    forged = json.dumps(small.model_dump(mode="json") | {"case": name}).encode()
    path.write_bytes(path.read_bytes() + forged + b"\n")
    with pytest.raises(StorageError, match="line 3: no approval"):
        read_goldens(goldens)


@pytest.mark.parametrize("name", ["small (copy)", "a\x1b[31m", "a\n::error::b", ".small"])
def test_a_golden_in_a_folder_that_no_case_can_be_called_is_refused(goldens: Path, name: str) -> None:
    approve_all(goldens)
    (goldens / "small").rename(goldens / name)
    with pytest.raises(StorageError, match="no case can be called") as refused:
        read_goldens(goldens)
    assert refused.value.message.isprintable()


def test_a_log_without_its_last_line_end_is_continued_on_a_new_line(goldens: Path) -> None:
    approve_all(goldens)
    path = goldens / "approvals.jsonl"
    path.write_bytes(path.read_bytes().rstrip())
    approve_all(goldens, AlteredEngine({"a": 1}))
    assert len(read_approvals(goldens)) == 4


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such folder"):
        read_goldens(tmp_path / "none")


def test_a_folder_that_cannot_be_written_is_a_storage_error(goldens: Path) -> None:
    answers = observed(goldens)
    (goldens / "small").write_text("a file where a folder should be")
    with pytest.raises(StorageError):
        approve(goldens, answers, reason="r", by="ann", now=NOW)


KILLED_AT = """
import os, signal, sys
from pathlib import Path
from tests.determinism.gate.folder import AlteredEngine, approve_all

replace, left = os.replace, int(sys.argv[2])

def counted(*args):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*args)

os.replace = counted
approve_all(Path(sys.argv[1]), AlteredEngine(margins=lambda old: (1.0, *old[1:])), reason="changed")
"""


def run_program(program: str, *arguments: object) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], env=environ)


@pytest.mark.parametrize("num_replaced", [1, 2, 3])
def test_a_kill_leaves_whole_files_that_the_gate_tells_apart_and_a_second_approval_mends_it(
    goldens: Path, num_replaced: int
) -> None:
    """The first replaced file is the log, then come the goldens."""
    approve_all(goldens)
    before = tree(goldens)
    assert run_program(KILLED_AT, goldens, num_replaced).wait() == -signal.SIGKILL
    after = {name: data for name, data in tree(goldens).items() if not Path(name).name.startswith(".")}
    changed = [name for name in after if after[name] != before[name]]
    assert len(changed) == num_replaced - 1
    assert after.keys() == before.keys()
    for name in changed:
        json.loads(after[name].splitlines()[-1])
    num_faults = {1: 0, 2: 2, 3: 1}[num_replaced]
    assert len(read_goldens(goldens).faults) == num_faults
    engine = AlteredEngine(margins=lambda old: (1.0, *old[1:]))
    approve_all(goldens, engine, reason="changed")
    assert [finding.verdict for finding in run(goldens, engine).values()] == ["PASS", "PASS"]


APPROVED_BESIDE = """
import sys
from pathlib import Path
from tests.determinism.gate.folder import AlteredEngine, approve_all
approve_all(Path(sys.argv[1]), AlteredEngine({"number": int(sys.argv[2])}))
"""


def test_several_writers_at_once_lose_no_line(goldens: Path) -> None:
    writers = [run_program(APPROVED_BESIDE, goldens, number) for number in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    assert len(read_approvals(goldens)) == 8
    held = read_goldens(goldens)
    assert (len(held.approved), held.faults) == (8, {})


def test_lines_of_two_branches_may_be_merged_in_any_order(goldens: Path) -> None:
    """Lines about different goldens do not depend on each other."""
    approve_all(goldens)
    approve_all(goldens, AlteredEngine({"a": 1}))
    path = goldens / "approvals.jsonl"
    lines: Sequence[bytes] = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(reversed(lines)))
    assert read_goldens(goldens).faults == {}


def test_a_key_names_its_file(goldens: Path) -> None:
    assert golden_path(goldens, GoldenKey("small", "ab")) == goldens / "small" / "ab.json"
