"""What a comparison asks: which lanes, which cases, how long the answers are, how often, and beside how much traffic.

A lane is one way to reach a model: the pinned engine, an uncontrolled server over one protocol in one dtype, a live
API. All lanes are asked the same questions, freely, up to the same numbers of tokens. In each cell (lane, case, length)
the first answer is asked for alone and is the reference; the others are asked for beside strangers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from determinism.compare.live_surface import Question
from determinism.workloads import examples_dir
from inference.live_models import PROVIDERS, Provider
from inference.uncontrolled_server import Dtype
from projection.errors import RequestError
from projection.events import numbered
from projection.ingest import parse_events
from projection.task import parse_task

Route = Literal["messages", "chat"]
PROVIDER_OF: dict[Route, Provider] = {"messages": "anthropic", "chat": "openai"}
CASES = ("mortgage", "claim")
PINNED = "pinned"


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole comparison; every field must be equal for a run to be continued.

    num_replays: beside the reference, in each cell. lengths: max_tokens of the answers. num_strangers: in flight beside
    the replays. width: replays at once. live: "provider:model"; None asks no live API.
    """

    model: str
    num_replays: int
    lengths: tuple[int, ...]
    cases: tuple[str, ...] = CASES
    pinned: bool = True
    dtypes: tuple[Dtype, ...] = ("float32", "bfloat16")
    routes: tuple[Route, ...] = ("messages", "chat")
    live: str | None = None
    live_url: str | None = None
    num_strangers: int = 2
    width: int = 6
    num_threads: int = 2
    compile: bool = True
    budget_chars: int = 1338

    def parameters(self) -> dict[str, Any]:
        """As a JSON value."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @property
    def lanes(self) -> list[str]:
        """Names of the lanes, in the order they are run."""
        uncontrolled = [uncontrolled_name(dtype, route) for dtype in self.dtypes for route in self.routes]
        return [*([PINNED] if self.pinned else []), *uncontrolled, *([live_name(self.live)] if self.live else [])]

    def cells(self, lane: str) -> Iterator[CellPlan]:
        """Every cell of a lane, the short answers first."""
        for length in self.lengths:
            for case in self.cases:
                yield CellPlan(lane, case, length, self.num_replays)

    def check(self) -> None:
        """Raises:
        RequestError: nothing would be compared.
        """
        if not self.lanes:
            raise RequestError("no lane is asked for: there is nothing to compare")
        unknown = sorted({*self.cases} - {*CASES})
        if unknown or not self.cases:
            raise RequestError(f"there is no case {', '.join(unknown) or 'named'}; choose {', '.join(CASES)}")
        if not self.lengths or min(self.lengths) < 1 or len({*self.lengths}) < len(self.lengths):
            raise RequestError("the lengths must be different numbers of tokens, each 1 or more")


@dataclass(frozen=True, slots=True)
class CellPlan:
    """One cell. Replay 0 is the reference."""

    lane: str
    case: str
    max_tokens: int
    num_replays: int

    def key(self, replay: int) -> str:
        """The key of a replay's row."""
        return f"{self.lane} | {self.case} | {self.max_tokens} | {replay}"

    @property
    def keys(self) -> list[str]:
        return [self.key(replay) for replay in range(self.num_replays + 1)]


def uncontrolled_name(dtype: Dtype, route: Route) -> str:
    return f"uncontrolled {dtype} {route}"


def live_name(live: str) -> str:
    return f"live {live}"


def parse_live(live: str) -> tuple[Provider, str]:
    """Provider and model of "provider:model".

    Raises:
        RequestError: it is not of that form, or the provider is unknown.
    """
    provider, _, model = live.partition(":")
    for known in PROVIDERS:
        if provider == known and model:
            return known, model
    raise RequestError(f"--live takes provider:model with the provider {' or '.join(PROVIDERS)}, not {live!r}")


def load_questions(plan: Plan) -> dict[str, Question]:
    """The cases of a plan, by name.

    Raises:
        NotFoundError: the examples are not here.
    """
    return {case: _read(case, plan.budget_chars) for case in plan.cases}


def load_strangers(plan: Plan) -> list[Question]:
    """What other people ask about: all the cases."""
    return [_read(case, plan.budget_chars) for case in CASES]


def _read(case: str, budget_chars: int) -> Question:
    folder = examples_dir() / case
    parsed = parse_events((folder / "events.jsonl").read_bytes(), source_name=f"{case}/events.jsonl")
    events = numbered(parsed.events)
    return Question(case, events, parse_task((folder / "task.yaml").read_bytes(), f"{case}/task.yaml"), budget_chars)
