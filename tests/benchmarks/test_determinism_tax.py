"""The processes that are timed: what they say first, and what comes of one that ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.determinism_tax import Worker

ECHO = "import json, sys\nprint(json.dumps('ab' * 32), flush=True)\n"
ECHO += "for line in sys.stdin: print(json.dumps([{'work': line.strip()}]), flush=True)"


@contextmanager
def process(program: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        yield started


def test_a_worker_tells_its_engines_identity_before_any_work() -> None:
    with process(ECHO) as started:
        worker = Worker("lane", started)
        assert worker.engine_identity == "ab" * 32
        assert worker.do("one projection") == [{"work": "one projection"}]


def test_an_engine_that_does_not_start_ends_the_measurement() -> None:
    with process("") as started, pytest.raises(SystemExit, match="'lane' ended"):
        Worker("lane", started)
