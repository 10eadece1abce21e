"""What tests of the command line share: `dpm` in process, a small case on disk, and a decided log to damage."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from projection.events import Event
from projection.store_sqlite import SqliteStore
from service.cli import main
from tests.projection.cases import EVENTS, TASK_YAML
from tests.projection.trajectories import make_events

ROOT = Path(__file__).parents[2]
DECIDE = ("decide", "events.jsonl", "--task", "task.yaml", "--engine", "scripted", "--json")
SMALL_EVENTS = [logged.event for logged in EVENTS]


@dataclass(frozen=True, slots=True)
class Result:
    """What a command left behind."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        """Stdout, which must be one JSON document and nothing else."""
        value: dict[str, Any] = json.loads(self.stdout)
        return value

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.document["error"]
        return error


Dpm = Callable[..., Result]


@pytest.fixture
def dpm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Dpm:
    """The command line in this process, in an empty folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPM_HOME", str(tmp_path / "home"))

    def run(*args: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["dpm", *map(str, args)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capfd.readouterr()
        return Result(ended.value.code if isinstance(ended.value.code, int) else 0, said.out, said.err)

    return run


def write_events(path: Path, events: Sequence[Event], subject: str | None = "LN-7") -> Path:
    """A CloudEvents file, one event a line."""
    lines = []
    for event in events:
        links = [{"kind": link.kind, "event_id": link.event_id} for link in event.links]
        value = {
            "specversion": "1.0", "id": event.event_id, "source": event.source, "type": event.type,
            "subject": subject, "time": event.occurred_at, "data": {"text": event.text, "links": links},
        }  # fmt: skip
        lines.append(json.dumps(value) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


def log_state(db: Path) -> list[tuple[str, int, str]]:
    """Stream, position and hash of every entry; nothing where there is no file."""
    if not db.exists():
        return []
    with SqliteStore.open_read_only(db) as store:
        return [(str(stream), e.position, e.entry_hash) for stream in store.streams() for e in store.entries(stream)]


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """A folder with the small case: events.jsonl, task.yaml."""
    write_events(tmp_path / "events.jsonl", SMALL_EVENTS)
    (tmp_path / "task.yaml").write_bytes(TASK_YAML)
    return tmp_path


@pytest.fixture(scope="session")
def decided_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of twelve events and one scripted decision; copy it before you damage it."""
    import subprocess

    folder = tmp_path_factory.mktemp("decided")
    write_events(folder / "events.jsonl", make_events(12))
    (folder / "task.yaml").write_bytes(TASK_YAML)
    command = [sys.executable, "-m", "service.cli", "decide", "events.jsonl", "--task", "task.yaml", "--tenant", "acme",
               "--engine", "scripted", "--json"]  # fmt: skip
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=True)
    (folder / "decision.json").write_text(done.stdout, encoding="utf-8")
    return folder


@pytest.fixture
def decided(decided_log: Path, tmp_path: Path) -> Path:
    """A copy of the decided log in the test's own folder, as dpm.sqlite."""
    shutil.copy(decided_log / "dpm.sqlite", tmp_path / "dpm.sqlite")
    return tmp_path / "dpm.sqlite"


@pytest.fixture
def record_id(decided_log: Path) -> str:
    value: dict[str, str] = json.loads((decided_log / "decision.json").read_text(encoding="utf-8"))
    return value["record_id"]
