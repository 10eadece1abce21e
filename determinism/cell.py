"""A cell: what one check found on one workload of one engine. The value that journals, reports and gates share.

One cell is one JSON line. Equal surfaces stand once; each replay names its surface by its place in the list. The first
replay is the reference, and every other one is a comparison with it. A cell with a `control` was made with a fault put
in on purpose, and holds when its verdict is the expected DRIFT.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from determinism.surface import Difference, Surface, first_difference
from determinism.verdict import Verdict
from projection.errors import VerificationError

SchemaVersion = Literal["dpm/determinism-cell/v1"]
SCHEMA_VERSION: SchemaVersion = "dpm/determinism-cell/v1"


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CellKey(NamedTuple):
    """What a cell is about; a results folder holds one cell of a key."""

    engine: str
    check: str
    workload: str
    control: str | None


class _Value(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Replay(_Value):
    """One answer that was asked for.

    label: the circumstances, for a person ("batch of 8, place 3"). surface: its place in the cell's `surfaces`.
    """

    label: str
    surface: Annotated[int, Field(ge=0)]
    wall_s: Seconds


class Cell(_Value):
    """Everything that one check found.

    engine: what was tested, in words ("vllm smollm2-135m-instruct"). engine_identity: its digest.
    control: the name of the fault; None is the engine as it is. expected: the verdict of an engine that keeps its word.
    reason: why, for a person; never empty unless the verdict is PASS.
    evidence: what shows that the check was not vacuous (`max_num_running`, `num_preemptions`, ...).
    """

    schema_version: SchemaVersion = SCHEMA_VERSION
    engine: str
    engine_identity: str
    check: str
    workload: str
    control: str | None = None
    expected: Verdict = "PASS"
    verdict: Verdict
    reason: str = ""
    surfaces: tuple[Surface, ...] = ()
    replays: tuple[Replay, ...] = ()
    evidence: dict[str, JsonValue] = {}
    wall_s: Seconds

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if {replay.surface for replay in self.replays} != set(range(len(self.surfaces))):
            raise ValueError("replays and surfaces do not belong together")
        if len({surface.sha256 for surface in self.surfaces}) < len(self.surfaces):
            raise ValueError("a surface stands twice")
        if (self.verdict == "DRIFT") != (len(self.surfaces) > 1):
            raise ValueError(f"the verdict is {self.verdict}, and there are {len(self.surfaces)} different surfaces")
        if not all(0 <= number < math.inf for number in _numbers(self.evidence)):
            raise ValueError("evidence holds a number that is negative or not finite")
        return self

    @property
    def key(self) -> CellKey:
        return CellKey(self.engine, self.check, self.workload, self.control)

    @property
    def holds(self) -> bool:
        """Whether the verdict is the expected one."""
        return self.verdict == self.expected

    @property
    def num_replays(self) -> int:
        return len(self.replays)

    @property
    def num_comparisons(self) -> int:
        """Replays that were held against the reference."""
        return max(0, len(self.replays) - 1)

    @property
    def num_drifted(self) -> int:
        """Comparisons that found other bits."""
        return sum(replay.surface != 0 for replay in self.replays)

    def surface_of(self, replay: Replay) -> Surface:
        return self.surfaces[replay.surface]

    @property
    def first_drifted(self) -> Replay | None:
        """The first replay that found other bits."""
        return next((replay for replay in self.replays if replay.surface != 0), None)

    @property
    def first_difference(self) -> Difference | None:
        """Where that replay parts from the reference."""
        drifted = self.first_drifted
        return None if drifted is None else first_difference(self.surfaces[0], self.surface_of(drifted))

    def to_value(self) -> dict[str, Any]:
        """The cell as a JSON value."""
        return self.model_dump(mode="json")

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Self:
        """Read a JSON value again.

        Raises:
            VerificationError: it is no cell of this schema, or was changed.
        """
        try:
            return cls.model_validate_json(json.dumps(value))
        except ValidationError as exc:
            problem = exc.errors(include_url=False, include_input=False)[0]
            place = "".join(f"{part}: " for part in problem["loc"])
            message = f"this is no cell of a determinism suite: {place}{problem['msg'].removeprefix('Value error, ')}"
            raise VerificationError(message) from exc


def _numbers(value: JsonValue) -> Iterator[float]:
    """All numbers in a JSON value."""
    match value:
        case int() | float():
            yield value
        case dict():
            yield from (number for member in value.values() for number in _numbers(member))
        case list():
            yield from (number for member in value for number in _numbers(member))


class Observed(NamedTuple):
    """One replay as it was made: its circumstances, what it showed, and how long it took."""

    label: str
    surface: Surface
    wall_s: float


def tally(observed: Iterable[Observed]) -> tuple[tuple[Surface, ...], tuple[Replay, ...]]:
    """Distinct surfaces in the order they appeared, and the replays that point at them."""
    places: dict[str, int] = {}
    surfaces: list[Surface] = []
    replays = []
    for label, surface, wall_s in observed:
        place = places.setdefault(surface.xxh3, len(surfaces))
        if place == len(surfaces):
            surfaces.append(surface)
        replays.append(Replay(label=label, surface=place, wall_s=wall_s))
    return tuple(surfaces), tuple(replays)
