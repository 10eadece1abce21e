"""A log of many sealed records, and engines that are wrong in one thing, for tests of replaying all of it."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from determinism.near_ties import Limit
from determinism.replay.outcome import Tally
from determinism.replay.plan import Plan
from determinism.replay.run import Replay, Run, read_audit_heads, replay_all
from determinism.replay.workers import lanes_of
from inference.scripted_engine import ScriptedEngine
from projection.engine import Completion, EngineIdentity, Progress, Score
from projection.entry import Stream
from projection.grammar import Grammar
from projection.log import Store
from projection.record import AuditRecord
from tests.projection.decided import (
    decide_small_case,
    seal,
    with_call,
    with_changes,
    with_content,
)

AUDIT = Stream("acme", "audit")


class CountedEngine(ScriptedEngine):
    """Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.num_scored, self.num_generated = 0, 0
        self._counting = threading.Lock()

    def score(
        self, prompt_token_ids: Sequence[int], completion_token_ids: Sequence[int], grammar: Grammar | None
    ) -> Score:
        with self._counting:
            self.num_scored += 1
        return super().score(prompt_token_ids, completion_token_ids, grammar)

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        grammar: Grammar | None,
        progress: Progress | None = None,
    ) -> Completion:
        with self._counting:
            self.num_generated += 1
        return super().generate(prompt_token_ids, max_tokens, grammar, progress)


class WobblyEngine(CountedEngine):
    """Scores honestly, and generates with one log-probability a bit lower."""

    def generate(self, *arguments: Any) -> Completion:
        completion = super().generate(*arguments)
        logprobs = list(completion.logprobs)
        logprobs[3] = math.nextafter(logprobs[3], -math.inf)
        return replace(completion, logprobs=tuple(logprobs))


def scratch_record(store: Store) -> AuditRecord:
    """A record of the small case that is sealed nowhere yet but once."""
    return decide_small_case(store).record


def near_tied(record: AuditRecord) -> AuditRecord:
    """The record with one place of its projection within a step of flipping; R3 cannot reproduce the number."""
    margins: list[float | None] = [None] * len(record.content.projection.token_ids)
    margins[5] = 2.0**-149
    return with_call(record, "projection", margins=margins)


def of_another_engine(record: AuditRecord) -> AuditRecord:
    """The record as if another machine had written it."""
    engine = record.engine | {"device": {"kind": "another"}}
    changed = with_changes(record, engine=engine)
    return with_content(changed, engine_identity=EngineIdentity(engine).digest)


def not_best(record: AuditRecord) -> AuditRecord:
    """The record with another token limit, which R2 finds."""
    return with_call(record, "decision", max_tokens=record.content.decision_call.max_tokens + 1)


def seal_many(store: Store, record: AuditRecord, count: int) -> list[str]:
    return [seal(store, record) for _ in range(count)]


def replayed(
    store: Store,
    directory: Path,
    plan: Plan | None = None,
    engine: ScriptedEngine | None = None,
    in_flight: int = 2,
    watch: Callable[[int, int], None] = lambda _done, _total: None,
) -> Tally:
    """Replay a log on one engine."""
    lanes = lanes_of([engine or CountedEngine()], in_flight, Limit())
    chosen = plan or Plan()
    run = Run(chosen, read_audit_heads(store, chosen.tenant_id), lanes.engine_identity)
    return replay_all(store, run, lanes.replays, directory, watch)


def with_replays(store: Store, directory: Path, replays: Sequence[Replay], identity: str | None = None) -> Tally:
    """Replay a log with these, whatever they are."""
    run = Run(Plan(), read_audit_heads(store, None), identity)
    return replay_all(store, run, replays, directory, lambda _done, _total: None)


def rows_of(directory: Path) -> dict[int, dict[str, Any]]:
    """Every row of every segment, by position; a row that stands twice is a failure."""
    rows: dict[int, dict[str, Any]] = {}
    for file in sorted(directory.glob("segment-*/rows.jsonl")):
        for line in file.read_text().splitlines()[1:]:
            row = json.loads(line)["row"]
            assert row["position"] not in rows
            rows[row["position"]] = row
    return rows
