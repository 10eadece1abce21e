"""A folder of goldens as a user has it: two cases and their list; and engines that break one thing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from determinism.gate.cases import read_cases
from determinism.gate.compare import GateLevel
from determinism.gate.run import Finding, Gate, observe, run_gate
from determinism.gate.store import Approval, approve, read_goldens
from inference.scripted_engine import ScriptedEngine
from projection.engine import Completion, Engine, EngineIdentity, Progress
from projection.grammar import Grammar
from projection.view_grammar import Profile
from tests.projection.cases import EVENTS, TASK_YAML
from tests.projection.trajectories import NOW
from tests.service.conftest import write_events

PROFILE = Profile(slot_candidates=2)
LISTED = """
cases:
  - {name: small, events: ../small.jsonl, task: ../task.yaml}
  - {name: tight, events: ../small.jsonl, task: ../task.yaml, budget_chars: 900}
"""


def write_cases(folder: Path) -> Path:
    """The two cases and their list, nothing approved; returns the folder of goldens."""
    write_events(folder / "small.jsonl", [logged.event for logged in EVENTS])
    (folder / "task.yaml").write_bytes(TASK_YAML)
    goldens = folder / "goldens"
    goldens.mkdir()
    (goldens / "cases.yaml").write_text(LISTED, encoding="utf-8")
    return goldens


def approve_all(goldens: Path, engine: Engine | None = None, reason: str = "first answers") -> tuple[Approval, ...]:
    """Approve what every case says on the engine."""
    observed = [observe(engine or ScriptedEngine(), case, PROFILE) for case in read_cases(goldens)]
    return approve(goldens, observed, reason=reason, by="ann", now=NOW)


def run(
    goldens: Path, engine: Engine | None = None, level: GateLevel = "R3", only: Sequence[str] | None = None
) -> dict[str, Finding]:
    """The gate's findings by case."""
    gate = Gate(read_goldens(goldens), lambda: engine or ScriptedEngine(), PROFILE, level)
    return {finding.case: finding for finding in run_gate(gate, read_cases(goldens), only, lambda _: None)}


class AlteredEngine(ScriptedEngine):
    """A scripted engine whose completions are altered, or whose identity has other fields."""

    def __init__(self, fields: Mapping[str, Any] | None = None, **changes: Any) -> None:
        super().__init__()
        self._fields = dict(fields or {})
        self._changes = changes

    @property
    def identity(self) -> EngineIdentity:
        return EngineIdentity({**super().identity.fields, **self._fields})

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        grammar: Grammar | None,
        progress: Progress | None = None,
    ) -> Completion:
        said = super().generate(prompt_token_ids, max_tokens, grammar, progress)
        return replace(said, **{name: change(getattr(said, name)) for name, change in self._changes.items()})
