"""What replaying one record found, and what many of them come to: the rows and the sum of a run over a log.

Values only. Row members are a contract: they are added to, never renamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

from determinism.replay.cross_identity import CrossIdentity
from determinism.statistics import upper_bound
from determinism.verdict import Verdict, exit_code
from projection.replay import Divergence, Level, ReplayReport

MAX_LISTED = 20
MAX_VALUE_CHARS = 200
MAX_DISAGREEMENTS = 5


class Place(NamedTuple):
    """Where a record lies: its tenant's audit stream, the position there, and its id."""

    tenant_id: str
    position: int
    record_id: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """One record's row. levels: the verdict of each level that was reached.

    because: why it went as far as it did ("level", "near_tie", "sample"). error: why there is no verdict.
    """

    place: Place
    verdict: Verdict
    levels: Mapping[Level, str] = field(default_factory=dict)
    because: str = "level"
    first_divergence: Mapping[str, Any] | None = None
    cross_identity: Mapping[str, Any] | None = None
    error: str | None = None
    wall_s: float = 0.0

    @classmethod
    def unreadable(cls, place: Place, found: Divergence) -> Self:
        """Of an entry that holds no record, or whose stream is broken."""
        return cls(place, "DRIFT", {"R0": "DRIFT"}, first_divergence=_divergence_value(found))

    @classmethod
    def of(cls, place: Place, because: str, report: ReplayReport, across: CrossIdentity | None, wall_s: float) -> Self:
        """Of a replay that came to a verdict."""
        found = None if report.first_divergence is None else _divergence_value(report.first_divergence)
        evidence = None if across is None else cross_identity_value(across, MAX_DISAGREEMENTS)
        return cls(place, report.verdict, dict(report.levels), because, found, evidence, wall_s=wall_s)

    def to_row(self) -> dict[str, Any]:
        """The outcome as a JSON value."""
        members = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "place"}
        return {**self.place._asdict(), **members, "wall_s": round(self.wall_s, 3)}


def _divergence_value(found: Divergence) -> dict[str, Any]:
    """A divergence with its values as text, cut: a value may be a number that JSON lacks, or a whole view."""
    return {
        **{name: getattr(found, name) for name in ("level", "what", "call", "index")},
        "recorded": str(found.recorded)[:MAX_VALUE_CHARS],
        "recomputed": str(found.recomputed)[:MAX_VALUE_CHARS],
        "detail": found.detail[:MAX_VALUE_CHARS],
    }


def cross_identity_value(across: CrossIdentity, max_disagreements: int | None = None) -> dict[str, Any]:
    """Evidence from another engine as a JSON value, with so many of its disagreements."""
    return {
        "engine_identity": across.engine_identity,
        "num_positions": across.num_positions,
        "num_agreeing": across.num_agreeing,
        "num_disagreeing": len(across.disagreements),
        "num_near_ties": across.num_near_ties,
        "disagreements": [asdict(found) for found in across.disagreements[:max_disagreements]],
    }


@dataclass(frozen=True, slots=True)
class Tally:
    """A run in numbers. verdicts: how many records came to each. num_generated: how many went up to R3.

    num_positions, num_agreeing, num_near_ties: of the records of another engine, what R2 on this one found.
    listed: rows of the first records that did not pass, at most MAX_LISTED.
    """

    verdicts: Mapping[Verdict, int] = field(default_factory=dict)
    num_generated: int = 0
    num_positions: int = 0
    num_agreeing: int = 0
    num_near_ties: int = 0
    listed: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of_rows(cls, rows: Iterable[Mapping[str, Any]]) -> Self:
        """Count the rows of one segment."""
        verdicts: dict[Verdict, int] = {}
        sums = dict.fromkeys(("num_generated", "num_positions", "num_agreeing", "num_near_ties"), 0)
        listed: list[Mapping[str, Any]] = []
        for row in rows:
            verdicts[row["verdict"]] = verdicts.get(row["verdict"], 0) + 1
            sums["num_generated"] += "R3" in row["levels"]
            across = row["cross_identity"] or {}
            for name in ("num_positions", "num_agreeing", "num_near_ties"):
                sums[name] += across.get(name, 0)
            if row["verdict"] != "PASS" and len(listed) < MAX_LISTED:
                listed.append(row)
        return cls(verdicts=verdicts, listed=tuple(listed), **sums)

    def __add__(self, other: Tally) -> Tally:
        names = {*self.verdicts, *other.verdicts}
        return Tally(
            {name: self.verdicts.get(name, 0) + other.verdicts.get(name, 0) for name in sorted(names)},
            self.num_generated + other.num_generated,
            self.num_positions + other.num_positions,
            self.num_agreeing + other.num_agreeing,
            self.num_near_ties + other.num_near_ties,
            (*self.listed, *other.listed)[:MAX_LISTED],
        )

    @property
    def num_records(self) -> int:
        return sum(self.verdicts.values())

    @property
    def num_comparable(self) -> int:
        """Records that came to a verdict on their own engine."""
        return self.verdicts.get("PASS", 0) + self.verdicts.get("DRIFT", 0)

    @property
    def drift_rate_bound(self) -> float | None:
        """Exact upper 95% bound on the share of records that drift; None where none could be compared."""
        if not self.num_comparable:
            return None
        return upper_bound(self.verdicts.get("DRIFT", 0), self.num_comparable)

    @property
    def exit_code(self) -> int:
        """0 all hold; 1 any drift; 4 any that the engine failed on; 3 any incomparable; 5 no record."""
        return exit_code(self.verdicts)

    def to_value(self) -> dict[str, Any]:
        """The tally as a JSON value."""
        return {**asdict(self), "listed": list(self.listed)}
