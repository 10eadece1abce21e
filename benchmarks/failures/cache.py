"""A shared cache that serves another tenant: what an imperfect key does to a running summary (paper, section 10).

Services that summarise keep summaries, so that a case which goes on need not be folded again. `SummaryCache` is such a
cache, made for this demonstration only, with a key that is given to it. `key_by_case` leaves out the tenant, as a key
does that was written before there was a second one. `key_by_content` covers everything that the summary depends on.
A projection has nothing to cache: it is one call over the log that it is handed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from baseline.memory import TextMemory, append_line, event_line
from baseline.summary import update_memory
from benchmarks.failures.case import CaseInput
from benchmarks.failures.order import memory_values
from benchmarks.scorers.citations import task_text
from projection.anchors import find_anchors
from projection.canonical import value_digest
from projection.engine import Engine
from projection.entry import Stream
from projection.events import LoggedEvent, events_digest

Key = Callable[["Tenant", Sequence[LoggedEvent], Engine], str]


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant's case in the service."""

    stream: Stream
    case: CaseInput


@dataclass(frozen=True, slots=True)
class SummaryCache:
    """Memories by key, shared by all tenants of a service."""

    key: Key
    memories: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CachedMemory:
    """A memory folded through a shared cache. num_hits: events whose memory came out of the cache."""

    text: str
    num_hits: int


@dataclass(frozen=True, slots=True)
class Leak:
    """What the second tenant was served.

    is_own_memory: the memory is what his own events give without a cache.
    foreign_values: values in it that stand in none of his events, and not in his task.
    """

    key: str
    num_hits: int
    is_own_memory: bool
    foreign_values: tuple[str, ...]


def key_by_case(tenant: Tenant, seen: Sequence[LoggedEvent], engine: Engine) -> str:
    """Case and event: right as long as there is one tenant. Deliberately wrong."""
    return f"{tenant.stream.case_id}/{seen[-1].position}"


def key_by_content(tenant: Tenant, seen: Sequence[LoggedEvent], engine: Engine) -> str:
    """The tenant, and everything that the memory is a function of."""
    stream, case = tenant.stream, tenant.case
    parts = [events_digest(seen), case.task.digest, case.budget_chars, engine.identity.digest]
    return value_digest("dpm/summary-cache/v1", [stream.tenant_id, stream.case_id, *parts])


def fold_cached(cache: SummaryCache, tenant: Tenant, engine: Engine) -> CachedMemory:
    """`summarize_on_overflow`, each memory taken from the cache where it is there and put there where it is not."""
    case, text, num_hits = tenant.case, "", 0
    for num_seen in range(1, len(case.events) + 1):
        seen = case.events[:num_seen]
        key = cache.key(tenant, seen, engine)
        if key in cache.memories:
            num_hits += 1
        else:
            longer = append_line(text, event_line(seen[-1]))
            is_full = len(longer) > case.budget_chars
            update = update_memory(engine, text, seen, case.task, case.budget_chars, None) if is_full else None
            cache.memories[key] = update.memory_text if update else longer
        text = cache.memories[key]
    return CachedMemory(text, num_hits)


def measure_leak(key: Key, engine: Engine, first: Tenant, second: Tenant) -> Leak:
    """Fold the first tenant's case, then the second's, through one cache; then the second's without it."""
    cache = SummaryCache(key)
    fold_cached(cache, first, engine)
    served = fold_cached(cache, second, engine)
    own = fold_cached(SummaryCache(key), second, engine)
    his_texts = [task_text(second.case.task), *(event_line(event) for event in second.case.events)]
    his = {anchor.value for text in his_texts for anchor in find_anchors(text)}
    foreign = memory_values(TextMemory(served.text)) - his
    return Leak(key.__name__, served.num_hits, served.text == own.text, tuple(sorted(foreign)))
