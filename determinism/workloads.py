"""What the suite asks: the two calls of the example cases, short and long, under their grammar and free.

Promises that a workload is a pure function of the examples: the views that decisions are made from come from the
scripted engine, so that no model's answer is part of a question. Every prompt has more than 400 tokens of a usual
tokenizer: below that, kernels that depend on their neighbours look as if they did not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal, get_args

from inference.live_prompt import ChatTexts, read_chat
from inference.scripted_engine import ScriptedEngine, ScriptedTokenizer
from projection.decision import prepare_decision
from projection.engine import Tokenizer
from projection.errors import NotFoundError
from projection.events import LoggedEvent, numbered
from projection.grammar import Grammar
from projection.ingest import parse_events
from projection.projector import prepare_projection, project
from projection.task import Task, parse_task
from projection.view_grammar import Profile

Example = Literal["mortgage", "claim"]
EXAMPLES: tuple[Example, ...] = get_args(Example)
BUDGET_CHARS = 1338
NUM_EVENTS_SHORT = 2
PROFILE = Profile(slot_candidates=2)


@dataclass(frozen=True, slots=True)
class Workload:
    """One question. tenant: whose it is; two examples are two tenants. grammar: None lets the model speak freely."""

    name: str
    tenant: str
    system: str
    user: str
    grammar: Grammar | None

    def prompt_token_ids(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        return tuple(tokenizer.render_chat(self.system, self.user))


def load_workloads() -> list[Workload]:
    """All workloads, in one order.

    Raises:
        NotFoundError: the examples are not here.
    """
    return [workload for example in EXAMPLES for workload in _of_example(example)]


def choose_workloads(names: Sequence[str]) -> list[Workload]:
    """The workloads of these names, in the order of `load_workloads`.

    Raises:
        NotFoundError: there is none of that name.
    """
    known = load_workloads()
    unknown = sorted(set(names) - {workload.name for workload in known})
    if unknown:
        listed = ", ".join(workload.name for workload in known)
        raise NotFoundError(f"there is no workload {', '.join(map(repr, unknown))}; there are {listed}")
    return [workload for workload in known if workload.name in names]


def _of_example(example: Example) -> Iterator[Workload]:
    events, task = _read(example)
    lean = task.model_copy(update={"policy": None, "provisions": ()})
    for size, some_events, some_task in (("short", events[:NUM_EVENTS_SHORT], lean), ("long", events, task)):
        for call, (system, user), grammar in _calls(some_events, some_task):
            yield Workload(f"{example}-{call}-{size}", example, system, user, grammar)
            yield Workload(f"{example}-{call}-{size}-free", example, system, user, None)


def _calls(events: Sequence[LoggedEvent], task: Task) -> Iterator[tuple[str, ChatTexts, Grammar]]:
    """The texts, not tokens: every engine's own tokenizer renders them."""
    prompt, grammar = prepare_projection(ScriptedTokenizer(), events, task, BUDGET_CHARS, PROFILE)
    yield "projection", read_chat(prompt), grammar
    view = project(ScriptedEngine(), events, task, BUDGET_CHARS, PROFILE).view
    prompt, grammar = prepare_decision(ScriptedTokenizer(), task, view)
    yield "decision", read_chat(prompt), grammar


def _read(example: Example) -> tuple[tuple[LoggedEvent, ...], Task]:
    folder = examples_dir() / example
    parsed = parse_events((folder / "events.jsonl").read_bytes(), source_name=f"{example}/events.jsonl")
    task = parse_task((folder / "task.yaml").read_bytes(), f"{example}/task.yaml")
    return numbered(parsed.events), task


def examples_dir() -> Path:
    """The repository's folder `examples`.

    Raises:
        NotFoundError: it is not there.
    """
    folder = Path(str(files("gpu_configs"))).parent / "examples"
    if not folder.is_dir():
        raise NotFoundError("the suite needs the repository's folder `examples`: run it from a checkout")
    return folder
