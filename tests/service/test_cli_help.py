"""Help: every command has it, and it loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from service.cli import app
from tests.service.conftest import ROOT, Dpm
from tests.test_imports import HEAVY


def every_command(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from every_command(inner, (*path, name))


COMMANDS = list(every_command(typer.main.get_command(app)))


def test_the_commands_are_those_of_the_contract() -> None:
    assert set(COMMANDS) >= {
        (), ("decide",), ("replay",), ("demo",), ("record", "show"), ("engine", "show"),
        *(("log", name) for name in ("append", "show", "verify", "head")),
        *(("weights", name) for name in ("pull", "pin", "verify")),
    }  # fmt: skip


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help(dpm: Dpm, path: tuple[str, ...]) -> None:
    result = dpm(*path, "--help")
    assert result.code == 0
    assert "Usage:" in result.stdout
    assert result.stderr == ""


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from service.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, *sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", program, "decide", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    code, *modules = done.stderr.split()
    assert code == "0"
    assert not (HEAVY | {"numpy"}) & set(modules)


def test_the_installed_command_is_this_one() -> None:
    command = [str(Path(sys.executable).with_name("dpm")), "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "decide" in done.stdout
