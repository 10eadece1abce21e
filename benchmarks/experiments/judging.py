"""Judgements of answers that stand in rows: a folder of its own beside theirs, and a replay of every judge's call.

The score by rule is copied beside the judge's and never replaced. Answers without a decision show no chain under either
and are not judged. For each case one control is judged, too: an answer that says nothing. A judge that says yes there
says little with its other yeses.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from benchmarks.experiments.kept import KeptAnswer
from benchmarks.experiments.rows import parse_fraction, parse_score, read_run
from benchmarks.experiments.runner import JUDGE, SCHEMA_VERSION, Progress, run_all
from benchmarks.longhorizon.case import Case
from benchmarks.scorers.judge import (
    CONTROL_DECISION,
    CONTROL_MEMORY,
    Judgement,
    judge,
    judge_template_digest,
    prepare_judgement,
    prompt_digest,
)
from projection.engine import Engine
from projection.errors import IncompleteError, NotFoundError, RequestError, VerificationError
from projection.replay import Diverged, Divergence, Verdict, compare, compare_lists
from projection.view import Memory
from reporting.journal import Journal, Recorded

CONTROL = "control"


@dataclass(frozen=True, slots=True)
class JudgeJob:
    """An answer before a judge. about: what its row says of it, besides the judgement."""

    key: str
    case: Case
    memory: Memory
    decision: str
    about: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """One judgement. rcs_judge: None where the judge could not take the answer; rcs: by rule."""

    size: str
    architecture: str
    ratio: Fraction
    is_control: bool
    rcs: Fraction
    rcs_judge: Fraction | None


@dataclass(frozen=True, slots=True)
class JudgeReplay:
    """What came of making every judge's call again. first: of the judgements that came out otherwise."""

    verdict: Verdict
    num_calls: int
    num_same: int
    first: Divergence | None


def plan_judging(answers: Sequence[KeptAnswer]) -> list[JudgeJob]:
    """Every answer with a decision, and one control for each case."""
    controls, jobs = {}, []
    for answer in answers:
        row = answer.row
        if answer.memory is None or answer.decision is None:
            continue
        named = {name: row[name] for name in ("case_id", "case_digest", "domain", "size")}
        asked = {"architecture": row["architecture"], "ratio": row["ratio"], "rcs": row["scores"]["rcs"]}
        jobs.append(JudgeJob(answer.key, answer.case, answer.memory, answer.decision.text, {**named, **asked}))
        key = f"{CONTROL}/{row['case_id']}/{row['case_digest'][:12]}"
        about = {**named, "architecture": CONTROL, "ratio": "1", "rcs": "0"}
        controls[key] = JudgeJob(key, answer.case, CONTROL_MEMORY, CONTROL_DECISION, about)
    return [*controls.values(), *jobs]


def run_judging(
    jobs: Sequence[JudgeJob],
    engine: Engine,
    directory: Path,
    answers_by: Mapping[str, Any],
    progress: Progress,
    *,
    concurrency: int,
) -> Recorded:
    """Judge every answer that has no judgement yet. answers_by: the parameters of the answers' run.

    Raises:
        JournalError: the folder holds judgements of another engine, prompt or run, or is in use.
        EngineError: the engine failed; judgements that were made are kept.
    """
    parameters = {
        "engine_identity": engine.identity.digest,
        "identity": dict(engine.identity.fields),
        "judge_template_digest": judge_template_digest(),
        "answers": {name: answers_by[name] for name in ("engine_identity", "template_digest", "scorer_version")},
    }
    with Journal.open(directory, schema=JUDGE, version=SCHEMA_VERSION, parameters=parameters) as journal:
        left = [job for job in jobs if not journal.is_done(job.key)]
        progress.begin(float(len(jobs)), float(len(jobs) - len(left)))

        def run_one(job: JudgeJob) -> None:
            row = {**job.about, **_judged(engine, job)}
            journal.append(job.key, row)
            progress.advance(1.0)
            progress.tell(row)

        run_all(left, run_one, concurrency, threading.Event())
        return Recorded(journal.parameters, journal.rows)


def replay_judging(jobs: Sequence[JudgeJob], engine: Engine, directory: Path, progress: Progress) -> JudgeReplay:
    """Make every recorded judge's call again and compare prompt, grammar and answer, token for token.

    Raises:
        NotFoundError: a judgement of an answer that is not among these jobs.
        RequestError: a judgement that this version did not write.
        EngineError: the engine failed.
    """
    recorded, _ = read_judgements(directory)
    calls = {key: row["call"] for key, row in recorded.rows.items() if row["call"] is not None}
    here, there = engine.identity.digest, str(recorded.parameters["engine_identity"])
    if here != there:
        found = Divergence("R3", "engine_identity", there, here, "judge")
        return JudgeReplay("INCOMPARABLE", len(calls), 0, found)
    known, first, num_same = {job.key: job for job in jobs}, None, 0
    progress.begin(float(len(calls)), 0.0)
    for key, call in calls.items():
        if key not in known:
            raise NotFoundError(f"judgement {key!r} is of an answer that these results do not hold", key=key)
        try:
            _replay_call(engine, known[key], call)
            num_same += 1
        except Diverged as exc:
            first = first or exc.divergence
        progress.advance(1.0)
    return JudgeReplay("DRIFT" if first else "PASS", len(calls), num_same, first)


def read_judgements(directory: Path) -> tuple[Recorded, tuple[JudgedRow, ...]]:
    """The judgements of a folder.

    Raises:
        NotFoundError, JournalError: no judgements, or damage. RequestError: a row that this version did not write.
    """
    recorded = read_run(directory, JUDGE)
    return recorded, tuple(_read_row(key, row) for key, row in recorded.rows.items())


def _judged(engine: Engine, job: JudgeJob) -> dict[str, Any]:
    try:
        found = judge(engine, job.case, job.memory, job.decision)
    except RequestError as exc:
        return {"status": "refused", "reason": f"{type(exc).__name__}: {exc.message}", "rcs_judge": None, "call": None}
    except (IncompleteError, VerificationError) as exc:
        return {"status": "failed", "reason": f"{type(exc).__name__}: {exc.message}", "rcs_judge": None, "call": None}
    return {"status": "scored", "reason": None, "rcs_judge": str(found.score), "call": _call_row(found)}


def _call_row(found: Judgement) -> dict[str, Any]:
    call, completion = found.call, found.call.completion
    return {
        "prompt_digest": prompt_digest(call.prompt_token_ids),
        "num_prompt_tokens": len(call.prompt_token_ids),
        "grammar_digest": call.grammar.digest,
        "max_tokens": call.max_tokens,
        "token_ids": list(completion.token_ids),
        "text": completion.text,
        "min_margin": completion.min_margin,
    }


def _replay_call(engine: Engine, job: JudgeJob, call: Mapping[str, Any]) -> None:
    prompt_token_ids, grammar = prepare_judgement(engine.tokenizer, job.case, job.memory, job.decision)
    compare("R1", "prompt_digest", call["prompt_digest"], prompt_digest(prompt_token_ids), call=job.key)
    compare("R1", "grammar_digest", call["grammar_digest"], grammar.digest, call=job.key)
    again = engine.generate(prompt_token_ids, call["max_tokens"], grammar)
    compare_lists("R3", "token_ids", job.key, call["token_ids"], again.token_ids)
    compare("R3", "text", call["text"], again.text, call=job.key)


def _read_row(key: str, row: Mapping[str, Any]) -> JudgedRow:
    try:
        if not (row["call"] is None or row["call"].keys() >= _CALL):
            raise ValueError("its call is not whole")
        return JudgedRow(
            size=str(row["size"]),
            architecture=str(row["architecture"]),
            ratio=parse_fraction(row["ratio"]),
            is_control=row["architecture"] == CONTROL,
            rcs=parse_score(row["rcs"]),
            rcs_judge=None if row["rcs_judge"] is None else parse_score(row["rcs_judge"]),
        )
    except (KeyError, AttributeError, ValueError) as exc:
        raise RequestError(f"judgement {key!r} is none that this version writes ({exc!r}): judge again") from exc


_CALL = {"prompt_digest", "grammar_digest", "max_tokens", "token_ids", "text"}
