"""Replay of a case decided under any memory architecture, level by level as `projection.replay` does it.

An architecture is a pure function of its inputs and the engine's answers. So a replay runs it again on an engine that
answers with the record: every prompt, grammar and token limit it then asks for must be the recorded one. R1 checks that
and nothing else; R2 and R3 also put each recorded call to the real engine, so n calls cost n forward passes or n
generations. The first difference ends the replay and is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from baseline.memory import Architecture
from baseline.record import BaselineRecord, RecordedAnswer, baseline_template_digest, recorded_completion
from baseline.run import ArchitectureRun, run_architecture
from projection.engine import Completion, Engine, EngineIdentity, Progress, Score, Tokenizer, Watch
from projection.errors import IncompleteError, RequestError, TaskError, VerificationError
from projection.events import LoggedEvent, events_digest
from projection.grammar import Grammar
from projection.record import record_decision
from projection.replay import (
    Diverged,
    Divergence,
    Level,
    ReplayReport,
    ReplayTools,
    Verdict,
    compare,
    compare_lists,
    differing_fields,
)
from projection.task import Task, load_task
from projection.view_grammar import Profile

Check = Callable[[RecordedAnswer, Grammar | None], None]
"""Holds one recorded call against what a level recomputes; raises `Diverged`."""


def replay_baseline(
    record: BaselineRecord, architecture: Architecture, events: Sequence[LoggedEvent], level: Level, tools: ReplayTools
) -> ReplayReport:
    """Replay a record up to a level against the events it was made from.

    Raises:
        EngineError: the engine cannot be started or fails.
    """
    reached: dict[Level, Verdict] = {}
    try:
        task = _replay_r0(record, events)
        reached["R0"] = "PASS"
        if level >= "R1":
            tokenizer = tools.tokenizer()
            _check_comparable(record, architecture, tokenizer)
            _rerun(record, architecture, events, task, "R1", tokenizer, _check_tokens(tokenizer))
            reached["R1"] = "PASS"
        if level >= "R2":
            engine = _same_engine(record, "R2", tools.engine())
            _rerun(record, architecture, events, task, "R2", engine.tokenizer, _check_scores(engine, tools.watch))
            reached["R2"] = "PASS"
        if level >= "R3":
            engine = _same_engine(record, "R3", tools.engine())
            _rerun(record, architecture, events, task, "R3", engine.tokenizer, _check_answers(engine, tools.watch))
            reached["R3"] = "PASS"
    except Diverged as found:
        reached[found.divergence.level] = found.verdict
        return _report(found.verdict, reached, found.divergence, record)
    return _report("PASS", reached, None, record)


class _RecordedEngine:
    """Answers with a record's calls in order, each held against what is asked and against a level's check."""

    def __init__(self, record: BaselineRecord, level: Level, tokenizer: Tokenizer, check: Check) -> None:
        self._record = record
        self._level = level
        self._tokenizer = tokenizer
        self._check = check
        self.num_answered = 0

    @property
    def identity(self) -> EngineIdentity:
        return EngineIdentity(self._record.engine)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def max_model_len(self) -> int:
        return self._record.content.max_model_len

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        grammar: Grammar | None,
        progress: Progress | None = None,
    ) -> Completion:
        """The next recorded answer, if it was an answer to this."""
        calls = self._record.content.calls
        if self.num_answered == len(calls):
            raise Diverged("DRIFT", Divergence(self._level, "num_calls", len(calls), len(calls) + 1))
        recorded = calls[self.num_answered]
        self.num_answered += 1
        name, digest = recorded.name, grammar.digest if grammar else None
        compare_lists(self._level, "prompt_token_ids", name, recorded.prompt_token_ids, prompt_token_ids)
        compare(self._level, "grammar_digest", recorded.grammar_digest, digest, call=name)
        compare(self._level, "max_tokens", recorded.max_tokens, max_tokens, call=name)
        self._check(recorded, grammar)
        return recorded_completion(recorded)

    def score(
        self, prompt_token_ids: Sequence[int], completion_token_ids: Sequence[int], grammar: Grammar | None
    ) -> Score:
        """A memory is built from answers, never from scores.

        Raises:
            RequestError: always.
        """
        raise RequestError("an architecture asked for scores, which a record does not hold")


def _replay_r0(record: BaselineRecord, events: Sequence[LoggedEvent]) -> Task:
    """Everything that needs no tokenizer: digests and the budget."""
    content = record.content
    try:
        task = load_task(content.task, "the recorded task")
    except TaskError as exc:
        raise Diverged("DRIFT", Divergence("R0", "task", "a task", "none", detail=exc.message)) from exc
    digests = {
        "num_events": (content.num_events, len(events)),
        "events_digest": (content.events_digest, events_digest(events)),
        "task_digest": (content.task_digest, task.digest),
        "engine_identity": (content.engine_identity, EngineIdentity(record.engine).digest),
        "content_digest": (record.content_digest, content.digest),
        "used_chars": (content.budget.used_chars, len(content.memory_text)),
        "budget_kept": (True, content.budget.used_chars <= content.budget.asked_chars),
    }
    for what, (recorded, recomputed) in digests.items():
        compare("R0", what, recorded, recomputed)
    return task


def _check_comparable(record: BaselineRecord, architecture: Architecture, tokenizer: Tokenizer) -> None:
    content = record.content
    here = {
        "architecture": (content.architecture, architecture.name),
        "parameters": (content.parameters, architecture.parameters),
        "tokenizer_digest": (record.engine.get("tokenizer_digest"), tokenizer.digest),
        "template_digest": (content.template_digest, baseline_template_digest()),
    }
    for what, (recorded, recomputed) in here.items():
        compare("R1", what, recorded, recomputed, verdict="INCOMPARABLE")


def _rerun(
    record: BaselineRecord,
    architecture: Architecture,
    events: Sequence[LoggedEvent],
    task: Task,
    level: Level,
    tokenizer: Tokenizer,
    check: Check,
) -> None:
    """The architecture again, on the recorded answers; memory and decision must come out as recorded."""
    content = record.content
    engine = _RecordedEngine(record, level, tokenizer, check)
    profile = Profile(content.profile.slot_candidates)
    run = _run_recorded(architecture, engine, events, task, content.budget.asked_chars, profile, level)
    decision = record_decision(run.decision.decision)
    compare(level, "num_calls", len(content.calls), engine.num_answered)
    compare(level, "memory_text", content.memory_text, run.built.text)
    compare(level, "decision", content.decision.model_dump(mode="json"), decision.model_dump(mode="json"))


def _run_recorded(
    architecture: Architecture,
    engine: _RecordedEngine,
    events: Sequence[LoggedEvent],
    task: Task,
    budget_chars: int,
    profile: Profile,
    level: Level,
) -> ArchitectureRun:
    """What cannot be built again from the record was not built so when it was recorded."""
    try:
        return run_architecture(architecture, engine, events, task, budget_chars, profile)
    except TaskError:
        raise  # a pattern that was too slow today says nothing about the record
    except (RequestError, IncompleteError, VerificationError) as exc:
        found = Divergence(level, "memory and decision", "built", "cannot be built", detail=exc.message)
        raise Diverged("DRIFT", found) from exc


def _check_tokens(tokenizer: Tokenizer) -> Check:
    """R1: the text is that of the tokens, and they end as their finish reason says."""

    def check(recorded: RecordedAnswer, grammar: Grammar | None) -> None:
        name, is_stopped = recorded.name, recorded.finish_reason == "stop"
        try:
            text, last = tokenizer.decode(recorded.token_ids), tokenizer.decode(recorded.token_ids[-1:])
        except RequestError as exc:
            found = Divergence("R1", "token_ids", "a text", "no text", name, detail=exc.message)
            raise Diverged("DRIFT", found) from exc
        compare("R1", "text", recorded.text, text, call=name)
        compare("R1", "ends its turn", is_stopped, last == "", call=name)
        num_tokens = len(recorded.token_ids)
        is_within = num_tokens <= recorded.max_tokens if is_stopped else num_tokens == recorded.max_tokens
        compare("R1", "keeps its token limit", True, is_within, call=name)

    return check


def _check_scores(engine: Engine, watch: Watch) -> Check:
    """R2: each recorded token is the best that the grammar allows, by one prefill a call."""

    def check(recorded: RecordedAnswer, grammar: Grammar | None) -> None:
        watch(f"R2 {recorded.name}")
        score = engine.score(recorded.prompt_token_ids, recorded.token_ids, grammar)
        best = [position.best_token_id for position in score.positions]
        compare_lists("R2", "token_ids", recorded.name, recorded.token_ids, best)

    return check


def _check_answers(engine: Engine, watch: Watch) -> Check:
    """R3: each call again, bit for bit."""

    def check(recorded: RecordedAnswer, grammar: Grammar | None) -> None:
        name = recorded.name
        again = engine.generate(recorded.prompt_token_ids, recorded.max_tokens, grammar, watch(f"R3 {name}"))
        compare_lists("R3", "token_ids", name, recorded.token_ids, again.token_ids)
        compare("R3", "text", recorded.text, again.text, call=name)
        compare("R3", "finish_reason", recorded.finish_reason, again.finish_reason, call=name)
        compare_lists("R3", "logprobs", name, recorded.logprobs, again.logprobs)
        compare_lists("R3", "margins", name, recorded.margins, again.margins)

    return check


def _same_engine(record: BaselineRecord, level: Level, engine: Engine) -> Engine:
    """The engine, if it is the one of the record."""
    recorded, here = record.content.engine_identity, engine.identity.digest
    if recorded != here:
        detail = "the engines differ in " + ", ".join(differing_fields(record.engine, engine.identity.fields))
        raise Diverged("INCOMPARABLE", Divergence(level, "engine_identity", recorded, here, detail=detail))
    compare(level, "max_model_len", record.content.max_model_len, engine.max_model_len)
    return engine


def _report(
    verdict: Verdict, levels: Mapping[Level, Verdict], found: Divergence | None, record: BaselineRecord
) -> ReplayReport:
    kind = record.engine.get("kind")
    return ReplayReport(verdict, levels, found, record.content.engine_identity, str(kind) if kind else None)
