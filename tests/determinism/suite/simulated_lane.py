"""A lane without a model: the scripted engine as an endpoint that counts what it is asked, and all that goes beside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import TracebackType
from typing import Any, Self

from determinism.endpoints.endpoint import Endpoint, NotPossibleError, Request
from determinism.suite.arena import Effort
from determinism.suite.checks import CHECKS, Beside
from determinism.suite.controls import CONTROLS, Control
from determinism.suite.faults import PureFault, RealFault
from determinism.suite.run import LanePlan
from determinism.workloads import Workload, choose_workloads
from inference.counters import Counters
from inference.scripted_engine import ScriptedEngine, ScriptedTokenizer
from projection.engine import Completion, Score
from projection.errors import EngineError

LABEL = "simulated"
WORKLOADS = ("mortgage-projection-short", "mortgage-decision-short-free", "claim-decision-short-free")
EVERYTHING = frozenset(Counters.__dataclass_fields__)
FEATURES = frozenset({"num_draft_tokens", "num_cached_tokens"})
PURE_CONTROLS = tuple(control for control in CONTROLS if isinstance(control.fault, PureFault))


class SimulatedEndpoint:
    """Says scripts; computes no batch, but counts as if it did.

    witnesses: the counters that move. is_counting: whether it has any. dies_after: calls that are answered before it
    ends. gives_up: whether a neighbour can be given up before it ends.
    """

    def __init__(
        self,
        place: str,
        identity: str | None = None,
        witnesses: frozenset[str] = EVERYTHING,
        is_counting: bool = True,
        dies_after: int | None = None,
        gives_up: bool = True,
    ) -> None:
        self._engine = ScriptedEngine()
        self.place = place
        self.identity = identity or self._engine.identity.digest
        self._witnesses = witnesses
        self._counted: dict[str, int] = dict.fromkeys(EVERYTHING, 0)
        self._calls_left = dies_after
        self.num_forgotten = 0
        self._is_counting, self._gives_up = is_counting, gives_up

    def ask(self, requests: Sequence[Request]) -> list[Completion]:
        return self._said(requests)

    def ask_late(self, first: Request, later: Sequence[Request]) -> list[Completion]:
        return self._said([first, *later])

    def ask_beside_abort(self, request: Request, victim: Request) -> tuple[Completion, bool]:
        return self._said([request, victim])[0], self._gives_up

    def score(self, request: Request, token_ids: Sequence[int]) -> Score:
        self._begin()
        return self._engine.score(request.prompt_token_ids, token_ids, request.grammar)

    def forget(self) -> None:
        self.num_forgotten += 1

    def counters(self) -> Counters | None:
        return Counters(**self._counted) if self._is_counting else None

    def reset_counters(self) -> None:
        self._counted["max_num_running"] = 0

    def _said(self, requests: Sequence[Request]) -> list[Completion]:
        self._begin()
        said = [self._engine.generate(r.prompt_token_ids, r.max_tokens, r.grammar) for r in requests]
        longest = max(len(completion.token_ids) for completion in said)
        for name in self._witnesses & EVERYTHING:
            self._counted[name] += {"num_steps": longest + 1, "max_num_running": 0}.get(name, 1)
        if "max_num_running" in self._witnesses:
            self._counted["max_num_running"] = max(self._counted["max_num_running"], len(requests))
        return said

    def _begin(self) -> None:
        if self._calls_left is not None:
            self._calls_left -= 1
            if self._calls_left < 0:
                raise EngineError("the simulated engine ended")


Make = Callable[[str], Endpoint]


def make_plain(place: str, **changes: Any) -> SimulatedEndpoint:
    """An endpoint that neither guesses ahead nor caches, as the one under test does."""
    return SimulatedEndpoint(place, **{"witnesses": EVERYTHING - FEATURES, **changes})


@dataclass
class SimulatedLane:
    """Opens simulated endpoints. make_main, make_beside: from a place. num_opened: of each kind."""

    make_main: Make = make_plain
    make_beside: Make = SimulatedEndpoint
    label: str = LABEL

    def __post_init__(self) -> None:
        self.tokenizer = ScriptedTokenizer()
        self.num_opened: dict[str, int] = {}

    def open(self) -> Endpoint:
        self._count("main")
        return self.make_main("main")

    def open_beside(self, beside: Beside, requests: Sequence[Request]) -> Mapping[str, Endpoint]:
        self._count(beside)
        match beside:
            case "routes":
                names: tuple[str, ...] = ("completions", "completions, whole", "chat", "chat, streamed")
            case "second server":
                names = ("server 1", "server 2")
            case _:
                names = (beside,)
        return {name: self.make_beside(f"{name} {self.num_opened[beside]}") for name in names}

    def open_faulty(self, fault: RealFault) -> Endpoint:
        raise NotPossibleError(f"there is no {fault} without a model")

    def _count(self, what: str) -> None:
        self.num_opened[what] = self.num_opened.get(what, 0) + 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass


@cache
def load() -> tuple[Workload, ...]:
    return tuple(choose_workloads(WORKLOADS))


def make_plan(
    lane: SimulatedLane | None = None,
    checks: Sequence[str] | None = None,
    controls: Sequence[Control] = (),
    **changes: Any,
) -> LanePlan:
    """All checks on three workloads, without controls."""
    opened = lane or SimulatedLane()
    plan = LanePlan(
        label=opened.label,
        open=lambda: opened,
        checks=tuple(check for check in CHECKS if checks is None or check.name in checks),
        controls=tuple(controls),
        workloads=load(),
        company=(),
        effort=Effort(max_tokens=24, batch_sizes=(2, 8), width=3),
    )
    return replace(plan, **changes)
