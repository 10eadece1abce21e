"""The example cases as the benchmarks use them, and a longer case made of both."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

from projection.events import Event
from projection.ingest import parse_events
from projection.task import Task, parse_task

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = ("mortgage", "claim")
CUT_CHARS = 40


def read_example(name: str) -> tuple[tuple[Event, ...], Task]:
    """Events and task of `examples/<name>`."""
    folder = EXAMPLES / name
    parsed = parse_events((folder / "events.jsonl").read_bytes(), source_name=f"{name}/events.jsonl")
    return parsed.events, parse_task((folder / "task.yaml").read_bytes(), f"{name}/task.yaml")


def long_case(num_events: int) -> tuple[list[Event], Task]:
    """The mortgage task over `num_events` events: both examples in turn, round after round, without their links.

    Each event is cut to about `CUT_CHARS` characters at a sentence's end, so that 96 events fit a context of 8,192.
    """
    pool = [event for name in NAMES for event in read_example(name)[0]]
    events = [
        replace(event, event_id=f"{index}-{event.event_id}", text=_cut(event.text), links=())
        for index, event in enumerate(islice(cycle(pool), num_events), start=1)
    ]
    return events, read_example("mortgage")[1]


def _cut(text: str) -> str:
    """The sentences that begin within the first `CUT_CHARS` characters, at least one."""
    end = text.find(". ", CUT_CHARS)
    return text if end < 0 else text[: end + 1]
