"""A case and its truth: frozen values, and their form in files.

`Case` is what an experiment needs: events E, task T, and the truth to score against. `events_bytes`, `truth_bytes` and
the `parse_*` functions are exact inverses. Nothing here generates or proves; see `generator` and `proofs`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from benchmarks.longhorizon.amounts import Amount
from benchmarks.longhorizon.rules import Margin
from projection.errors import RequestError, VerificationError
from projection.events import Event, LoggedEvent, numbered
from projection.ingest import parse_events
from projection.task import FieldType, Task

DomainName = Literal["mortgage", "claim", "prior_auth"]
Size = Literal["small", "paper", "long"]
Variant = Literal["oracle", "full", "reordered"]
DOMAINS: tuple[DomainName, ...] = ("mortgage", "claim", "prior_auth")
SIZES: tuple[Size, ...] = ("small", "paper", "long")
VARIANTS: tuple[Variant, ...] = ("oracle", "full", "reordered")
TRUTH_SCHEMA = "dpm/longhorizon-truth/v1"

WrongReason = Literal["superseded", "contradicted", "insisted", "copied", "near_miss", "injected"]
"""Why a value is wrong.

superseded    an earlier value that the true one's event supersedes, by a link
contradicted  said by a party earlier; the true value's later, authoritative event contradicts it, by a link
insisted      said again by a party after the true value was settled; only the authoritative document counts
copied        a later copy of a document whose value was already replaced
near_miss     of the same form, and about something else: another person, policy, file or period
injected      part of an instruction that somebody put into a document
"""
STALE: tuple[WrongReason, ...] = ("superseded", "contradicted", "copied")


class CaseError(RequestError):
    """A case or data set that cannot be asked for, read or written."""


class ObligationError(VerificationError):
    """A case that breaks a proof obligation; `fields` has `obligation` and `case_id`."""


@dataclass(frozen=True, slots=True)
class FieldTruth:
    """The true value of a field. `value` stands verbatim in event `position`; `amount` is its typed form.

    critical: without it the verdict is open. A field that is not critical still has a true value to recover.
    """

    name: str
    type: FieldType
    value: str
    amount: Amount
    event_id: str
    position: int
    critical: bool


@dataclass(frozen=True, slots=True)
class WrongValue:
    """A value of a field's form that is not its value, and where it stands.

    changes_verdict: taking it for the true value would change decision, reasons or amounts.
    """

    field: str
    value: str
    amount: Amount
    event_id: str
    position: int
    why: WrongReason
    detail: str
    changes_verdict: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the reasoning: these facts, under this provision, hold or give this reason.

    slack: distance to the threshold in the limit's unit. reason: the code that follows; None where the limit holds.
    """

    facts: tuple[str, ...]
    rule: str
    holds: bool
    slack: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class Truth:
    """Everything that is true of a case, and everything in it that only looks so.

    figures: amounts of the verdict, units in their names (`_cents`, `_bp`, `_mg`).
    superseded: wrong values that an earlier document held. distractors: all other wrong values.
    proofs: obligation -> how many things it was checked on.
    """

    schema: str
    case_id: str
    domain: DomainName
    size: Size
    variant: Variant
    seed: int
    index: int
    target_chars: int
    outcome: str
    reasons: tuple[str, ...]
    figures: dict[str, int]
    margin: Margin
    fields: tuple[FieldTruth, ...]
    superseded: tuple[WrongValue, ...]
    distractors: tuple[WrongValue, ...]
    steps: tuple[Step, ...]
    proofs: dict[str, int]

    @property
    def facts(self) -> dict[str, Amount]:
        """The true facts by field name."""
        return {field.name: field.amount for field in self.fields}

    def field(self, name: str) -> FieldTruth:
        """The truth of one field."""
        return next(field for field in self.fields if field.name == name)


@dataclass(frozen=True, slots=True)
class Case:
    """A case: events at their positions, the task, and the truth. `task_text` is the task file, byte for byte."""

    case_id: str
    events: tuple[LoggedEvent, ...]
    task: Task
    task_text: str
    truth: Truth

    @property
    def num_chars(self) -> int:
        """Characters of the trajectory: of all event texts."""
        return sum(len(event.text) for event in self.events)


def events_bytes(events: Sequence[LoggedEvent], case_id: str) -> bytes:
    """The events as CloudEvents 1.0, one a line, in order."""
    lines = [json.dumps(_cloud_event(event.event, case_id), ensure_ascii=False) for event in events]
    return "".join(line + "\n" for line in lines).encode()


def parse_case_events(data: bytes, source_name: str) -> tuple[LoggedEvent, ...]:
    """The inverse of `events_bytes`.

    Raises:
        EventError: with the line.
    """
    parsed = parse_events(data, source_name=source_name)
    return numbered(parsed.events)


def truth_bytes(truth: Truth) -> bytes:
    """The truth as JSON, in one form only."""
    return (json.dumps(asdict(truth), ensure_ascii=False, indent=1) + "\n").encode()


def parse_truth(data: bytes, source_name: str) -> Truth:
    """The inverse of `truth_bytes`.

    Raises:
        CaseError: another schema, or not exactly a truth of this schema.
    """
    try:
        schema = _schema_of(json.loads(data))
        if schema != TRUTH_SCHEMA:
            raise CaseError(f"{source_name} has schema {schema!r}; this version reads {TRUTH_SCHEMA!r}", schema=schema)
        truth = TypeAdapter(Truth).validate_json(data, strict=True)
    except (ValidationError, ValueError, RecursionError) as exc:
        raise CaseError(f"{source_name} is not a truth file: {exc}") from exc
    if truth_bytes(truth) != data:
        raise CaseError(f"{source_name} has members or a layout that a truth file does not have: generate it again")
    return truth


def _schema_of(value: Any) -> object:
    return value.get("schema") if isinstance(value, Mapping) else None


def _cloud_event(event: Event, case_id: str) -> dict[str, Any]:
    links = [{"kind": link.kind, "event_id": link.event_id} for link in event.links]
    return {
        "specversion": "1.0",
        "id": event.event_id,
        "source": event.source,
        "type": event.type,
        "subject": case_id,
        "time": event.occurred_at,
        "datacontenttype": "text/plain",
        **({"links": links} if links else {}),
        "data": event.text,
    }
