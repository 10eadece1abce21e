"""Which records of a log are replayed, and how far: the plan of a run over all of it, and its jobs.

Promises that a plan is a pure function of a record and its id, so that a run which continues decides as before, and
that jobs are read one at a time, however long the log is. Asks no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal, Self

from determinism.near_ties import Limit, has_near_tie
from determinism.replay.outcome import Outcome, Place
from projection.canonical import tagged_digest
from projection.case import SealedCase, read_sealed_case
from projection.entry import Entry, Stream, parse_header
from projection.errors import RequestError, VerificationError
from projection.ingest import time_problem
from projection.log import Store
from projection.record import AuditRecord
from projection.replay import Divergence, Level

SAMPLE_TAG = "dpm/replay-sample/v1"
Reason = Literal["level", "near_tie", "sample"]
"""Why a record is replayed as far as it is: the plan's level for all, or one of the two reasons for R3."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked of every record.

    level: how far all go. From R2 on, a record with a near-tie within `limit`, and one record in `sample`, chosen by
        the hash of its id and `seed`, goes up to R3.
    since: RFC 3339; earlier records are passed by. tenant_id: whose records; None is everybody's.
    """

    level: Level = "R2"
    since: str | None = None
    tenant_id: str | None = None
    sample: int | None = None
    seed: int = 0
    limit: Limit = field(default_factory=Limit)

    def __post_init__(self) -> None:
        if self.since is not None and (problem := time_problem(self.since)):
            raise RequestError(f"the time {self.since!r} {problem}", since=self.since)
        if self.sample is not None and self.sample < 1:
            raise RequestError("a sample is one record in N, and N is 1 or more", sample=self.sample)

    @property
    def needs_engine(self) -> bool:
        return self.level >= "R2"

    def is_due(self, entry: Entry) -> bool:
        """Whether an entry was logged since the plan's time; one whose header cannot be read is always looked at."""
        if self.since is None:
            return True
        try:
            recorded_at = parse_header(entry.header, entry.position).recorded_at
        except VerificationError:
            return True
        return time_problem(recorded_at) is not None or _time(recorded_at) >= _time(self.since)

    def level_of(self, record_id: str, record: AuditRecord) -> tuple[Level, Reason]:
        """How far a record goes, and why."""
        if self.level == "R2" and has_near_tie(record, self.limit):
            return "R3", "near_tie"
        if self.level == "R2" and self._is_sampled(record_id):
            return "R3", "sample"
        return self.level, "level"

    def _is_sampled(self, record_id: str) -> bool:
        if self.sample is None:
            return False
        return int(tagged_digest(SAMPLE_TAG, f"{self.seed}:{record_id}".encode()), 16) % self.sample == 0

    def to_value(self) -> dict[str, Any]:
        """The plan as a JSON value."""
        return asdict(self)

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Self:
        return cls(**{**value, "limit": Limit(**value["limit"])})


@dataclass(frozen=True, slots=True)
class Job:
    """One record to be replayed, whole: it can be sent to another process or machine."""

    place: Place
    sealed: SealedCase
    level: Level
    because: Reason


def find_jobs(
    store: Store,
    stream: Stream,
    after: int,
    up_to: int,
    plan: Plan,
    audit_break: Divergence | None,
    is_done: Callable[[int], bool],
) -> Iterator[Job | Outcome | None]:
    """A job for each record of an audit stream with after < position <= up_to; only up to R0 where it is done already.

    What needs no engine to be judged comes as its outcome; what the plan passes by, as None.
    """
    for entry in store.entries(stream, after=after, up_to=up_to):
        job = _find_job(store, entry, plan, audit_break) if plan.is_due(entry) else None
        yield replace(job, level="R0") if isinstance(job, Job) and is_done(entry.position) else job


def _find_job(store: Store, entry: Entry, plan: Plan, audit_break: Divergence | None) -> Job | Outcome:
    place = Place(entry.stream.tenant_id, entry.position, entry.entry_hash)
    sealed = audit_break or read_sealed_case(store, entry)
    if isinstance(sealed, Divergence):
        return Outcome.unreadable(place, sealed)
    level, because = plan.level_of(entry.entry_hash, sealed.record)
    return Job(place, sealed, level, because)


def _time(text: str) -> datetime:
    """A time that was checked to be RFC 3339; a leap second counts as the second before it."""
    moment = datetime.fromisoformat(text.upper().replace(":60", ":59"))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
