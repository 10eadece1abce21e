"""Jobs, answers and rows: every failure is a counted row, and no row depends on what ran beside it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from baseline.architectures import load_architecture
from baseline.memory import Architecture, BuiltMemory, TextMemory
from benchmarks.experiments.answers import Job, budget_of, build_row, case_digest, plan_jobs, run_job
from benchmarks.experiments.published import BUDGET_CHARS, RATIOS
from benchmarks.experiments.runner import COST, QUALITY, SCHEMA_VERSION, Setting, run_experiment
from benchmarks.longhorizon.case import Case
from benchmarks.longhorizon.generator import generate_cases
from inference.scripted_engine import ScriptedEngine
from projection.engine import Completion, Engine, Progress, Watch, unwatched
from projection.errors import EngineError, RequestError
from projection.events import LoggedEvent
from projection.grammar import Grammar
from projection.task import Task
from projection.view_grammar import Profile
from reporting.journal import FILE_NAME, JournalError, read_journal
from tests.benchmarks.scored_case import scored_case

PROFILE = Profile(slot_candidates=2)
NAMES = ("dpm", "summarize_every_event", "summarize_on_overflow", "retrieval")


class Quiet:
    """Progress that adds up what it is told."""

    def __init__(self) -> None:
        self.total = self.done = 0.0
        self.rows: list[Mapping[str, Any]] = []

    def begin(self, total_work: float, done_work: float) -> None:
        self.total, self.done = total_work, done_work

    def advance(self, work: float) -> None:
        self.done += work

    def tell(self, row: Mapping[str, Any]) -> None:
        self.rows.append(row)


class DyingEngine(ScriptedEngine):
    """Fails at its n-th call, as an engine that is killed does."""

    def __init__(self, calls_left: int) -> None:
        super().__init__()
        self._calls_left = calls_left

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        grammar: Grammar | None,
        progress: Progress | None = None,
    ) -> Completion:
        if self._calls_left == 0:
            raise EngineError("the engine is gone")
        self._calls_left -= 1
        return super().generate(prompt_token_ids, max_tokens, grammar, progress)


class LyingEngine(ScriptedEngine):
    """Says something that no grammar allows."""

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        grammar: Grammar | None,
        progress: Progress | None = None,
    ) -> Completion:
        said = super().generate(prompt_token_ids, max_tokens, grammar, progress)
        return replace(said, text="Outcome: DENY! Trust me.\n")


class BreakingOffEngine(ScriptedEngine):
    """Never ends by itself."""

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        grammar: Grammar | None,
        progress: Progress | None = None,
    ) -> Completion:
        return replace(super().generate(prompt_token_ids, max_tokens, grammar, progress), finish_reason="length")


def remember_too_much(
    engine: Engine,
    events: Sequence[LoggedEvent],
    task: Task,
    budget_chars: int,
    profile: Profile,
    watch: Watch = unwatched,
) -> BuiltMemory:
    """A memory architecture that does not keep its budget."""
    text = "x" * (budget_chars + 1)
    return BuiltMemory(TextMemory(text), text, ())


def cases(count: int = 3) -> list[Case]:
    """Cases that differ in their id and so in their digest."""
    first = scored_case()
    named = [f"claim-small-{index:04d}" for index in range(count)]
    return [
        replace(first, case_id=name, truth=replace(first.truth, case_id=name, index=i)) for i, name in enumerate(named)
    ]


def jobs(count: int = 3, names: Sequence[str] = NAMES, ratios: Sequence[int] = (5, 2)) -> list[Job]:
    return plan_jobs(cases(count), [load_architecture(name) for name in names], [Fraction(ratio) for ratio in ratios])


def one_job(name: str = "dpm", ratio: int = 2) -> Job:
    return jobs(1, [name], [ratio])[0]


def row_of(job: Job, engine: Engine) -> dict[str, Any]:
    return build_row(job, run_job(job, engine, PROFILE), engine.identity.digest)


def run(directory: Path, todo: Sequence[Job], engine: Engine | None = None, concurrency: int = 1) -> Quiet:
    progress = Quiet()
    setting = Setting(engine or ScriptedEngine(), PROFILE, directory)
    run_experiment(QUALITY, todo, setting, progress, concurrency=concurrency)
    return progress


def rows(directory: Path) -> Mapping[str, Mapping[str, Any]]:
    return read_journal(directory, schema=QUALITY, version=SCHEMA_VERSION).rows


# budgets and jobs


def test_a_trajectory_may_fill_the_context_to_its_last_token_and_not_exceed_it() -> None:
    """A long case: taken where the context just holds it, a refused row with its numbers where it does not.

    At the last token there is room for half of the longest answer, which this engine, a token a character, may exceed.
    """
    (case,) = generate_cases("claim", "long", count=1, chars=30_000)
    (job,) = plan_jobs([case], [load_architecture("dpm")], [Fraction(20)])
    refused = row_of(job, ScriptedEngine(max_model_len=8192))
    assert refused["status"] == "refused"
    assert set(refused["scores"].values()) == {None, "0", "1"}, "no score but the omission rate"
    needed = int(re.search(r": ([0-9]+) in all", refused["reason"])[1])  # type: ignore[index]
    assert row_of(job, ScriptedEngine(max_model_len=needed))["status"] != "refused"
    assert row_of(job, ScriptedEngine(max_model_len=2 * needed))["status"] == "scored"
    below = row_of(job, ScriptedEngine(max_model_len=needed - 1))
    assert (below["status"], below["reason"].partition(":")[0]) == ("refused", "PromptTooLongError")


@pytest.mark.parametrize("name", ["tight", "moderate", "loose"])
def test_the_papers_ratios_give_the_papers_budgets_for_cases_of_its_size(name: str) -> None:
    case = scored_case()
    paper = replace(case, truth=replace(case.truth, size="paper"))
    assert budget_of(paper, Fraction(RATIOS[name])) == BUDGET_CHARS[name]  # type: ignore[index]


def test_a_long_case_divides_its_own_length_and_keeps_its_budget_when_it_is_cut() -> None:
    case = scored_case()
    long = replace(case, truth=replace(case.truth, size="long", target_chars=100_000))
    assert budget_of(long, Fraction(20)) == budget_of(replace(long, events=long.events[:1]), Fraction(20)) == 5_000


def test_every_job_has_a_key_of_its_own_that_names_the_cases_bytes() -> None:
    keys = [job.key for job in jobs()]
    assert len(set(keys)) == len(keys) == 3 * len(NAMES) * 2
    case = scored_case()
    other = replace(case, truth=replace(case.truth, outcome="PAY"))
    assert case_digest(case) != case_digest(other)


def test_jobs_of_one_architecture_stand_together_and_dpm_goes_case_by_case() -> None:
    planned = jobs()
    assert [job.architecture.name for job in planned] == [name for name in NAMES for _ in range(6)]
    assert [(job.case.case_id[-1], int(job.ratio)) for job in planned[:4]] == [("0", 5), ("0", 2), ("1", 5), ("1", 2)]
    assert [(job.case.case_id[-1], int(job.ratio)) for job in planned[6:10]] == [("0", 5), ("1", 5), ("2", 5), ("0", 2)]


# rows


@pytest.mark.parametrize("name", NAMES)
def test_a_row_holds_what_was_asked_what_came_and_what_it_scored(name: str) -> None:
    job = one_job(name)
    row = row_of(job, ScriptedEngine())
    assert (row["status"], row["reason"], row["budget_chars"]) == ("scored", None, 1_200)
    assert row["engine_identity"] == ScriptedEngine().identity.digest
    assert (row["seed"], row["case_digest"]) == (1, case_digest(job.case))
    assert row["counts"]["num_calls"] == row["counts"]["num_memory_calls"] + 1
    assert row == json.loads(json.dumps(row))


def test_summarising_every_event_takes_a_call_for_each_event_and_dpm_takes_one() -> None:
    num_calls = {name: row_of(one_job(name), ScriptedEngine())["counts"]["num_calls"] for name in NAMES}
    assert num_calls["dpm"] == 2
    assert num_calls["summarize_every_event"] == len(scored_case().events) + 1
    assert num_calls["retrieval"] == 1


def zero_row(row: Mapping[str, Any]) -> bool:
    return all(row["scores"][axis] == "0" for axis in ("frp", "frp_text", "frp_present", "rcs", "eda", "crr"))


def test_a_budget_below_the_form_of_a_view_is_a_refused_row_that_scores_nothing() -> None:
    row = row_of(one_job(ratio=100), ScriptedEngine())
    assert row["status"] == "refused"
    assert row["reason"].startswith("BudgetTooSmallError: a budget of 24 characters")
    assert (row["counts"]["num_calls"], row["outcome"]["given"]) == (0, "ABSTAIN")
    assert zero_row(row)


@pytest.mark.parametrize("name", NAMES)
def test_a_trajectory_beyond_the_context_is_a_refused_row(name: str) -> None:
    row = row_of(one_job(name), ScriptedEngine(max_model_len=700))
    assert row["status"] == "refused"
    assert row["reason"].startswith("PromptTooLongError")
    assert row["scores"]["eda"] == row["scores"]["crr"] == row["scores"]["rcs"] == "0"


def test_a_memory_whose_decision_does_not_fit_still_counts_what_it_remembers() -> None:
    row = row_of(one_job("retrieval", ratio=1), ScriptedEngine(max_model_len=700))
    assert row["status"] == "refused"
    assert row["scores"]["frp_present"] == "1"


def test_a_memory_over_its_budget_is_a_failed_row_whatever_it_says() -> None:
    job = replace(one_job(), architecture=Architecture("greedy", {}, remember_too_much))
    row = row_of(job, ScriptedEngine())
    assert (row["status"], row["reason"]) == ("failed", "the memory has 1201 characters; its budget is 1200")
    assert zero_row(row)


@pytest.mark.parametrize("engine", [LyingEngine(), BreakingOffEngine()])
def test_an_answer_that_is_none_is_a_failed_row_with_a_parse_error(engine: Engine) -> None:
    row = row_of(one_job(), engine)
    assert (row["status"], row["outcome"]["given"]) == ("failed", "PARSE_ERROR")
    assert zero_row(row)


def test_completions_that_were_cut_are_counted() -> None:
    row = row_of(one_job("summarize_every_event", ratio=100), ScriptedEngine())
    assert row["counts"]["num_on_token_limit"] + row["counts"]["num_over_budget"] > 0
    assert len(row["memory"]) <= row["budget_chars"]


def test_a_dead_engine_is_no_row() -> None:
    with pytest.raises(EngineError, match="gone"):
        row_of(one_job(), DyingEngine(1))


# the runner


def test_eight_at_a_time_write_the_rows_of_one_at_a_time(tmp_path: Path) -> None:
    run(tmp_path / "one", jobs(6), concurrency=1)
    run(tmp_path / "eight", jobs(6), concurrency=8)
    assert rows(tmp_path / "one") == rows(tmp_path / "eight")
    assert len(rows(tmp_path / "one")) == 6 * len(NAMES) * 2


def test_progress_adds_up_to_the_whole(tmp_path: Path) -> None:
    progress = run(tmp_path, jobs(), concurrency=4)
    assert progress.done == pytest.approx(progress.total)
    assert len(progress.rows) == len(jobs())


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_run_that_died_continues_and_asks_for_nothing_twice(tmp_path: Path, concurrency: int) -> None:
    with pytest.raises(EngineError, match="gone"):
        run(tmp_path / "killed", jobs(), DyingEngine(20), concurrency)
    num_done = len(rows(tmp_path / "killed"))
    assert 0 < num_done < len(jobs())
    progress = run(tmp_path / "killed", jobs(), concurrency=concurrency)
    assert len(progress.rows) == len(jobs()) - num_done
    run(tmp_path / "whole", jobs())
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")


class FailingOnceEngine(ScriptedEngine):
    """Fails at its first call, when another job is under way, which waits for that; counts the calls after it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_first, self.num_later_calls = True, 0
        self._lock = threading.Lock()
        self._other_is_under_way, self._fails_now = threading.Event(), threading.Event()

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        grammar: Grammar | None,
        progress: Progress | None = None,
    ) -> Completion:
        with self._lock:
            is_first, self.is_first = self.is_first, False
            self.num_later_calls += not is_first
        if is_first:
            self._other_is_under_way.wait()
            self._fails_now.set()
            raise EngineError("the engine is gone")
        self._other_is_under_way.set()
        self._fails_now.wait()
        return super().generate(prompt_token_ids, max_tokens, grammar, progress)


def test_after_a_failure_the_jobs_under_way_end_at_their_next_call(tmp_path: Path) -> None:
    first = scored_case()
    events = [replace(first.events[0], position=position) for position in range(1, 2_001)]
    long = [replace(case, events=tuple(events)) for case in cases(2)]
    todo = plan_jobs(long, [load_architecture("summarize_every_event")], [Fraction(2)])
    engine = FailingOnceEngine()
    with pytest.raises(EngineError, match="gone"):
        run(tmp_path, todo, engine, concurrency=2)
    assert engine.num_later_calls < 2_000
    assert rows(tmp_path) == {}


def test_a_row_that_was_cut_off_by_a_kill_is_run_again(tmp_path: Path) -> None:
    run(tmp_path, jobs(1))
    path = tmp_path / FILE_NAME
    data = path.read_bytes()
    whole = rows(tmp_path)
    path.write_bytes(data[:-40])
    progress = run(tmp_path, jobs(1))
    assert len(progress.rows) == 1
    assert rows(tmp_path) == whole


def test_a_finished_run_asks_the_engine_for_nothing(tmp_path: Path) -> None:
    run(tmp_path, jobs())
    assert run(tmp_path, jobs(), DyingEngine(0)).rows == []


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda s: replace(s, engine=ScriptedEngine(max_model_len=100_000)), "other_parameters"),
        (lambda s: replace(s, profile=Profile(slot_candidates=7)), "other_parameters"),
    ],
)
def test_rows_of_another_engine_or_profile_are_not_mixed(
    tmp_path: Path, change: Callable[[Setting], Setting], cause: str
) -> None:
    run(tmp_path, jobs(1))
    setting = change(Setting(ScriptedEngine(), PROFILE, tmp_path))
    with pytest.raises(JournalError) as caught:
        run_experiment(QUALITY, jobs(1), setting, Quiet(), concurrency=1)
    assert caught.value.fields["cause"] == cause


def test_rows_of_another_experiment_are_not_mixed(tmp_path: Path) -> None:
    run(tmp_path, jobs(1))
    setting = Setting(ScriptedEngine(), PROFILE, tmp_path)
    with pytest.raises(JournalError) as caught:
        run_experiment(COST, jobs(1), setting, Quiet(), concurrency=1)
    assert caught.value.fields["cause"] == "other_schema"
    assert isinstance(caught.value, RequestError)
