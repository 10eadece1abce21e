"""Order sensitivity: the same events in two legal orders of arrival, under any memory architecture (paper, section 10).

Two answers to concurrent tool calls may arrive either way. A running summary then takes another path, and what its
model dropped on one path and kept on the other is the difference. A projection is not blind to the order either: its
log, hence its prompt, lists the events as they arrived, so a model may answer differently. What does not depend on the
order is what it can choose from: nothing was dropped before the decision, and `offered_values` is the same set.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from baseline.memory import Architecture
from baseline.run import ArchitectureRun
from benchmarks.failures.case import CaseInput, run_case, swap_arrivals
from projection.anchors import find_anchors
from projection.candidates import field_anchors
from projection.engine import Engine
from projection.events import LoggedEvent
from projection.quotes import find_quotes
from projection.task import Task
from projection.view import Memory

_CITED = re.compile(r"\[([0-9]+)\]")


@dataclass(frozen=True, slots=True)
class OrderSensitivity:
    """What a memory and its decision owe to the order of two events.

    num_same_prompts: calls, the decision's included, whose prompt was the same in both orders.
    is_same_memory: byte for byte, citations renumbered. values_lost: values that only one of the two memories holds.
    """

    architecture: str
    num_calls: int
    num_same_prompts: int
    is_same_memory: bool
    values_lost: tuple[str, ...]
    outcomes: tuple[str, str]
    is_same_decision: bool


def measure_order(architecture: Architecture, engine: Engine, case: CaseInput, position: int) -> OrderSensitivity:
    """Decide a case twice: as it is, and with the events at `position` and `position` + 1 the other way round."""
    swapped = replace(case, events=swap_arrivals(case.events, position))
    one, other = (run_case(architecture, engine, order) for order in (case, swapped))
    values = [memory_values(run.built.memory) for run in (one, other)]
    return OrderSensitivity(
        architecture=architecture.name,
        num_calls=one.num_calls,
        num_same_prompts=sum(a == b for a, b in zip(_prompts(one), _prompts(other), strict=False)),
        is_same_memory=one.built.text == _renumbered(other.built.text, position),
        values_lost=tuple(sorted(values[0] ^ values[1])),
        outcomes=(one.decision.decision.outcome, other.decision.decision.outcome),
        is_same_decision=_reasons(one) == _reasons(other),
    )


def offered_values(events: Sequence[LoggedEvent], task: Task) -> dict[str, frozenset[str]]:
    """What a projection can choose from where its slots are not narrowed: values by field, and sentences (`quotes`)."""
    offered = {
        field.name: frozenset(anchor.value for event in events for anchor in field_anchors(field, event))
        for field in task.fields
    }
    return {**offered, "quotes": frozenset(quote for event in events for quote in find_quotes(event.text))}


def memory_values(memory: Memory) -> frozenset[str]:
    """The typed values that a memory holds."""
    return frozenset(anchor.value for text in memory.value_texts for anchor in find_anchors(_CITED.sub("", text)))


def _prompts(run: ArchitectureRun) -> list[tuple[int, ...]]:
    return [*(call.prompt_token_ids for call in run.built.calls), run.decision.call.prompt_token_ids]


def _reasons(run: ArchitectureRun) -> tuple[str, list[str]]:
    return run.decision.decision.outcome, [reason.code for reason in run.decision.decision.reasons]


def _renumbered(text: str, position: int) -> str:
    """The text with the citations of two swapped events exchanged."""
    other = {str(position): str(position + 1), str(position + 1): str(position)}
    return _CITED.sub(lambda match: f"[{other.get(match[1], match[1])}]", text)
