"""How an experiment talks: a bar with the time left, or a line now and then without a terminal; tables on stdout."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from benchmarks.experiments.runner import Progress as JobProgress
from projection.prompt import visible
from reporting.document import Badge, Code, Inline, Table
from service.console import SECONDS_BETWEEN_LINES, err, out, say

SECONDS_OF_MEMORY = 3600.0  # over which the bar's time left is averaged: jobs differ widely in length


@contextmanager
def watch_jobs(title: str) -> Iterator[JobProgress]:
    """Show how far an experiment is, and about how long it will take."""
    if not err.is_terminal:
        yield JobTalk(title)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TextColumn("about"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=err, speed_estimate_period=SECONDS_OF_MEMORY) as bars:
        yield JobBar(bars, title)


class JobBar:
    """A bar on a terminal."""

    def __init__(self, bars: Progress, title: str) -> None:
        self._bars = bars
        self._task = bars.add_task(visible(title), total=None, note="")
        self._num_rows = 0

    def begin(self, total_work: float, done_work: float) -> None:
        self._bars.update(self._task, total=total_work, completed=done_work)

    def advance(self, work: float) -> None:
        self._bars.advance(self._task, work)

    def tell(self, row: Mapping[str, Any]) -> None:
        self._num_rows += 1
        self._bars.update(self._task, note=f"{self._num_rows} answers, last {_described(row)}")


class JobTalk:
    """A line every `SECONDS_BETWEEN_LINES` seconds at most, where there is no terminal."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._lock = threading.Lock()
        self._started = self._last = time.monotonic()
        self._total = self._done = self._begun_at = 0.0
        self._num_rows = 0
        self._told: set[tuple[str, str, str]] = set()

    def begin(self, total_work: float, done_work: float) -> None:
        self._total, self._done, self._begun_at = total_work, done_work, done_work
        say(f"{self._title}: {_percent(done_work, total_work)} was done before")

    def advance(self, work: float) -> None:
        with self._lock:
            self._done += work
            now = time.monotonic()
            if now - self._last < SECONDS_BETWEEN_LINES:
                return
            self._last = now
            say(f"{self._title}: {_percent(self._done, self._total)}, {self._num_rows} answers, {self._time_left(now)}")

    def tell(self, row: Mapping[str, Any]) -> None:
        """A kind of failure is told once; the rows hold every one."""
        self._num_rows += 1
        kind = (row["architecture"], row["ratio"], row["status"])
        if row["status"] != "scored" and kind not in self._told:
            self._told.add(kind)
            say(f"{self._title}: {_described(row)}: {row['status']}, {row['reason']}")

    def _time_left(self, now: float) -> str:
        done = self._done - self._begun_at
        if done <= 0:
            return "time left unknown"
        left_s = (now - self._started) * (self._total - self._done) / done
        return f"about {left_s / 60:.0f} min left" if left_s >= 90 else f"about {left_s:.0f} s left"


def print_table(table: Table) -> None:
    """A report's table on stdout, as wide as it is: a number that is cut is worse than a line that wraps."""
    rows = [[visible(_words(value)) for value in row] for row in table.rows]
    titles = [visible(column.title) for column in table.columns]
    widths = [max(map(len, cells)) for cells in zip(titles, *rows, strict=True)]
    out.print(Text(visible(table.title), style="bold"))
    for index, row in enumerate([titles, *rows]):
        cells = [
            text.rjust(width) if column.is_number else text.ljust(width)
            for text, width, column in zip(row, widths, table.columns, strict=True)
        ]
        out.print(Text("  ".join(cells).rstrip(), style="" if index else "dim"))
    if table.note:
        out.print(Text(visible(table.note), style="dim"))


def _words(value: Inline) -> str:
    return value.text if isinstance(value, Badge | Code) else value


def _described(row: Mapping[str, Any]) -> str:
    return f"{row['case_id']} {row['architecture']} {row['ratio']}x"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}%" if whole > 0 else "100%"
