"""The rows of results folders as typed values, and the averages that every table begins with.

A row that was refused or failed counts with its scores of 0. Only scores that are null (no citation to judge, no value
to judge, no memory at all) are left out of their mean, whose table says how many rows had one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.experiments.answers import Status
from benchmarks.experiments.runner import COST, FAILURES, JUDGE, QUALITY, SCALING, SCHEMA_VERSION
from projection.errors import RequestError
from reporting.journal import JournalError, read_journal

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
SCHEMAS = frozenset({QUALITY, COST, SCALING, JUDGE, FAILURES})
BASE = "dpm"  # the architecture that the others are compared with


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One row of an experiment.

    scores: by name, None where there was nothing to judge. times: seconds, by name; only where time was taken.
    num_cached_tokens: prompt tokens that the prefix cache spared the engine; None where the engine does not tell.
    """

    case_id: str
    case_digest: str
    domain: str
    size: str
    variant: str
    seed: int
    engine_identity: str
    architecture: str
    num_events: int
    trajectory_chars: int
    ratio: Fraction
    budget_chars: int
    status: Status
    reason: str | None
    scores: Mapping[str, Fraction | None]
    counts: Mapping[str, int]
    times: Mapping[str, float]
    num_cached_tokens: int | None

    @property
    def pair(self) -> tuple[str, str]:
        """What two architectures must share for their rows to be a pair."""
        return self.case_id, self.case_digest


@dataclass(frozen=True, slots=True)
class Results:
    """The rows of one folder, and the parameters of its run."""

    source: str
    parameters: Mapping[str, Any]
    rows: tuple[ResultRow, ...]

    @property
    def engine_identity(self) -> str:
        return str(self.parameters["engine_identity"])


def read_results(directory: Path, schema: str) -> Results:
    """Read a results folder.

    Raises:
        NotFoundError, JournalError: no results, results of another experiment or version, or damage.
        RequestError: a row that this version did not write.
    """
    recorded = read_journal(directory, schema=schema, version=SCHEMA_VERSION)
    rows = [_row(directory, key, row) for key, row in recorded.rows.items()]
    rows.sort(key=lambda row: (row.size, row.architecture, -row.ratio, row.domain, row.case_id, row.num_events))
    return Results(str(directory), recorded.parameters, tuple(rows))


def find_schema(directory: Path) -> str:
    """What a results folder holds rows of.

    Raises:
        NotFoundError: no results. JournalError: no results of ours, or of another version.
    """
    try:
        read_journal(directory, schema=QUALITY, version=SCHEMA_VERSION)
    except JournalError as exc:
        found = exc.fields.get("found")
        if isinstance(found, list) and found[0] in SCHEMAS and found[1] == SCHEMA_VERSION:
            return str(found[0])
        raise
    return QUALITY


def merge_rows(results: Sequence[Results]) -> tuple[ResultRow, ...]:
    """The rows of several folders of one experiment, for one table.

    Raises:
        RequestError: rows of two engines, or one answer in two folders.
    """
    identities = {result.engine_identity: result.source for result in results}
    if len(identities) > 1:
        places = "; ".join(f"{source}: {identity[:12]}" for identity, source in identities.items())
        raise RequestError(
            f"these results are of different engines and cannot stand in one table ({places}): report them one by one"
        )
    seen: dict[tuple[object, ...], str] = {}
    for result in results:
        for row in result.rows:
            key = (*row.pair, row.architecture, row.ratio)
            if seen.setdefault(key, result.source) != result.source:
                raise RequestError(
                    f"case {row.case_id} under {row.architecture} at {row.ratio} stands in {seen[key]} and in "
                    f"{result.source}: name only one of them"
                )
    return tuple(row for result in results for row in result.rows)


def group_by(rows: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The rows by a key, in the order of first appearance."""
    groups: dict[K, list[T]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return dict(groups)


def mean_score(rows: Sequence[ResultRow], name: str) -> float | None:
    """The mean of a score over the rows that have one; None where none has.

    A score that older rows were not given has a mean only where every row has it.
    """
    found = [score for row in rows if (score := row.scores[name]) is not None]
    if not found or (name in _LATER and len(found) < len(rows)):
        return None
    return float(sum(found, Fraction(0)) / len(found))


def mean_count(rows: Sequence[ResultRow], name: str) -> float:
    """The mean of a count."""
    return sum(row.counts[name] for row in rows) / len(rows)


def count_range(rows: Sequence[ResultRow], name: str) -> str:
    """The least and the greatest of a count, such as "82-96"."""
    counts = sorted(row.counts[name] for row in rows)
    return f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]}-{counts[-1]}"


def ordered_architectures(rows: Iterable[ResultRow]) -> list[str]:
    """The architectures of the rows: DPM first, the others by name."""
    return sorted({row.architecture for row in rows}, key=lambda name: (name != BASE, name))


def _row(directory: Path, key: str, row: Mapping[str, Any]) -> ResultRow:
    try:
        return ResultRow(
            **{name: row[name] for name in _PLAIN},
            ratio=Fraction(row["ratio"]),
            scores={**_LATER, **{n: None if score is None else Fraction(score) for n, score in row["scores"].items()}},
            counts=dict(row["counts"]),
            times=dict(row.get("times", {})),
            num_cached_tokens=row.get("num_cached_tokens"),
        )
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as exc:
        raise RequestError(
            f"row {key!r} of {directory} is no row that this version writes ({exc!r}): run the experiment again",
            key=key,
            directory=str(directory),
        ) from exc


_LATER: Mapping[str, Fraction | None] = {"frp_memo": None}
"""Scores that rows were not always given; `dpm bench rescore` gives them to older rows."""

_PLAIN = (
    "case_id",
    "case_digest",
    "domain",
    "size",
    "variant",
    "seed",
    "engine_identity",
    "architecture",
    "num_events",
    "trajectory_chars",
    "budget_chars",
    "status",
    "reason",
)
