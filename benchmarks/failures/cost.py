"""A replay's cost as the trajectory grows: n calls for a running summary, one for a projection (paper, section 10)."""

from __future__ import annotations

import time
from dataclasses import dataclass

from baseline.memory import Architecture
from baseline.record import build_baseline_record, measure_surface
from baseline.replay import replay_baseline
from benchmarks.failures.case import CaseInput, run_case
from projection.engine import Engine
from projection.replay import ReplayTools, Verdict


@dataclass(frozen=True, slots=True)
class ReplayCost:
    """One case recorded and replayed at R3. Calls, tokens and bytes include the decision's; replay_s is wall clock."""

    architecture: str
    num_events: int
    num_calls: int
    num_prompt_tokens: int
    num_completion_tokens: int
    audit_bytes: int
    replay_verdict: Verdict
    replay_s: float


def measure_replay_cost(architecture: Architecture, engine: Engine, case: CaseInput) -> ReplayCost:
    """Record a case, replay it in full, and count."""
    run = run_case(architecture, engine, case)
    record = build_baseline_record(run, architecture, engine, case.events, case.task, case.profile)
    surface = measure_surface(record, engine.tokenizer)
    started = time.perf_counter()
    tools = ReplayTools(lambda: engine.tokenizer, lambda: engine)
    report = replay_baseline(record, architecture, case.events, "R3", tools)
    calls = record.content.calls
    return ReplayCost(
        architecture=architecture.name,
        num_events=len(case.events),
        num_calls=len(calls),
        num_prompt_tokens=sum(len(call.prompt_token_ids) for call in calls),
        num_completion_tokens=sum(len(call.token_ids) for call in calls),
        audit_bytes=surface.prompt_bytes + surface.completion_bytes,
        replay_verdict=report.verdict,
        replay_s=round(time.perf_counter() - started, 3),
    )
