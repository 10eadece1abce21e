"""How results and talk reach a person: results on stdout, talk and progress on stderr, one JSON document with --json.

Text that came from events or a model is shown with invisible characters spelled out, and never read as markup.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from projection.case import SealedDecision
from projection.engine import Progress as CallProgress
from projection.engine import Watch
from projection.prompt import visible
from projection.replay import Divergence, ReplayReport

TOKENS_PER_CHAR = 0.45  # of a view in SmolLM2's tokens, digits being one token each; only the progress bar uses it
SECONDS_BETWEEN_LINES = 10.0
VERDICT_STYLES = {"PASS": "bold green", "DRIFT": "bold red", "INCOMPARABLE": "bold yellow", "ERROR": "bold red"}

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")


def say(message: str) -> None:
    """A line of talk on stderr."""
    err.print(Text(visible(message), style="dim"))


@contextmanager
def step(title: str) -> Iterator[None]:
    """Talk about a step that has no length of its own: what it is, and how long it took."""
    started = time.monotonic()
    if err.is_terminal:
        with err.status(Text(title)):
            yield
    else:
        yield
    say(f"{title} ({time.monotonic() - started:.1f} s)")


@contextmanager
def watch_calls(expected_chars: int) -> Iterator[Watch]:
    """Show the tokens of each call and the time that is left; without a terminal, a line every ten seconds.

    The time left is for an answer of `expected_chars` characters: most answers end earlier.
    """
    expected_tokens = max(1, int(expected_chars * TOKENS_PER_CHAR))
    if not err.is_terminal:
        yield _talk_of_calls
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]:>14}"),
        TimeElapsedColumn(),
        TextColumn("at most"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=err) as progress:

        def finish() -> None:
            for task in progress.tasks:
                progress.update(task.id, total=task.completed or 1, completed=task.completed or 1)

        def watch(name: str) -> CallProgress:
            finish()
            bar = progress.add_task(f"{name:<13}", total=expected_tokens, note="one pass" if name[:2] == "R2" else "")

            def show(done: int, limit: int) -> None:
                progress.update(bar, completed=done, total=min(limit, expected_tokens), note=f"{done} tokens")

            return show

        yield watch
        finish()


def _talk_of_calls(name: str) -> CallProgress:
    say(f"{name}: begins")
    started = last = time.monotonic()

    def progress(done: int, _limit: int) -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            say(f"{name}: {done} tokens in {last - started:.0f} s")

    return progress


def print_decision(sealed: SealedDecision) -> None:
    """The view, the decision, and the digests that identify them."""
    record = sealed.record
    title = f"memory view, {sealed.view.num_chars} of {record.content.budget.asked_chars} characters"
    _print_evidence(title, sealed.view.text)
    _print_evidence("decision", record.content.decision_call.text)
    rows = {
        "record": sealed.record_id,
        "content digest": record.content_digest,
        "view digest": record.content.view_digest,
        "engine identity": record.content.engine_identity,
        "log head": f"{record.log_head.position}:{record.log_head.entry_hash}",
    }
    for name, value in rows.items():
        out.print(Text.assemble((f"{name:<16}", "dim"), value))
    if sealed.missing_required:
        out.print(Text(f"Required fields that the view gives as unknown: {', '.join(sealed.missing_required)}"))
    values = ", ".join(visible(omission.value) for omission in sealed.omissions[:8])
    more = f" and {len(sealed.omissions) - 8} more" if len(sealed.omissions) > 8 else ""
    out.print(
        Text(f"Values of the log that the view leaves out: {len(sealed.omissions)} ({values}{more})", style="dim")
    )


def print_replay(record_id: str, report: ReplayReport) -> None:
    """Every level that was reached, the verdict, and where a replay first differs."""
    for level, verdict in report.levels.items():
        out.print(Text.assemble(f"{level}  ", (verdict, VERDICT_STYLES[verdict]), f"  {LEVEL_MEANING[level]}"))
    if report.first_divergence is not None:
        out.print(Text(describe_divergence(report.first_divergence)))
    if report.engine_kind == "scripted":
        out.print(Text("The scripted engine wrote this record: no model was asked.", style="bold yellow"))
    out.print(Text.assemble("verdict ", (report.verdict, VERDICT_STYLES[report.verdict]), f"  record {record_id}"))


LEVEL_MEANING = {
    "R0": "hash chain, digests, citations and budget recomputed",
    "R1": "prompt tokens and grammars rebuilt from the log",
    "R2": "every recorded token is the best allowed one, in one forward pass a call",
    "R3": "both calls generated again, byte for byte",
}


def describe_divergence(found: Divergence) -> str:
    """One sentence for a person."""
    place = f" of the {found.call} call" if found.call else ""
    index = f" at {found.index}" if found.index is not None else ""
    values = f"recorded {visible(str(found.recorded))}, recomputed {visible(str(found.recomputed))}"
    detail = f"; {visible(found.detail)}" if found.detail else ""
    return f"first divergence: {found.level} {found.what}{place}{index}: {values}{detail}"


def _print_evidence(title: str, text: str) -> None:
    """Text that counts, between two rules and whole: never wrapped or cut at the width of a terminal."""
    out.print(Text(f"── {title} ──", style="bold"))
    out.print(Text(visible(text)))
