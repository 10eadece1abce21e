"""The shipped example cases, read with the project's own readers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from inference.config import load_config
from projection.events import LoggedEvent
from projection.ingest import ParsedEvents, parse_events
from projection.task import Task, parse_task

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@dataclass(frozen=True, slots=True)
class ExampleCase:
    """An example as it is shipped; `true_values` is by field name, None where the log does not say."""

    parsed: ParsedEvents
    events: tuple[LoggedEvent, ...]
    task: Task
    true_values: dict[str, str | None]
    true_positions: dict[str, list[int]]


@cache
def example(name: str) -> ExampleCase:
    folder = EXAMPLES / name
    parsed = parse_events((folder / "events.jsonl").read_bytes(), source_name=name)
    facts = json.loads((folder / "expected.json").read_text(encoding="utf-8"))["facts"]
    return ExampleCase(
        parsed,
        tuple(LoggedEvent(position, event) for position, event in enumerate(parsed.events, start=1)),
        parse_task((folder / "task.yaml").read_bytes()),
        {fact["name"]: fact["value"] for fact in facts},
        {fact["name"]: fact["positions"] for fact in facts},
    )


@cache
def shipped_slot_candidates() -> int | None:
    """The k of the profile that ships."""
    return load_config(ROOT / "gpu_configs" / "cpu.yaml").projection.slot_candidates
