"""README and docs against the program: commands exist and run, files and links are there, nothing else is named."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from service.cli import app

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
MADE_LATER = {".venv", ".dpm/"}
REFERENCE_HOSTS = {"keepachangelog.com", "semver.org", "127.0.0.1:8000"}
SUFFIXES = {".db", ".jsonl", ".md", ".py", ".toml", ".txt", ".yaml"}
NEEDS_MODEL = {
    ("weights",), ("engine", "check"), ("engine", "enroll"), ("engine", "serve"), ("determinism", "run"),
    ("determinism", "gate"), ("bench", "quality"), ("bench", "report"),
}  # fmt: skip

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def fenced_blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def inline_code(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(page))


def command_lines(page: Path) -> list[list[str]]:
    """The lines of every `sh` block, split into words."""
    return [shlex.split(line) for block in fenced_blocks(page, "sh") for line in block.splitlines() if line.strip()]


def find_command(words: Sequence[str]) -> tuple[Any, list[str]]:
    """The deepest command of `dpm` that the words name, and the words behind it."""
    command, rest = typer.main.get_command(app), list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]  # type: ignore[attr-defined]  # a group, as was just seen
    return command, rest


def all_options(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from parameter.opts
    for inner in getattr(command, "commands", {}).values():
        yield from all_options(inner)


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def is_program(words: Sequence[str]) -> bool:
    """Whether `python ...` names a module or a file of ours."""
    if words[0] == "-m":
        module = ROOT / words[1].replace(".", "/")
        return module.with_suffix(".py").is_file() or (module / "__main__.py").is_file()
    return (ROOT / words[0]).is_file()


def check_command(words: Sequence[str]) -> None:
    """Raise where a command line could not be typed as it stands."""
    match words:
        case ["make", *targets]:
            assert set(targets) <= make_targets(), words
        case ["dpm", *rest]:
            command, arguments = find_command(rest)
            assert not hasattr(command, "commands"), f"{words}: no such command"
            command.make_context("dpm", arguments)  # parses as the program does, and raises for what it would refuse
        case ["python", *rest]:
            assert is_program(rest), words
        case [".", ".venv/bin/activate"]:
            pass
        case _:
            raise AssertionError(f"{words}: no command that is known here")


@each_page
def test_every_command_line_could_be_typed_as_it_stands(page: Path) -> None:
    for words in command_lines(page):
        check_command(words)


@each_page
def test_every_command_in_the_text_exists(page: Path) -> None:
    for code in inline_code(page):
        words = code.split()
        if words[0] == "dpm" and len(words) > 1:
            command, rest = find_command(words[1:])
            assert command is not typer.main.get_command(app), code
            assert rest == [] or not hasattr(command, "commands"), code
        elif words[0] in ("make", "python") and len(words) > 1:
            check_command(words)


@each_page
def test_every_option_in_the_text_exists(page: Path) -> None:
    known = set(all_options(typer.main.get_command(app))) | {"--help"}
    named = {word for code in inline_code(page) for word in code.split() if word.startswith("--")}
    assert named <= known


def test_the_readme_says_first_how_to_make_the_demo_and_how_to_test() -> None:
    assert command_lines(README)[:2] == [["make", "demo"], ["make", "test"]]


def test_ci_runs_the_readmes_test_command() -> None:
    assert (ROOT / ".ci" / "run").read_text(encoding="utf-8").rstrip().endswith("make test")


@pytest.mark.parametrize("name", ["events.jsonl", "task.yaml"])
def test_the_examples_that_the_readme_names_are_there(name: str) -> None:
    assert (ROOT / "examples" / "mortgage" / name).is_file()


def run_dpm(arguments: Sequence[str], cwd: Path) -> str:
    """Run the command line as a user would, and return its stdout."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    command = [sys.executable, "-m", "service.cli", *arguments]
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def without_model(words: Sequence[str]) -> list[str]:
    """The same command on the scripted engine, where it would start one."""
    starts_an_engine = words[0] == "decide" or list(words[:2]) in (["engine", "show"], ["replay", "--all"])
    return [*words, "--engine", "scripted"] if starts_an_engine else list(words)


def row_names(text: str) -> list[str]:
    """How a printed decision is laid out: its headings, and the names of its digests."""
    headings = re.findall(r"^── (memory view|decision)\b.* ──$", text, re.MULTILINE)
    return headings + re.findall(r"^([a-z ]+?) +(?:[0-9]+:)?[0-9a-f]{64}$", text, re.MULTILINE)[:5]


def needs_model(words: Sequence[str]) -> bool:
    """Whether a command of the README is only parsed here, since it needs the real model or a server."""
    return any(tuple(words[1 : 1 + len(name)]) == name for name in NEEDS_MODEL) or "http" in " ".join(words)


def test_the_readmes_own_case_runs_from_its_first_command_to_its_last(tmp_path: Path) -> None:
    (events,) = fenced_blocks(README, "json")
    (task,) = fenced_blocks(README, "yaml")
    (tmp_path / "my-events.jsonl").write_text(events, encoding="utf-8")
    (tmp_path / "my-task.yaml").write_text(task, encoding="utf-8")
    record_id, num_run = "", 0
    for words in command_lines(README):
        if words[0] == "python":
            program = [sys.executable, str(ROOT / words[1]), *(record_id if w == "RECORD_ID" else w for w in words[2:])]
            assert subprocess.run(program, cwd=tmp_path, check=False, capture_output=True).returncode == 0
        if words[0] != "dpm" or needs_model(words):
            continue
        arguments = [record_id if word == "RECORD_ID" else word for word in without_model(words[1:])]
        said = run_dpm(arguments, tmp_path)
        num_run += 1
        if words[1] == "decide":
            assert row_names(said) == row_names(README.read_text(encoding="utf-8"))
            record_id = re.findall(r"^record +([0-9a-f]{64})$", said, re.MULTILINE)[0]
        if words[1] == "replay":
            assert "PASS" in said
    assert num_run >= 8


@each_page
def test_relative_links_and_their_sections_are_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(page))):
        if target.startswith("https://"):
            continue
        path, _, section = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not section or section in section_names(linked), target


def section_names(page: Path) -> set[str]:
    """The names that a forge gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_every_file_and_folder_in_the_text_is_there(page: Path) -> None:
    for code in inline_code(page):
        if not re.fullmatch(r"\.?[\w-]+(?:[./][\w.-]+)*/?", code) or code in MADE_LATER:
            continue
        is_path = code.endswith("/") or ("/" in code and Path(code).suffix in SUFFIXES)
        assert not is_path or (ROOT / code).exists(), code


@each_page
def test_no_page_names_another_host_than_those_it_cites(page: Path) -> None:
    hosts = set(re.findall(r"https?://([^/\s)]+)", page.read_text(encoding="utf-8")))
    assert hosts <= REFERENCE_HOSTS


def test_the_demo_output_in_the_readme_is_one_that_passed() -> None:
    shown = README.read_text(encoding="utf-8").partition("<!-- demo output: begin -->")[2].partition("<!-- demo")[0]
    assert "verdict PASS" in shown
    for level in ("R0", "R1", "R2", "R3"):
        assert f"{level}  PASS" in shown
