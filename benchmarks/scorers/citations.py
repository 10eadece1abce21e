"""What an auditor asks of any memory, whatever it decided: do citations hold, is anything invented, what is left out.

    citation precision   supported pairs / all pairs of a statement and an event it cites. Supported: the event exists,
                         and every value of the statement stands in it, with its type and day, or in the task. None
                         where nothing is cited.
    citation recall      fields whose true value some statement gives with a citation of its event / all fields.
    hallucinated rate    values of the memory that stand in no event and not in the task / all values of the memory.
                         None where the memory holds no value.
    omission rate        distinct values of the log that the memory leaves out / all distinct values of the log. At a
                         twentieth of the log most of it is left out; FRP says whether it was what matters.
    budget use           characters of the memory / characters of the budget. Over 1 is a failure, and counted as one.

Values are typed and whole, as in `scorers.axes`. Wording is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from benchmarks.longhorizon.case import Case
from benchmarks.scorers.axes import is_stated, rule_ids
from benchmarks.scorers.text import Statement, anchor_keys, read_statements
from projection.events import LoggedEvent
from projection.task import Task
from projection.view import Memory

_LIST_NUMBER = re.compile(r"^\s*[0-9]{1,2}[.)]\s")
Key = tuple[str, object]


@dataclass(frozen=True, slots=True)
class CitationScores:
    """What holds of a memory's citations and values; None where there is nothing to judge."""

    citation_precision: Fraction | None
    citation_recall: Fraction
    hallucinated_rate: Fraction | None
    omission_rate: Fraction
    budget_use: Fraction


def score_citations(case: Case, memory: Memory, text: str, budget_chars: int) -> CitationScores:
    """Score a memory. text: all of it, headings included, as it counts against the budget."""
    statements = read_statements([_LIST_NUMBER.sub("", line.text) for line in memory.lines], rule_ids(case.task))
    in_log = frozenset(key for event in case.events for key in anchor_keys(event.text))
    by_event = {event.position: frozenset(anchor_keys(_event_text(event))) for event in case.events}
    known = frozenset[Key]().union(*by_event.values())
    of_task = frozenset(anchor_keys(task_text(case.task)))
    stated = [key for statement in statements for key in anchor_keys(statement.words)]
    return CitationScores(
        citation_precision=_precision(statements, by_event, of_task),
        citation_recall=_recall(case, statements),
        hallucinated_rate=_share(sum(key not in known | of_task for key in stated), len(stated)),
        omission_rate=_share(len(in_log - set(stated)), len(in_log)) or Fraction(0),
        budget_use=Fraction(len(text), budget_chars),
    )


def _precision(
    statements: Sequence[Statement], by_event: dict[int, frozenset[Key]], of_task: frozenset[Key]
) -> Fraction | None:
    pairs = [(statement, position) for statement in statements for position in statement.cited]
    supported = sum(
        position in by_event and set(anchor_keys(statement.words)) <= by_event[position] | of_task
        for statement, position in pairs
    )
    return _share(supported, len(pairs))


def _recall(case: Case, statements: Sequence[Statement]) -> Fraction:
    cited = [statement for statement in statements if statement.cited]
    names = [field.name for field in case.truth.fields]
    return Fraction(sum(any(is_stated(case, name, s) for s in cited) for name in names), len(names))


def _share(part: int, whole: int) -> Fraction | None:
    return Fraction(part, whole) if whole else None


def _event_text(event: LoggedEvent) -> str:
    """What may be said of an event: its text, its type, and the day it carries."""
    return f"{event.text}\n{event.event.type}\n{(event.event.occurred_at or '')[:10]}"


def task_text(task: Task) -> str:
    """Everything the task says: values that a memory may repeat without a source in the log."""
    parts = [task.question, task.policy, *(field.description for field in task.fields)]
    parts += [f"{reason.code} {reason.text}" for reason in task.reasons]
    return "\n".join([*parts, *(f"{provision.id} {provision.text}" for provision in task.provisions)])
