"""The rows of results folders as typed values, and the averages that every table begins with.

A row that was refused or failed counts with its scores of 0. Only scores that are null (no citation to judge, no value
to judge, no memory at all) are left out of their mean, whose table says how many rows had one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, PlainValidator, TypeAdapter, ValidationError

from benchmarks.experiments.answers import Status, verify_rows
from benchmarks.experiments.runner import COST, FAILURES, JUDGE, QUALITY, SCALING, SCHEMA_VERSION
from benchmarks.scorers.axes import AxisScores
from benchmarks.scorers.citations import CitationScores
from projection.errors import RequestError
from reporting.journal import JournalError, Recorded, read_journal

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
SCHEMAS = frozenset({QUALITY, COST, SCALING, JUDGE, FAILURES})
BASE = "dpm"  # the architecture that the others are compared with


def parse_fraction(value: object) -> Fraction:
    """A fraction as rows hold it, such as "7/11".

    Raises:
        ValueError: anything else, a zero below the line included.
    """
    if not isinstance(value, str) or not _FRACTION.fullmatch(value):
        raise ValueError('this is no fraction such as "7/11"')
    return Fraction(value)


def parse_score(value: object) -> Fraction:
    """A score as rows hold it: a fraction in [0, 1].

    Raises:
        ValueError: anything else.
    """
    score = parse_fraction(value)
    if score > 1:
        raise ValueError("a score is not in [0, 1]")
    return score


def _parse_optional_score(value: object) -> Fraction | None:
    return None if value is None else parse_score(value)


_FRACTION = re.compile("[0-9]{1,40}(/0*[1-9][0-9]{0,40})?")
_Count = Annotated[int, Field(ge=0, strict=True)]
_Seconds = Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]


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
    num_events: _Count
    trajectory_chars: _Count
    ratio: Annotated[Fraction, PlainValidator(parse_fraction)]
    budget_chars: Annotated[int, Field(ge=1, strict=True)]
    status: Status
    reason: str | None
    scores: Mapping[str, Annotated[Fraction | None, PlainValidator(_parse_optional_score)]]
    counts: Mapping[str, _Count]
    times: Mapping[str, _Seconds] = field(default_factory=dict)
    num_cached_tokens: _Count | None = None

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
        RequestError: a row that this version did not write, of another engine, or under another's key.
    """
    recorded, rows = read_rows(directory, schema)
    rows.sort(key=lambda row: (row.size, row.architecture, -row.ratio, row.domain, row.case_id, row.num_events))
    return Results(str(directory), recorded.parameters, tuple(rows))


def read_run(directory: Path, schema: str) -> Recorded:
    """The parameters and rows of a results folder, whose header names an engine.

    Raises:
        NotFoundError, JournalError: no results, results of another experiment or version, or damage.
        RequestError: a header that this version did not write.
    """
    recorded = read_journal(directory, schema=schema, version=SCHEMA_VERSION)
    match recorded.parameters:
        case {"engine_identity": str(), "identity": dict()}:
            return recorded
        case _:
            raise _strange_header(directory, "engine_identity and identity")


def _strange_header(directory: Path, names: str) -> RequestError:
    return RequestError(
        f"the header of {directory} is none that this version writes (it lacks {names}): restore a copy, or run the "
        "experiment again in another folder",
        directory=str(directory),
    )


def read_rows(directory: Path, schema: str) -> tuple[Recorded, list[ResultRow]]:
    """The rows of a results folder as they were written, and as typed values in the same order; raises as
    `read_results`."""
    recorded = read_run(directory, schema)
    if not {"template_digest", "scorer_version"} <= recorded.parameters.keys():
        raise _strange_header(directory, "template_digest or scorer_version")
    times = frozenset[str]() if schema == QUALITY else _TIMES
    rows = [_row(directory, key, row, times) for key, row in recorded.rows.items()]
    verify_rows(directory, recorded)
    return recorded, rows


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


def _row(directory: Path, key: str, row: Mapping[str, Any], times: frozenset[str]) -> ResultRow:
    try:
        found = _ROW.validate_python(row)
    except ValidationError as exc:
        first = exc.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    else:
        nulls = {name for name, score in found.scores.items() if score is None} - _NULLABLE
        missing = (_SCORES - found.scores.keys()) | (_COUNTS - found.counts.keys()) | (times - found.times.keys())
        if not nulls and not missing:
            return replace(found, scores={**_LATER, **found.scores})
        problem = f"no {', '.join(sorted(nulls | missing))}"
    raise RequestError(
        f"row {key!r} of {directory} is no row that this version writes ({problem}): run the experiment again",
        key=key,
        directory=str(directory),
    )


_LATER: Mapping[str, Fraction | None] = {"frp_memo": None}
"""Scores that rows were not always given; `dpm bench rescore` gives them to older rows."""

_SCORES = {field.name for field in (*fields(AxisScores), *fields(CitationScores))} - {"recovered", *_LATER}
_NULLABLE = {"citation_precision", "hallucinated_rate", *_LATER}
_COUNTS = {
    "num_calls",
    "num_prompt_tokens",
    "num_completion_tokens",
    "num_prompt_bytes",
    "num_completion_bytes",
    "num_memory_calls",
    "num_over_budget",
    "num_on_token_limit",
}
_TIMES = frozenset({"wall_s", "engine_s"})
_ROW = TypeAdapter(ResultRow)
