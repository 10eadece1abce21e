"""The arrows between the folders, and what each folder must not import, held against every import statement."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

ALLOWED: dict[str, frozenset[str]] = {
    "projection": frozenset(),
    "inference": frozenset({"projection"}),
    "baseline": frozenset({"projection"}),
    "reporting": frozenset({"projection"}),
    "determinism": frozenset({"projection", "inference", "baseline", "reporting"}),
    "benchmarks": frozenset({"projection", "inference", "baseline", "reporting"}),
    "service": frozenset({"projection", "inference", "baseline", "reporting", "determinism", "benchmarks"}),
}
"""Which of our folders each of them may import besides itself."""
OURS = frozenset({*ALLOWED, "tests", "gpu_configs"})

HEAVY = frozenset(
    [
        "accelerate",
        "anthropic",
        "gguf",
        "huggingface_hub",
        "matplotlib",
        "openai",
        "ray",
        "safetensors",
        "scipy",
        "torch",
        "transformers",
        "vllm",
        "xgrammar",
    ]
)
INSIDE_THE_ENGINE = frozenset(
    {"inference/invariant_attention.py", "inference/invariant_linear.py", "inference/invariant_sampling.py"}
)
"""Loaded by vLLM in its own process, never by `dpm --help`."""

CLOCK_AND_CHANCE = frozenset(["time", "random", "secrets", "uuid", "tempfile"])
NETWORK = frozenset(
    ["socket", "ssl", "http", "urllib", "ftplib", "smtplib", "asyncio", "httpx", "requests", "aiohttp", "fastapi"]
)
ENVIRONMENT = frozenset(["subprocess", "multiprocessing", "platform", "getpass", "locale"])
IMPURE_MODULES = CLOCK_AND_CHANCE | NETWORK | ENVIRONMENT
IMPURE_NAMES = frozenset(
    {
        *(
            f"os.{name}"
            for name in ("environ", "environb", "getenv", "getpid", "urandom", "getrandom", "uname", "cpu_count")
        ),
        *(f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")),
        "datetime.date.today",
        "numpy.random",
        "sys.argv",
    }
)
"""What the pure core may not touch, by full name: clock, environment, chance, network."""


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module or name; `name` is what follows `from module import`."""

    line: int
    module: str
    name: str | None
    at_import_time: bool

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]


def find_imports(tree: ast.Module, own_package: str) -> Iterator[Import]:
    """Every import statement, those inside functions and conditions too."""
    yield from _find_imports(tree, own_package, at_import_time=True)


def _find_imports(node: ast.AST, own_package: str, at_import_time: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Import(names=names):
                yield from (Import(child.lineno, alias.name, None, at_import_time) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                target = own_package if level else str(module)
                yield from (Import(child.lineno, target, alias.name, at_import_time) for alias in names)
            case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__")):
                yield Import(child.lineno, _literal_argument(child), None, at_import_time)
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                yield from _find_imports(child, own_package, at_import_time=False)
                continue
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _find_imports(child, own_package, at_import_time and not is_function)


def _literal_argument(call: ast.Call) -> str:
    match call.args:
        case [ast.Constant(value=str(name)), *_]:
            return name
    return "<computed>"


def find_impure_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Uses of `IMPURE_NAMES`, through whatever alias the module was imported under."""
    meanings: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    meanings[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            case ast.ImportFrom(module=str(module), names=names, level=0):
                meanings |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in names}
    for node in ast.walk(tree):
        name = _full_name(node, meanings)
        if name in IMPURE_NAMES and isinstance(node, ast.expr):
            yield node.lineno, name


def _full_name(node: ast.AST, meanings: dict[str, str]) -> str:
    match node:
        case ast.Name(id=name):
            return meanings.get(name, "")
        case ast.Attribute(value=value, attr=attr):
            prefix = _full_name(value, meanings)
            return f"{prefix}.{attr}" if prefix else ""
    return ""


def find_faults(path: str, source: str) -> list[str]:
    """What is wrong with the imports of the file `path` (relative, with forward slashes)."""
    folder = path.partition("/")[0]
    tree = ast.parse(source, path)
    faults = []
    for found in find_imports(tree, folder):
        where = f"{path}:{found.line}: "
        if found.module == "<computed>":
            faults.append(where + "imports a computed name, which cannot be checked")
        if found.package in OURS - ALLOWED[folder] - {folder} - ({"gpu_configs"} if folder != "projection" else set()):
            faults.append(where + f"{folder} must not import {found.package}")
        is_heavy = found.package in HEAVY
        if is_heavy and folder == "projection":
            faults.append(where + f"projection must not import {found.package}")
        elif is_heavy and found.at_import_time and path not in INSIDE_THE_ENGINE:
            faults.append(where + f"{found.package} is heavy: import it inside the function that needs it")
        if folder == "projection" and found.package in IMPURE_MODULES and found.module != "urllib.parse":
            faults.append(where + f"projection must not import {found.package}")
    if folder == "projection":
        faults += [f"{path}:{line}: projection must not use {name}" for line, name in find_impure_names(tree)]
    return faults


def our_files() -> list[str]:
    files = [path for folder in ALLOWED for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path.relative_to(ROOT).as_posix() for path in files]


@pytest.mark.parametrize("path", our_files())
def test_imports_follow_the_arrows(path: str) -> None:
    assert find_faults(path, (ROOT / path).read_text(encoding="utf-8")) == []


def test_importing_everything_loads_nothing_heavy() -> None:
    """Holds for what our imports import in turn, too."""
    modules = [path.removesuffix(".py").replace("/", ".") for path in our_files() if path not in INSIDE_THE_ENGINE]
    program = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(*sys.modules)"
    command = [sys.executable, "-c", program, *modules]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not HEAVY & set(done.stdout.split())


def test_every_folder_with_code_is_known() -> None:
    found = {path.parent.name for path in ROOT.glob("*/*.py") if not path.parent.name.startswith(".")}
    assert found - {"examples", "docs"} <= OURS
    assert found >= {"projection", "inference"}


def test_no_folder_shadows_the_standard_library() -> None:
    assert not OURS & sys.stdlib_module_names


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("projection/a.py", "import inference", "must not import inference"),
        ("projection/a.py", "from service import cli", "must not import service"),
        (
            "projection/a.py",
            "def f():\n    from inference.weights import pin",
            "a.py:2: projection must not import inference",
        ),
        ("projection/a.py", "if True:\n  try:\n    import baseline.x\n  finally: pass", "must not import baseline"),
        ("projection/a.py", "import gpu_configs", "must not import gpu_configs"),
        ("projection/a.py", "import tests.cases", "must not import tests"),
        ("projection/a.py", "import importlib\nimportlib.import_module('inference')", "must not import inference"),
        ("projection/a.py", "__import__('infer' + 'ence')", "computed"),
        ("projection/a.py", "def f():\n    import torch", "must not import torch"),
        (
            "projection/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import vllm",
            "must not import vllm",
        ),
        ("projection/a.py", "import time", "must not import time"),
        ("projection/a.py", "from random import choice", "must not import random"),
        ("projection/a.py", "def f():\n    import secrets", "must not import secrets"),
        ("projection/a.py", "import urllib.request", "must not import urllib"),
        ("projection/a.py", "import os\nos.environ['X']", "a.py:2: projection must not use os.environ"),
        ("projection/a.py", "import os as o\no.urandom(4)", "must not use os.urandom"),
        ("projection/a.py", "from os import getenv as g\ng('X')", "must not use os.getenv"),
        ("projection/a.py", "import datetime\ndatetime.datetime.now()", "must not use datetime.datetime.now"),
        ("projection/a.py", "from datetime import datetime as d\nnow = d.now", "must not use datetime.datetime.now"),
        ("projection/a.py", "from datetime import date\ndate.today()", "must not use datetime.date.today"),
        ("inference/a.py", "import baseline", "must not import baseline"),
        ("inference/a.py", "from determinism.suite import checks", "must not import determinism"),
        ("inference/a.py", "import torch", "a.py:1: torch is heavy"),
        ("inference/a.py", "from vllm.v1 import x", "vllm is heavy"),
        ("inference/a.py", "class A:\n    import xgrammar", "xgrammar is heavy"),
        (
            "inference/a.py",
            "try:\n    import huggingface_hub\nexcept ImportError:\n    pass",
            "huggingface_hub is heavy",
        ),
        ("baseline/a.py", "import inference", "must not import inference"),
        ("determinism/a.py", "import benchmarks", "must not import benchmarks"),
        ("determinism/a.py", "import service.cli", "must not import service"),
        ("benchmarks/a.py", "import determinism", "must not import determinism"),
        ("benchmarks/a.py", "import matplotlib.pyplot as plt", "matplotlib is heavy"),
        ("service/a.py", "import scipy", "scipy is heavy"),
    ],
)
def test_a_planted_wrong_import_is_found(path: str, source: str, fault: str) -> None:
    assert [found for found in find_faults(path, source) if fault in found], find_faults(path, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "projection/a.py",
            "import sqlite3, regex, urllib.parse\nfrom projection.errors import DpmError\nfrom . import log",
        ),
        (
            "projection/a.py",
            "import os\nfrom datetime import datetime\nos.fspath('x'); datetime.fromisoformat('2024-01-01')",
        ),
        ("projection/a.py", "def f(environ, now):\n    return environ['x'], now()"),
        (
            "inference/a.py",
            "import os, time\nimport gpu_configs\nfrom projection import engine\ndef f():\n    import vllm\nos.environ",
        ),
        ("inference/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("inference/invariant_attention.py", "import torch, vllm"),
        ("benchmarks/a.py", "import inference.config, baseline, projection"),
        ("service/a.py", "import projection, inference, baseline, determinism, benchmarks, fastapi"),
    ],
)
def test_a_right_import_is_not_a_fault(path: str, source: str) -> None:
    assert find_faults(path, source) == []
