"""The gate: each case decided again and held against its golden; and the one way in which goldens are made.

PASS          the same bits as approved
DRIFT         other inputs or other bits, with the first divergence
INCOMPARABLE  there are goldens, but of other engines: no statement is made, and the fields that differ are named
MISSING       nobody approved a golden of this case
UNUSED        a golden that no case asks for
ERROR         the engine failed, or a golden is corrupt, was changed without an approval, or is gone
SKIPPED       the list of cases says so, with its reason

Zero retries. The engine is opened only when a case has a golden that it could be held against.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from determinism.gate.cases import GateCase
from determinism.gate.compare import (
    Divergence,
    GateLevel,
    compare_prompt,
    compare_score,
    compare_surface,
    find_changed_input,
)
from determinism.gate.golden import CallName, Golden, GoldenCall, GoldenKey, Inputs, Question
from determinism.gate.perturbations import perturbed
from determinism.gate.store import Goldens
from determinism.suite.checks import Check
from determinism.surface import Surface
from determinism.verdict import DOES_NOT_HOLD, EXIT_CODES, HOLDS, NOTHING_RAN, Verdict
from projection.decision import decide, prepare_decision
from projection.engine import Engine, Watch, unwatched
from projection.errors import DpmError, RequestError
from projection.grammar import Grammar
from projection.projector import answer_room, prepare_projection, project
from projection.replay import differing_fields
from projection.view import verify_view
from projection.view_grammar import Profile

ALWAYS_RED: tuple[Verdict, ...] = ("DRIFT", "ERROR", "INCOMPARABLE")
RED_WHEN_STRICT: tuple[Verdict, ...] = ("MISSING", "UNUSED", "SKIPPED")
MAX_FIELDS_NAMED = 8

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """What the gate says of one case.

    reason: why, on one line; empty when it passed. differing_fields: of the nearest golden's engine and this one.
    num_replays: how often both calls were generated again.
    """

    case: str
    verdict: Verdict
    reason: str = ""
    divergence: Divergence | None = None
    differing_fields: tuple[str, ...] = ()
    golden_digest: str | None = None
    num_replays: int = 0
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Gate:
    """What cases are held against: the goldens, the engine and how far.

    open_engine: gives the one engine, started at the first call.
    """

    goldens: Goldens
    open_engine: Callable[[], Engine]
    profile: Profile
    level: GateLevel = "R3"
    watch: Watch = unwatched


def run_gate(gate: Gate, cases: Sequence[GateCase], only: Collection[str] | None, say: Say) -> tuple[Finding, ...]:
    """Check every case, or only those named; then name the goldens that no case asks for.

    say: told of each case as it begins, with the time left.
    """
    chosen = [case for case in cases if only is None or case.name in only]
    findings: list[Finding] = []
    for number, case in enumerate(chosen, start=1):
        done_s = [finding.wall_s for finding in findings if finding.verdict not in ("MISSING", "SKIPPED")]
        left = f", about {sum(done_s) / len(done_s) * (len(chosen) - number + 1):.0f} s left" if done_s else ""
        say(f"case {number} of {len(chosen)}: {case.name}{left}")
        findings.append(check_case(gate, case))
    unused = find_unused(gate.goldens, {case.name for case in cases}) if only is None else ()
    return (*findings, *unused)


def check_case(gate: Gate, case: GateCase, num_replays: int = 1, perturbations: Sequence[Check] = ()) -> Finding:
    """Hold one case against its golden, also under circumstances; errors of case and engine become a finding."""
    started = time.perf_counter()

    def found(verdict: Verdict, reason: str = "", **more: Any) -> Finding:
        return Finding(case.name, verdict, reason, wall_s=time.perf_counter() - started, **more)

    if case.skip is not None:
        return found("SKIPPED", case.skip)
    faults = gate.goldens.faults_of(case.name)
    if faults:
        return found("ERROR", "; ".join(faults))
    if not gate.goldens.of_case(case.name):
        return found("MISSING", "no golden was approved for this case: dpm determinism approve --reason TEXT")
    engine = gate.open_engine()  # an engine that does not start stops the gate
    try:
        golden = gate.goldens.approved.get(GoldenKey(case.name, engine.identity.digest))
        if golden is None:
            fields = _fields_of_nearest(gate.goldens.of_case(case.name), engine)
            return found("INCOMPARABLE", _incomparable(fields), differing_fields=fields)
        divergences = _divergences(gate, case, golden, engine, num_replays, perturbations)
        divergence = next(filter(None, divergences), None)
    except DpmError as exc:
        return found("ERROR", f"{type(exc).__name__}: {exc.message}")
    if divergence is not None:
        return found("DRIFT", str(divergence), divergence=divergence, golden_digest=golden.digest)
    again = num_replays if gate.level == "R3" else 0
    return found("PASS", golden_digest=golden.digest, num_replays=again)


def observe(engine: Engine, case: GateCase, profile: Profile, watch: Watch = unwatched) -> Golden:
    """Decide a case as `dpm decide` does, and return what would be its golden.

    Raises:
        RequestError: what cannot be decided, or an engine whose answers nothing pins. EngineError: the engine failed.
        VerificationError: an answer that breaks the closed world.
    """
    if engine.identity.fields.get("kind") == "unpinned":
        raise RequestError("a live API has no golden: nothing pins what it says; compare it instead")
    projection = project(engine, case.events, case.task, case.budget_chars, profile, watch(f"{case.name} projection"))
    decision = decide(engine, case.task, projection.view, watch(f"{case.name} decision"))
    inputs = Inputs.of(case.events, case.task, case.budget_chars, profile)
    return Golden.build(
        case.name, engine.identity, inputs, GoldenCall.of(projection.call), GoldenCall.of(decision.call)
    )


def find_unused(goldens: Goldens, asked: Collection[str]) -> tuple[Finding, ...]:
    """A finding for each golden whose case nobody asks for."""
    return tuple(
        Finding(name, "ERROR", "; ".join(faults))
        if (faults := goldens.faults_of(name))
        else Finding(name, "UNUSED", "no case asks for this golden: dpm determinism approve --prune --reason TEXT")
        for name in goldens.case_names
        if name not in asked
    )


def is_red(finding: Finding, strict: bool) -> bool:
    """Whether this finding alone lets the gate fail."""
    return finding.verdict in ALWAYS_RED or (strict and finding.verdict in RED_WHEN_STRICT)


def gate_exit_code(findings: Sequence[Finding], strict: bool) -> int:
    """The exit code of a gate: the worst finding, or that no case was compared with a golden at all."""
    verdicts = {finding.verdict for finding in findings}
    for verdict in ALWAYS_RED:
        if verdict in verdicts:
            return EXIT_CODES[verdict]
    if strict and verdicts & set(RED_WHEN_STRICT):
        return DOES_NOT_HOLD
    return HOLDS if "PASS" in verdicts else NOTHING_RAN


def _divergences(
    gate: Gate, case: GateCase, golden: Golden, engine: Engine, num_replays: int, perturbations: Sequence[Check]
) -> Iterator[Divergence | None]:
    """R1 of both calls, then R2, R3, and R3 perturbed; nothing is asked of the engine before its turn."""
    cause = find_changed_input(golden.inputs, Inputs.of(case.events, case.task, case.budget_chars, gate.profile))
    grammars: dict[CallName, Grammar] = {}
    for call, recorded in golden.calls.items():
        prompt_token_ids, grammars[call] = _prepare(call, case, golden, engine, gate.profile)
        asked = Question(
            prompt_token_ids=tuple(prompt_token_ids),
            grammar_digest=grammars[call].digest,
            max_tokens=answer_room(len(prompt_token_ids), grammars[call], engine.max_model_len),
        )
        yield compare_prompt(call, recorded.asked, asked, cause, engine.tokenizer)
    for call, recorded in golden.calls.items() if gate.level >= "R2" else ():
        gate.watch(f"R2 {case.name} {call}")
        score = engine.score(recorded.asked.prompt_token_ids, recorded.answer.token_ids, grammars[call])
        yield compare_score(call, recorded.answer, score, engine.tokenizer)
    for _ in range(num_replays if gate.level >= "R3" else 0):
        for call, recorded in golden.calls.items():
            asked, progress = recorded.asked, gate.watch(f"R3 {case.name} {call}")
            again = engine.generate(asked.prompt_token_ids, asked.max_tokens, grammars[call], progress)
            yield compare_surface(call, recorded.answer, Surface.of(again), engine.tokenizer)
    yield from perturbed(golden, grammars, engine, perturbations, num_replays)


def _prepare(
    call: CallName, case: GateCase, golden: Golden, engine: Engine, profile: Profile
) -> tuple[list[int], Grammar]:
    """Prompt and grammar of a call from the case as it is now; the decision is asked about the golden's own view."""
    if call == "projection":
        return prepare_projection(engine.tokenizer, case.events, case.task, case.budget_chars, profile)
    view = verify_view(golden.projection.answer.text, case.events, case.task, case.budget_chars)
    return prepare_decision(engine.tokenizer, case.task, view)


def _fields_of_nearest(goldens: Sequence[Golden], engine: Engine) -> tuple[str, ...]:
    """The fields in which the engine differs from that golden's engine which is most like it."""
    differing = [tuple(differing_fields(golden.engine, engine.identity.fields)) for golden in goldens]
    return min(differing, key=lambda fields: (len(fields), fields))


def _incomparable(fields: Sequence[str]) -> str:
    more = f" and {len(fields) - MAX_FIELDS_NAMED} more" if len(fields) > MAX_FIELDS_NAMED else ""
    return f"approved on another engine; the nearest differs in {', '.join(fields[:MAX_FIELDS_NAMED])}{more}"
