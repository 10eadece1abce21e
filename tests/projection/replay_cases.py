"""What the tests of the replay levels share: a view, two decisions, a forger of records, and where a replay must part.

In those tests every control is broken in one property. Where a record is forged, its forger has fitted every digest
that he can fit with the project's own functions, so that only the level in question is left to find it.
"""

from __future__ import annotations

from typing import Any

from projection.record import AuditRecord
from projection.replay import Divergence, Level, ReplayReport
from tests.projection.decided import with_content

VIEW = """FACTS
- monthly income: $6,100.00 [2]
- debt-to-income ratio: 46.2% [3]
- closing date: unknown
- coverage ratio: unknown
REASONING
- [2] The log says so.
COMPLIANCE
- [3] Policy 4.2: The log says so.
"""
DECISIONS = ("Outcome: APPROVE\nRationale: It is so\n", "Outcome: DENY\nReason: R02 [L2]\nRationale: It is so\n")


def check_found(report: ReplayReport, level: Level, what: str, **place: Any) -> Divergence:
    """The report is a DRIFT at this level and nowhere before it; `place` is what the divergence must say."""
    found = report.first_divergence
    assert found is not None, report
    assert (report.verdict, found.level, found.what) == ("DRIFT", level, what), found
    assert list(report.levels.items()) == [
        *((name, "PASS") for name in ("R0", "R1", "R2") if name < level), (level, "DRIFT")
    ]  # fmt: skip
    assert {name: getattr(found, name) for name in place} == place
    return found


def bent(record: AuditRecord, path: str, value: Any) -> AuditRecord:
    """The record with the member at a dotted path replaced, and a content digest that fits."""
    content = record.content.model_dump()
    *parents, last = path.split(".")
    place: Any = content
    for name in parents:
        place = place[name]
    place[last] = value
    return with_content(record, **content)
