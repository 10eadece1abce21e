"""Why a record does not replay here: where its answers part from this engine's, and what makes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from determinism.divergence import CONTEXT_TOKENS, CallDivergence, decode_ids, find_divergence
from determinism.doctor.calls import RebuiltCall, rebuild_calls
from determinism.doctor.diagnosis import Diagnosis, diagnose
from determinism.doctor.switches import Setting, Switch, find_switches, recorded_prompt, without_grammar
from determinism.surface import Surface
from determinism.verdict import Verdict
from projection.case import SealedCase
from projection.engine import EngineIdentity, Tokenizer
from projection.replay import Divergence, ReplayTools, differing_fields, first_other, replay

Say = Callable[[str], None]


class Laboratory(Protocol):
    """Where engines are asked; `doctor.trials.Bench` is one."""

    def ask(self, setting: Setting, calls: Sequence[RebuiltCall]) -> list[Surface]: ...

    def identity(self, setting: Setting) -> EngineIdentity: ...


@dataclass(frozen=True, slots=True)
class PromptDivergence:
    """Where a recorded prompt parts from the one that the log gives today. index: of the first other token."""

    call: str
    index: int
    before: str
    recorded: str
    rebuilt: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What was found.

    without_engine: what R0 or R1 finds, None where they pass. prompt: where a prompt is another one.
    differing_fields: of the recorded engine identity and this one. divergences: of the calls that part.
    diagnosis: None where nothing parts, or nothing could be asked. switches: those that were at hand, by name.
    fixed: differing fields that nothing here can turn.
    """

    verdict: Verdict
    without_engine: Divergence | None
    engine_identity: str | None
    prompt: PromptDivergence | None = None
    differing_fields: tuple[str, ...] = ()
    divergences: tuple[CallDivergence, ...] = ()
    diagnosis: Diagnosis | None = None
    fixed: tuple[str, ...] = ()
    switches: Mapping[str, Switch] | None = None

    @property
    def causes(self) -> tuple[Switch, ...]:
        if self.diagnosis is None or self.switches is None:
            return ()
        return tuple(self.switches[name] for name in self.diagnosis.causes)


def explain_record(
    sealed: SealedCase, setting: Setting, tokenizer: Tokenizer, laboratory: Laboratory, say: Say
) -> Explanation:
    """Ask both calls again, and find out why an answer is another one.

    Raises:
        EngineError: the engine of this setting cannot be started, or failed.
    """
    tools = ReplayTools(lambda: tokenizer, _unneeded)
    report = replay(sealed.record, sealed.events, "R1", tools, sealed.log_break)
    found = report.first_divergence
    is_askable = "R1" in report.levels and (found is None or found.what in ("prompt_token_ids", "grammar_digest"))
    if not is_askable:
        return Explanation(report.verdict, found, None)
    identity = laboratory.identity(setting)
    differing = tuple(differing_fields(sealed.record.engine, identity.fields))
    calls = rebuild_calls(sealed, tokenizer)
    prompt = next(filter(None, (_prompt_divergence(call, tokenizer) for call in calls)), None)
    say("asking both calls again")
    parted = _parted(calls, laboratory.ask(setting, calls), tokenizer)
    verdict: Verdict = "INCOMPARABLE" if differing else "DRIFT" if found or parted else "PASS"
    if not parted:
        return Explanation(verdict, found, identity.digest, prompt, differing)
    found_switches = find_switches(sealed.record.engine, identity.fields, setting)
    restoring = [*_prompt_switch(calls), *found_switches.restoring]
    others = [without_grammar(), *found_switches.others]
    switches = {switch.name: switch for switch in (*restoring, *others)}
    trials = _Trials(laboratory, setting, switches, calls, say)
    diagnosis = diagnose([switch.name for switch in restoring], [switch.name for switch in others], trials.agrees)
    return Explanation(
        verdict, found, identity.digest, prompt, differing, parted, diagnosis, found_switches.fixed, switches
    )


def _parted(
    calls: Sequence[RebuiltCall], surfaces: Sequence[Surface], tokenizer: Tokenizer
) -> tuple[CallDivergence, ...]:
    pairs = zip(calls, surfaces, strict=True)
    found = (find_divergence(call.name, call.surface, surface, tokenizer) for call, surface in pairs)
    return tuple(divergence for divergence in found if divergence is not None)


def _prompt_divergence(call: RebuiltCall, tokenizer: Tokenizer) -> PromptDivergence | None:
    recorded, rebuilt = call.recorded.prompt_token_ids, call.prompt_token_ids
    index = first_other(recorded, rebuilt)
    if index is None:
        return None
    before = decode_ids(tokenizer, rebuilt[max(0, index - CONTEXT_TOKENS) : index])
    after = (decode_ids(tokenizer, ids[index : index + CONTEXT_TOKENS]) for ids in (recorded, rebuilt))
    return PromptDivergence(call.name, index, before, *after)


def _prompt_switch(calls: Sequence[RebuiltCall]) -> list[Switch]:
    return [] if all(call.has_recorded_prompt for call in calls) else [recorded_prompt()]


class _Trials:
    """Asks both calls, in the order in which they were recorded, with some switches turned; and says what it does."""

    def __init__(
        self,
        laboratory: Laboratory,
        setting: Setting,
        switches: Mapping[str, Switch],
        calls: Sequence[RebuiltCall],
        say: Say,
    ) -> None:
        self._laboratory, self._setting, self._switches = laboratory, setting, switches
        self._calls, self._say = calls, say
        self._num_trials, self._started = 0, time.monotonic()

    def agrees(self, turned: tuple[str, ...]) -> bool:
        setting = self._setting
        for name in turned:
            setting = self._switches[name].turn(setting)
        self._say(f"{self._left()}: {self._changes(turned)}")
        self._num_trials += 1
        surfaces = self._laboratory.ask(setting, self._calls)
        return all(call.surface == surface for call, surface in zip(self._calls, surfaces, strict=True))

    def _changes(self, turned: tuple[str, ...]) -> str:
        return ", ".join(f"{name} {self._switches[name].change}" for name in turned) or "nothing turned"

    def _left(self) -> str:
        """Which trial begins, and how long the rest takes at most."""
        max_trials = len(self._switches) + 2  # all together, each alone, and back again
        if not self._num_trials:
            return f"trial 1 of at most {max_trials}"
        seconds = (time.monotonic() - self._started) / self._num_trials * (max_trials - self._num_trials)
        return f"trial {self._num_trials + 1} of at most {max_trials}, at most {seconds:.0f} s left"


def _unneeded() -> Any:
    raise AssertionError("R1 asks no engine")
