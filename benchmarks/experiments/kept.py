"""Answers read back from their rows: the case, the memory and the decision, so that they can be judged again.

A row keeps the texts of memory and decision, so no engine is needed to score it by other formulas (`rescore`) or to put
it before a judge. What is read back is held against its digest and its case's; the cases come from their data sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baseline.architectures import read_memory
from benchmarks.experiments.answers import case_digest, score_answer
from benchmarks.experiments.rows import read_rows
from benchmarks.experiments.runner import COST, QUALITY, SCHEMA_VERSION, SCORER_VERSION
from benchmarks.longhorizon.case import Case
from projection.canonical import sha256_hex
from projection.decision import Decision, verify_decision
from projection.errors import NotFoundError, RequestError, VerificationError
from projection.view import Memory
from reporting.journal import Journal, Recorded


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """A row and what it says. memory, decision: None where the answer has none."""

    key: str
    row: Mapping[str, Any]
    case: Case
    memory: Memory | None
    decision: Decision | None


@dataclass(frozen=True, slots=True)
class Rescored:
    """How many rows had another value of a score (num_changed), or did not have it yet (num_added), by its name."""

    num_rows: int
    num_changed: Mapping[str, int]
    num_added: Mapping[str, int]


def read_answers(directory: Path, schema: str, cases: Iterable[Case]) -> tuple[Recorded, list[KeptAnswer]]:
    """Every row of a results folder with its case.

    Raises:
        NotFoundError: a row whose case is not among these, byte for byte.
        RequestError: a row that this version did not write, of another engine, or under another's key.
        VerificationError: a memory or decision that is not what the row's digest, or its own form, says.
    """
    recorded, _ = read_rows(directory, schema)
    known = {(case.case_id, case_digest(case)): case for case in cases}
    return recorded, [_read_answer(key, row, known) for key, row in recorded.rows.items()]


def rescore(directory: Path, schema: str, cases: Iterable[Case], out_dir: Path) -> Rescored:
    """Score every row by this version's formulas, into another folder; texts, counts and times stay as they are.

    Raises:
        RequestError: rows that have no whole case to be scored against, or a folder that holds other rows.
        As `read_answers`.
    """
    if schema not in (QUALITY, COST):
        raise RequestError(f"rows of {schema} cannot be scored again: name a folder of dpm bench quality or cost")
    if out_dir.resolve() == directory.resolve():
        raise RequestError("give another folder for the new scores: rows that were written stay as they are")
    recorded, answers = read_answers(directory, schema, cases)
    parameters = {**recorded.parameters, "scorer_version": SCORER_VERSION}
    num_changed, num_added = Counter[str](), Counter[str]()
    with Journal.open(out_dir, schema=schema, version=SCHEMA_VERSION, parameters=parameters) as journal:
        for answer in answers:
            scores = _score(answer)
            for name, score in scores.items():
                is_new = name not in answer.row["scores"]
                num_added[name] += is_new
                num_changed[name] += not is_new and answer.row["scores"][name] != score
            if not journal.is_done(answer.key):
                journal.append(answer.key, {**answer.row, "scores": scores})
    return Rescored(len(answers), dict(num_changed), dict(num_added))


def _read_answer(key: str, row: Mapping[str, Any], known: Mapping[tuple[str, str], Case]) -> KeptAnswer:
    case = known.get((row["case_id"], row["case_digest"]))
    if case is None:
        raise NotFoundError(
            f"row {key!r} is about case {row['case_id']} with digest {row['case_digest'][:12]}, which none of these "
            "data sets holds: name the data sets that the run was made on",
            key=key,
        )
    match row:
        case {"memory": str(text), "memory_digest": str(digest), "decision": str() | None}:
            pass
        case _:
            raise RequestError(
                f"row {key!r} is no row that this version writes (memory, memory_digest or decision is no text): run "
                "the experiment again",
                key=key,
            )
    if sha256_hex(text.encode(errors="surrogatepass")) != digest:
        raise VerificationError(f"row {key!r} was changed: its memory has another digest than it says", key=key)
    is_built = row["status"] == "scored" or text != ""
    memory = read_memory(row["architecture"], text, case.task) if is_built else None
    decision = verify_decision(row["decision"], case.task, memory) if memory is not None and row["decision"] else None
    return KeptAnswer(key, row, case, memory, decision)


def _score(answer: KeptAnswer) -> dict[str, str | None]:
    row = answer.row
    return score_answer(answer.case, answer.memory, row["memory"], answer.decision, row["budget_chars"])
