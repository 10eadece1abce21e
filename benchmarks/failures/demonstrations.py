"""The demonstrations as a list of jobs, run one after the other into a results folder that can be continued.

On an engine: what a replay costs, of half the case and of all of it; what the order of two events changes; how many
replays survive; the same on a control that drifts in a known share of its calls; and what a shared cache serves another
tenant. On an uncontrolled server: how many replays survive, of free summaries only, since it takes no grammar of ours.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from baseline.memory import Architecture
from baseline.record import baseline_template_digest
from benchmarks.experiments.runner import FAILURES, SCHEMA_VERSION
from benchmarks.failures.cache import Key, Tenant, key_by_case, key_by_content, measure_leak
from benchmarks.failures.case import (
    CONCURRENT_AT,
    CaseInput,
    demonstration_case,
    long_survival_case,
    other_tenant_s_case,
)
from benchmarks.failures.cost import measure_replay_cost
from benchmarks.failures.order import measure_order
from benchmarks.failures.survival import DriftingEngine, measure_survival
from benchmarks.metered_engine import MeteredEngine
from projection.engine import Engine, EngineIdentity
from projection.entry import Stream
from projection.view_grammar import Profile
from reporting.journal import Journal, Recorded

DRIFT_RATE = 0.1  # of the control
NUM_REPLAYS, NUM_CONTROL_REPLAYS, NUM_UNCONTROLLED_REPLAYS = 3, 200, 16
SECONDS_BETWEEN_LINES = 5.0
PARTS = ("replay_cost_half", "replay_cost", "order", "survival", "survival_of_the_control", "shared_cache")
CACHE_KEYS: tuple[Key, ...] = (key_by_case, key_by_content)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One measurement. num_calls: about how many calls of the engine it takes, for the time left."""

    key: str
    num_calls: int
    run: Callable[[Engine], Any]


def plan_pinned(
    architectures: Sequence[Architecture],
    control_engine: Engine,
    profile: Profile,
    num_control_replays: int = NUM_CONTROL_REPLAYS,
) -> list[Demonstration]:
    """All demonstrations; `control_engine` is what the drifting control wraps."""
    case = demonstration_case(profile)
    planned = []
    for architecture in architectures:
        planned += _of_architecture(architecture, case, control_engine, num_control_replays)
    first = Tenant(Stream("tenant-a", "LN-7"), case)
    second = Tenant(Stream("tenant-b", "LN-7"), other_tenant_s_case(profile))
    num_folds = 3 * len(case.events)
    for key in CACHE_KEYS:
        run = partial(measure_leak, key, first=first, second=second)
        planned.append(Demonstration(f"shared_cache/{key.__name__}", num_folds, run))
    return sorted(planned, key=lambda found: PARTS.index(found.key.partition("/")[0]))


def plan_uncontrolled(
    architectures: Sequence[Architecture], profile: Profile, num_replays: int, num_events: int | None
) -> list[Demonstration]:
    """Survival alone. num_events: of a longer case than the demonstration's; None takes that."""
    case = demonstration_case(profile) if num_events is None else long_survival_case(num_events, profile)
    return [_survival(architecture, case, num_replays) for architecture in architectures]


def run_parameters(identity: EngineIdentity, profile: Profile) -> dict[str, Any]:
    """What must be equal for rows to stand in one folder.

    identity: what is known of the engine; of an uncontrolled server more than the engine itself can say.
    """
    return {
        "engine_identity": identity.digest,
        "identity": dict(identity.fields),
        "slot_candidates": profile.slot_candidates,
        "template_digest": baseline_template_digest(),
    }


def run_demonstrations(
    planned: Sequence[Demonstration],
    engine: Engine,
    parameters: Mapping[str, Any],
    directory: Path,
    say: Callable[[str], None],
) -> Recorded:
    """Run what has no row yet.

    parameters: as `run_parameters`.

    Raises:
        JournalError: the folder holds demonstrations on another engine or of other prompts, or is in use.
        EngineError: the engine failed; what was measured is kept.
    """
    with Journal.open(directory, schema=FAILURES, version=SCHEMA_VERSION, parameters=parameters) as journal:
        left = [one for one in planned if not journal.is_done(one.key)]
        countdown = Countdown(sum(one.num_calls for one in left), say)
        counted = MeteredEngine(engine, countdown.on_call)
        for one in left:
            countdown.begin(one.key, one.num_calls)
            journal.append(one.key, asdict(one.run(counted)))
        return Recorded(journal.parameters, journal.rows)


class Countdown:
    """Says now and then what runs and about how long the rest takes, by the calls that were made."""

    def __init__(self, num_calls: int, say: Callable[[str], None]) -> None:
        self._num_calls, self._say = num_calls, say
        self._started = self._last = time.monotonic()
        self._lock = threading.Lock()
        self._name, self._num_before, self._num_done, self._num_here = "", 0, 0, 0

    def begin(self, name: str, num_calls: int) -> None:
        """The next demonstration; the one before is over, however many calls it took."""
        self._num_before, self._num_done = self._num_before + self._num_here, 0
        self._name, self._num_here = name, num_calls
        self._say(f"{name}: {self._left()}")

    def on_call(self) -> None:
        with self._lock:
            self._num_done = min(self._num_done + 1, self._num_here)
            if time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
                self._last = time.monotonic()
                self._say(f"{self._name}: call {self._num_done} of about {self._num_here}, {self._left()}")

    def _left(self) -> str:
        done = self._num_before + self._num_done
        if not done:
            return "time left unknown"
        left_s = (time.monotonic() - self._started) / done * (self._num_calls - done)
        return f"about {left_s:.0f} s left"


def halved(case: CaseInput) -> CaseInput:
    """The first half of a case's events."""
    return replace(case, events=case.events[: len(case.events) // 2])


def _of_architecture(
    architecture: Architecture, case: CaseInput, control: Engine, num_control_replays: int
) -> list[Demonstration]:
    name, half = architecture.name, halved(case)
    num_calls, num_half_calls = (2 * _num_memory_calls(name, len(one.events)) + 2 for one in (case, half))
    return [
        Demonstration(
            f"replay_cost_half/{name}", num_half_calls, partial(measure_replay_cost, architecture, case=half)
        ),
        Demonstration(f"replay_cost/{name}", num_calls, partial(measure_replay_cost, architecture, case=case)),
        Demonstration(
            f"order/{name}", num_calls, partial(measure_order, architecture, case=case, position=CONCURRENT_AT)
        ),
        _survival(architecture, case, NUM_REPLAYS),
        Demonstration(
            f"survival_of_the_control/{name}",
            0,  # of this engine
            lambda _: measure_survival(
                architecture, control, lambda n: DriftingEngine(control, DRIFT_RATE, n), case, num_control_replays
            ),
        ),
    ]


def _survival(architecture: Architecture, case: CaseInput, num_replays: int) -> Demonstration:
    num_calls = (num_replays + 1) * _num_memory_calls(architecture.name, len(case.events))
    return Demonstration(
        f"survival/{architecture.name}/{len(case.events)} events/{num_replays} replays",
        num_calls,
        lambda engine: measure_survival(architecture, engine, lambda _: engine, case, num_replays),
    )


def _num_memory_calls(name: str, num_events: int) -> int:
    if name.startswith("summarize"):
        return num_events
    return 1 if name == "dpm" else 0
