"""The near-tie ledger: places of a record where the second-best token came close to the best.

These are what a new driver, library or processor flips first. Reads what the record holds and asks no engine; whether a
near-tie ever flips is not its business.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from determinism.divergence import decode_ids, margin_ulp
from projection.engine import Tokenizer
from projection.entry import Entry
from projection.errors import VerificationError
from projection.record import AuditRecord, RecordedCall, parse_record

MAX_ULP = 1024  # about 1e-4 at a log-probability of -1: some hundred times what another order of float32 sums moves


@dataclass(frozen=True, slots=True)
class Limit:
    """How close is near: within so many ULP, or within a margin; either is enough, None is never.

    max_margin: top-1 minus top-2 log-probability, natural log.
    """

    max_ulp: int | None = MAX_ULP
    max_margin: float | None = None

    def covers(self, logprob: float, margin: float | None) -> bool:
        """Whether a token of this log-probability and margin was nearly another one."""
        if margin is None:
            return False
        by_ulp = self.max_ulp is not None and margin_ulp(logprob, margin) <= self.max_ulp
        return by_ulp or (self.max_margin is not None and margin <= self.max_margin)


@dataclass(frozen=True, slots=True)
class NearTie:
    """One place. before, text: what was said up to there, and the token; None without the record's tokenizer."""

    call: str
    index: int
    token_id: int
    logprob: float
    margin: float
    margin_ulp: int
    before: str | None
    text: str | None


CONTEXT_TOKENS = 8


def calls_of(record: AuditRecord) -> dict[str, RecordedCall]:
    """A record's two calls by name, in the order they were made."""
    return {"projection": record.content.projection, "decision": record.content.decision_call}


def find_near_ties(record: AuditRecord, limit: Limit, tokenizer: Tokenizer | None = None) -> Iterator[NearTie]:
    """The near-ties of both calls in their order. tokenizer: the record's, to say what stands there."""
    for call, recorded in calls_of(record).items():
        numbers = zip(recorded.token_ids, recorded.logprobs, recorded.margins, strict=False)
        for index, (token_id, logprob, margin) in enumerate(numbers):
            if margin is None or not limit.covers(logprob, margin):
                continue
            before, text = None, None
            if tokenizer is not None:
                before = decode_ids(tokenizer, recorded.token_ids[max(0, index - CONTEXT_TOKENS) : index])
                text = decode_ids(tokenizer, [token_id])
            yield NearTie(call, index, token_id, logprob, margin, margin_ulp(logprob, margin), before, text)


def has_near_tie(record: AuditRecord, limit: Limit) -> bool:
    """Whether there is any."""
    return any(True for _ in find_near_ties(record, limit))


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A near-tie, and whose record it is in."""

    record_id: str
    tenant_id: str
    case_id: str
    tie: NearTie


@dataclass(frozen=True, slots=True)
class Ledger:
    """The near-ties of many records. rows: the closest ones, closest first.

    num_choices: places where more than one token was allowed. num_unreadable: entries that hold no record.
    """

    num_records: int
    num_unreadable: int
    num_choices: int
    num_near_ties: int
    rows: tuple[LedgerRow, ...]


def scan(
    entries: Iterable[Entry], limit: Limit, max_rows: int, tokenizer_of: Callable[[AuditRecord], Tokenizer | None]
) -> Ledger:
    """The ledger of entries of audit streams, which are read one after the other."""
    counts = dict.fromkeys(("num_records", "num_unreadable", "num_choices", "num_near_ties"), 0)

    def found() -> Iterator[LedgerRow]:
        for entry in entries:
            try:
                record = parse_record(entry.text)
            except VerificationError:
                counts["num_unreadable"] += 1
                continue
            counts["num_records"] += 1
            counts["num_choices"] += sum(m is not None for call in calls_of(record).values() for m in call.margins)
            for tie in find_near_ties(record, limit, tokenizer_of(record)):
                counts["num_near_ties"] += 1
                yield LedgerRow(entry.entry_hash, record.tenant_id, record.case_id, tie)

    rows = heapq.nsmallest(max_rows, found(), key=lambda row: row.tie.margin_ulp)
    return Ledger(**counts, rows=tuple(rows))
