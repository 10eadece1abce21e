"""Retrieval: the events that are most relevant to the task, verbatim, as many as fit the budget. No model call.

Events are the units. They are ranked against the question and the task's fields, taken best first where they fit
whole, and shown in the order of the log. BM25 is the default; an embedding model is another `Scorer`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from baseline.memory import BuiltMemory, TextMemory, append_line, check_events, event_line
from projection.engine import Engine, Watch, unwatched
from projection.errors import ConfigurationError
from projection.events import LoggedEvent
from projection.task import Task
from projection.view_grammar import Profile

Scorer = Callable[[Sequence[str], str], Sequence[float]]
"""Documents and a query to one relevance for each document; higher is more relevant."""

BM25_K1, BM25_B, BM25_METHOD = 1.5, 0.75, "lucene"
_TOKEN = re.compile(r"[^\W_]+(?:[.,'/-][^\W_]+)*")


def retrieve(
    engine: Engine,
    events: Sequence[LoggedEvent],
    task: Task,
    budget_chars: int,
    profile: Profile,
    watch: Watch = unwatched,
    *,
    score: Scorer,
) -> BuiltMemory:
    """Remember the most relevant events within the budget; `engine`, `profile` and `watch` have nothing to do.

    Raises:
        RequestError: no events.
    """
    check_events(events)
    documents = [event_line(event) for event in events]
    ranked = rank(score(documents, render_query(task)))
    text = ""
    for index in sorted(select_within(documents, ranked, budget_chars)):
        text = append_line(text, documents[index])
    return BuiltMemory(TextMemory(text), text, ())


def render_query(task: Task) -> str:
    """What is looked for: the question, and each field in the words of the documents."""
    return "\n".join([task.question, *(field.description for field in task.fields)])


def rank(scores: Sequence[float]) -> list[int]:
    """Indices of the documents, best first; equals in the order of the log."""
    return sorted(range(len(scores)), key=lambda index: (-scores[index], index))


def select_within(documents: Sequence[str], ranked: Sequence[int], budget_chars: int) -> list[int]:
    """The documents of a ranking that fit whole into what is left of the budget, each with a line feed between."""
    chosen: list[int] = []
    used = -1  # the first document has no line feed before it
    for index in ranked:
        if used + 1 + len(documents[index]) <= budget_chars:
            chosen.append(index)
            used += 1 + len(documents[index])
    return chosen


def score_bm25(documents: Sequence[str], query: str) -> list[float]:
    """BM25 relevance of each document, indexed once. Terms are summed in the query's order, so the sums are fixed.

    Raises:
        ConfigurationError: `bm25s` is not installed.
    """
    bm25s = load_bm25()
    tokenized = [tokenize(document) for document in documents]
    vocabulary = {token for tokens in tokenized for token in tokens}
    terms = [token for token in dict.fromkeys(tokenize(query)) if token in vocabulary]
    if not terms:
        return [0.0] * len(documents)
    index = bm25s.BM25(k1=BM25_K1, b=BM25_B, method=BM25_METHOD, backend="numpy", auto_compile=False)
    index.index(tokenized, show_progress=False)
    return [float(relevance) for relevance in index.get_scores(terms)]


def check_bm25() -> None:
    """Refuse early where BM25 could not run. It is not imported: vLLM does not start in a process that imported numba.

    Raises:
        ConfigurationError: `bm25s` is not installed.
    """
    if find_spec("bm25s") is None:
        raise ConfigurationError("retrieval by BM25 needs the package bm25s: install dpm[bench]")


def load_bm25() -> Any:
    """The module `bm25s`, which takes a moment to import.

    Raises:
        ConfigurationError: it is not installed.
    """
    check_bm25()
    return import_module("bm25s")


def tokenize(text: str) -> list[str]:
    """Lower-case words, numbers and identifiers; a value with marks inside it is one token."""
    return [match[0].casefold() for match in _TOKEN.finditer(text)]
