"""The memory architectures by name, DPM among them, each behind the same call shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from baseline import summary
from baseline.embeddings import load_embedder
from baseline.memory import Architecture, BuiltMemory, MemoryCall, TextMemory
from baseline.retrieval import BM25_B, BM25_K1, BM25_METHOD, check_bm25, retrieve, score_bm25
from projection.engine import Engine, Watch, unwatched
from projection.errors import RequestError
from projection.events import LoggedEvent
from projection.projector import project
from projection.task import Task
from projection.view import Memory, parse_view
from projection.view_grammar import Profile


def load_architecture(name: str) -> Architecture:
    """The architecture of a name.

    Raises:
        RequestError: there is none of that name. ConfigurationError: its package is not installed.
    """
    make = _MAKERS.get(name)
    if make is None:
        raise RequestError(f"there is no memory architecture {name!r}; choose of {', '.join(ARCHITECTURES)}", name=name)
    return make()


def read_memory(name: str, text: str, task: Task) -> Memory:
    """A kept text as the memory that an architecture of this name made of it.

    Raises:
        VerificationError: it should be a view and has not the form of one.
    """
    return parse_view(text, task) if name in VIEWS else TextMemory(text)


def build_projection(
    engine: Engine,
    events: Sequence[LoggedEvent],
    task: Task,
    budget_chars: int,
    profile: Profile,
    watch: Watch = unwatched,
) -> BuiltMemory:
    """DPM: `projection.project` in the shape of the others."""
    projection = project(engine, events, task, budget_chars, profile, watch("projection"))
    call, text = projection.call, projection.view.text
    made = MemoryCall("projection", call.prompt_token_ids, call.grammar, call.max_tokens, call.completion, text)
    return BuiltMemory(projection.view, text, (made,))


def _dpm() -> Architecture:
    return Architecture("dpm", {}, build_projection)


def _every_event(name: str, is_closed_world: bool) -> Architecture:
    build = partial(summary.summarize_every_event, is_closed_world=is_closed_world)
    return Architecture(name, _summary_parameters(is_closed_world), build)


def _on_overflow(name: str, is_closed_world: bool) -> Architecture:
    build = partial(summary.summarize_on_overflow, is_closed_world=is_closed_world)
    return Architecture(name, _summary_parameters(is_closed_world), build)


def _summary_parameters(is_closed_world: bool) -> dict[str, Any]:
    return {"closed_world": is_closed_world, "chars_per_token": summary.CHARS_PER_TOKEN}


def _bm25() -> Architecture:
    check_bm25()
    parameters = {"ranking": "bm25", "k1": str(BM25_K1), "b": str(BM25_B), "method": BM25_METHOD}
    return Architecture("retrieval", parameters, partial(retrieve, score=score_bm25))


def _embeddings() -> Architecture:
    embedder = load_embedder()
    return Architecture("retrieval_embeddings", embedder.parameters, partial(retrieve, score=embedder.score))


_MAKERS: dict[str, Callable[[], Architecture]] = {
    "dpm": _dpm,
    "summarize_every_event": partial(_every_event, "summarize_every_event", False),
    "summarize_every_event_closed_world": partial(_every_event, "summarize_every_event_closed_world", True),
    "summarize_on_overflow": partial(_on_overflow, "summarize_on_overflow", False),
    "summarize_on_overflow_closed_world": partial(_on_overflow, "summarize_on_overflow_closed_world", True),
    "retrieval": _bm25,
    "retrieval_embeddings": _embeddings,
}
ARCHITECTURES: tuple[str, ...] = tuple(_MAKERS)
VIEWS = frozenset({"dpm", "summarize_every_event_closed_world"})  # their memories are views; all others are texts
