"""One case under one memory architecture: build the memory, then take the decision that all architectures share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baseline.memory import Architecture, BuiltMemory
from projection.decision import DecisionResult, decide
from projection.engine import Engine, Watch, unwatched
from projection.events import LoggedEvent
from projection.task import Task
from projection.view_grammar import Profile


@dataclass(frozen=True, slots=True)
class ArchitectureRun:
    """A memory and the decision made from it."""

    budget_chars: int
    built: BuiltMemory
    decision: DecisionResult

    @property
    def num_calls(self) -> int:
        """Model calls in all, the decision's included."""
        return len(self.built.calls) + 1


def run_architecture(
    architecture: Architecture,
    engine: Engine,
    events: Sequence[LoggedEvent],
    task: Task,
    budget_chars: int,
    profile: Profile,
    watch: Watch = unwatched,
) -> ArchitectureRun:
    """Decide a case from the memory of an architecture. `watch` is told of each call.

    Raises:
        RequestError: no events, a budget or a prompt that does not fit.
        EngineError: the engine failed, or a call under a grammar did not end by itself.
        VerificationError: an answer breaks its grammar.
    """
    built = architecture.build_memory(engine, events, task, budget_chars, profile, watch)
    return ArchitectureRun(budget_chars, built, decide(engine, task, built.memory, watch("decision")))
