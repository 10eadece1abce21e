"""One case under one architecture at one budget: the unit of every experiment, and its row.

A failure is an answer, too. What an architecture cannot do (a trajectory beyond the context, a budget below its form,
an answer that is none, a memory over its budget) becomes a row with a status, a reason and scores of 0; what the engine
cannot do (it died, it was misconfigured) ends the run. A row holds no times: quality must not depend on what else runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from baseline.memory import Architecture, BuiltMemory
from benchmarks.longhorizon.case import Case, Size
from benchmarks.longhorizon.dataset import case_files
from benchmarks.metered_engine import Meter, MeteredEngine
from benchmarks.scorers.axes import ABSTAIN, PARSE_ERROR, AxisScores, score_axes
from benchmarks.scorers.citations import CitationScores, score_citations
from projection.canonical import sha256_hex, tagged_digest
from projection.decision import Decision, decide
from projection.engine import Engine
from projection.errors import DpmError, IncompleteError, RequestError, VerificationError
from projection.events import events_digest
from projection.view import Memory
from projection.view_grammar import Profile
from reporting.journal import Recorded

Status = Literal["scored", "refused", "failed"]
"""scored: a memory within its budget and a decision. refused: the architecture does not take this input. failed: it
took it, and its answer is none."""

NOMINAL_CHARS: dict[Size, int] = {"small": 2_400, "paper": 26_762}  # what a ratio divides; the paper's means
MAX_BUDGET_CHARS = 10_000_000  # as of dpm decide
EXPECTED_CALLS_PER_CASE = 2  # of an architecture that is no summary: its memory, and the decision


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked: a case, an architecture, a compression ratio, and the budget that follows."""

    case: Case
    case_digest: str
    architecture: Architecture
    ratio: Fraction
    budget_chars: int

    @property
    def key(self) -> str:
        """Names the job's row: the same job has the same key in every run."""
        return row_key(self.case.case_id, self.case_digest, self.architecture.name, str(self.ratio))

    @property
    def expected_calls(self) -> int:
        """How many model calls to expect, for the time left."""
        is_summary = self.architecture.name.startswith("summarize_every_event")
        return len(self.case.events) + 1 if is_summary else EXPECTED_CALLS_PER_CASE

    @property
    def work(self) -> float:
        """About how much work this is, in characters read; a character written counts as ten."""
        summaries = self.expected_calls - 1 if self.expected_calls > EXPECTED_CALLS_PER_CASE else 0
        written = self.budget_chars * max(1, summaries)
        read = self.budget_chars * summaries + self.case.num_chars + 3_000 * self.expected_calls
        return read + 10.0 * written


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a job. built: None where no memory was made; decision: None where none was."""

    status: Status
    reason: str | None
    built: BuiltMemory | None
    decision: Decision | None
    outcome: str
    meter: Meter


def row_key(case_id: str, case_digest: str, architecture: str, ratio: str) -> str:
    """The key of a row, made of what it answers."""
    return f"{case_id}/{case_digest[:12]}/{architecture}/{ratio}"


def verify_rows(directory: Path, recorded: Recorded) -> None:
    """Hold every row of a folder to its key and to the engine of the folder's header.

    Raises:
        RequestError: a row of another identity, or under the key of another answer.
    """
    identity = recorded.parameters["engine_identity"]
    for key, row in recorded.rows.items():
        named = [row.get(name) for name in ("case_id", "case_digest", "architecture", "ratio")]
        if key != row_key(*map(str, named)):
            problem = "stands under the key of another answer"
        elif row.get("engine_identity") != identity:
            problem = "is of another engine identity than its folder's header"
        else:
            continue
        raise RequestError(
            f"row {key!r} of {directory} {problem}: restore a copy, or run the experiment again in another folder",
            key=key,
            directory=str(directory),
        )


def plan_jobs(cases: Iterable[Case], architectures: Sequence[Architecture], ratios: Sequence[Fraction]) -> list[Job]:
    """Every case under every architecture at every ratio, ordered so that neighbours are alike.

    Jobs of one architecture stand together, so that calls in flight are of one length. Those of DPM are ordered by
    case, as its prompts at all ratios begin with the same events; those of others by ratio.

    Raises:
        RequestError: as `budget_of`.
    """
    jobs = []
    for case in cases:
        digest = case_digest(case)
        for architecture in architectures:
            for ratio in ratios:
                jobs.append(Job(case, digest, architecture, ratio, budget_of(case, ratio)))
    place = {architecture.name: index for index, architecture in enumerate(architectures)}
    return sorted(jobs, key=lambda job: (place[job.architecture.name], *_neighbours(job)))


def budget_of(case: Case, ratio: Fraction) -> int:
    """The memory budget of a case at a compression ratio, in characters.

    Cases of one size share their budgets, as in the paper: 26,762 / 20 = 1,338. For a long case it is the length that
    was asked for, so that a case that is cut short keeps its budget.

    Raises:
        RequestError: a budget beyond `MAX_BUDGET_CHARS`.
    """
    budget_chars = max(1, int(NOMINAL_CHARS.get(case.truth.size, case.truth.target_chars) / ratio))
    if budget_chars > MAX_BUDGET_CHARS:
        raise RequestError(
            f"at a ratio of {ratio} case {case.case_id} has a budget of {budget_chars:,} characters; the most is "
            f"{MAX_BUDGET_CHARS:,}: give a larger ratio"
        )
    return budget_chars


def case_digest(case: Case) -> str:
    """Digest over events, task and truth, byte for byte."""
    parts = case_files(case).values()
    return tagged_digest("dpm/bench-case/v1", *(sha256_hex(part).encode() for part in parts))


def run_job(job: Job, engine: Engine, profile: Profile, on_call: Callable[[], None] = lambda: None) -> Answer:
    """Build the memory and decide from it.

    Raises:
        EngineError: the engine failed; a completion that did not end by itself is a failed answer instead.
    """
    metered = MeteredEngine(engine, on_call)
    case, built = job.case, None
    try:
        built = job.architecture.build_memory(metered, case.events, case.task, job.budget_chars, profile)
        if len(built.text) > job.budget_chars:
            reason = f"the memory has {len(built.text)} characters; its budget is {job.budget_chars}"
            return Answer("failed", reason, None, None, ABSTAIN, metered.meter)
        decision = decide(metered, case.task, built.memory).decision
    except RequestError as exc:
        return Answer("refused", _reason(exc), built, None, ABSTAIN, metered.meter)
    except (IncompleteError, VerificationError) as exc:
        return Answer("failed", _reason(exc), built, None, PARSE_ERROR, metered.meter)
    return Answer("scored", None, built, decision, decision.outcome, metered.meter)


def build_row(job: Job, answer: Answer, engine_identity: str) -> dict[str, Any]:
    """The row of an answer, a JSON value: what was asked, what came, and what it scored."""
    case, truth = job.case, job.case.truth
    memory, text = (answer.built.memory, answer.built.text) if answer.built is not None else (None, "")
    return {
        "case_id": case.case_id,
        "domain": truth.domain,
        "size": truth.size,
        "variant": truth.variant,
        "seed": truth.seed,
        "margin": truth.margin,
        "case_digest": job.case_digest,
        "events_digest": events_digest(case.events),
        "task_digest": case.task.digest,
        "engine_identity": engine_identity,
        "architecture": job.architecture.name,
        "parameters": job.architecture.parameters,
        "num_events": len(case.events),
        "trajectory_chars": case.num_chars,
        "ratio": str(job.ratio),
        "budget_chars": job.budget_chars,
        "status": answer.status,
        "reason": answer.reason,
        "scores": score_answer(case, memory, text, answer.decision, job.budget_chars),
        "counts": {**_counts(answer.meter), **_memory_counts(job, answer.built)},
        "outcome": {"true": truth.outcome, "given": answer.outcome},
        "reasons": {"true": list(truth.reasons), "given": _codes(answer.decision)},
        "memory": text,
        "memory_digest": sha256_hex(text.encode()),
        "decision": answer.decision.text if answer.decision is not None else None,
    }


def score_answer(
    case: Case, memory: Memory | None, text: str, decision: Decision | None, budget_chars: int
) -> dict[str, str | None]:
    """Every score as a fraction, such as "7/11"; null where there is nothing to judge. No memory scores 0."""
    zero = Fraction(0)
    if memory is None:
        axes = AxisScores(zero, zero, zero, zero, zero, zero, zero, ())
        cited = CitationScores(None, zero, None, Fraction(1), zero)
    else:
        axes = score_axes(case, memory, decision)
        cited = score_citations(case, memory, text, budget_chars)
    named = {**asdict(axes), **asdict(cited)}
    del named["recovered"]
    return {name: None if score is None else str(score) for name, score in named.items()}


def _neighbours(job: Job) -> tuple[Any, ...]:
    by_ratio = (-job.ratio, job.case.truth.domain, job.case.case_id)
    return (*by_ratio[1:], by_ratio[0]) if job.architecture.name == "dpm" else by_ratio


def _reason(exc: DpmError) -> str:
    return f"{type(exc).__name__}: {exc.message}"


def _counts(meter: Meter) -> dict[str, int]:
    return {name: value for name, value in asdict(meter).items() if name != "engine_s"}


def _memory_counts(job: Job, built: BuiltMemory | None) -> dict[str, int]:
    """How often a memory call wrote beyond its budget or its token limit, and was cut."""
    calls = built.calls if built is not None else ()
    return {
        "num_memory_calls": len(calls),
        "num_over_budget": sum(len(call.completion.text) > job.budget_chars for call in calls),
        "num_on_token_limit": sum(call.completion.finish_reason == "length" for call in calls),
    }


def _codes(decision: Decision | None) -> list[str]:
    return [reason.code for reason in decision.reasons] if decision is not None else []
