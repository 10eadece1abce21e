"""The checks: each asks the same question under circumstances that should not matter.

A check is a name, what must be opened beside the endpoint, and a function that makes replays. It proves that its
circumstance came about, from the endpoint's own counters or from where the answers came from, or raises VacuousError:
a check that shows nothing is an ERROR, never a PASS. Nothing is asked again because it failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import JsonValue

from determinism.arena import ALONE, Arena, observed
from determinism.cell import Observed
from determinism.endpoint import MAX_TOKENS_OF_A_VICTIM, Endpoint, Request, VacuousError, Witnessed
from determinism.pressure import crowd
from determinism.surface import Surface
from projection.errors import NotFoundError

Beside = Literal[
    "new process", "speculation turned", "caching turned", "chunking", "crowded", "routes", "second server"
]


NUM_TIMES_IN_A_ROW = 3
ROUTES = ("completions", "chat")  # streamed, and in one piece
TURNED_ROUTES = ("completions, whole", "chat, streamed")


@dataclass(frozen=True, slots=True)
class Observation:
    """Replays of one request in one turn of a check, and what shows that the circumstance was there."""

    replays: list[Observed]
    evidence: dict[str, JsonValue] = field(default_factory=dict)


Observe = Callable[[Arena, Request, int], Observation]
Refer = Callable[[Arena, Request], Observed]


def _alone(arena: Arena, request: Request) -> Observed:
    return observed(ALONE, arena.alone(request))


@dataclass(frozen=True, slots=True)
class Check:
    """One named check.

    beside: what must be opened; None where the endpoint is enough. is_renewed: whether every turn opens it anew.
    is_same_engine: whether what was opened must have the endpoint's identity. is_counted: whether the endpoint's own
    counters are what shows that the check was real. needs_grammar: whether it is held under a grammar only.
    reference: what the replays are held against; `observe` gets the turn's number, from 0.
    """

    name: str
    observe: Observe
    beside: Beside | None = None
    is_renewed: bool = False
    is_same_engine: bool = True
    is_counted: bool = False
    needs_grammar: bool = False
    reference: Refer = _alone

    @property
    def is_batched(self) -> bool:
        """Whether it computes several requests for each one that it compares."""
        return self.is_counted or self.beside == "crowded"


def run_to_run(arena: Arena, request: Request, turn: int) -> Observation:
    """Again, alone, several times in a row."""
    witnessed = _cold(arena.main)
    times = range(turn * NUM_TIMES_IN_A_ROW, (turn + 1) * NUM_TIMES_IN_A_ROW)
    replays = [observed(f"again, time {time + 1}", arena.main.ask([request])[0]) for time in times]
    return Observation(replays, witnessed.counted())


def batch_size(arena: Arena, request: Request, turn: int) -> Observation:
    """First of batches of several sizes."""
    replays: list[Observed] = []
    evidence: dict[str, JsonValue] = {}
    for size in arena.effort.batch_sizes:
        witnessed = _cold(arena.main)
        completion, *_ = arena.main.ask([request, *arena.neighbours(request, size - 1, turn + size)])
        evidence[f"batch of {size}"] = witnessed.require(max_num_running=size)
        replays.append(observed(f"batch of {size}", completion))
    return Observation(replays, evidence)


def batch_position(arena: Arena, request: Request, turn: int) -> Observation:
    """At each place of a batch but the first, which the sizes have."""
    width = arena.effort.width
    replays: list[Observed] = []
    evidence: dict[str, JsonValue] = {}
    for place in range(1, width):
        batch = arena.neighbours(request, width - 1, turn)
        batch.insert(place, request)
        witnessed = _cold(arena.main)
        completion = arena.main.ask(batch)[place]
        evidence[f"place {place + 1}"] = witnessed.require(max_num_running=width)
        replays.append(observed(f"place {place + 1} of {width}", completion))
    return Observation(replays, evidence)


def arrival_order(arena: Arena, request: Request, turn: int) -> Observation:
    """Joining requests that run already, and being joined by others."""
    first, *more = arena.neighbours(request, arena.effort.width - 1, turn)
    witnessed = _cold(arena.main)
    joining = arena.main.ask_late(first, [request, *more])[1]
    joins = witnessed.require(max_num_running=2)
    witnessed = _cold(arena.main)
    joined = arena.main.ask_late(request, [first, *more])[0]
    is_joined = witnessed.require(max_num_running=2)
    replays = [observed("joins a running request", joining), observed("is joined while it runs", joined)]
    return Observation(replays, {"joins": joins, "is joined": is_joined})


def strangers(arena: Arena, request: Request, turn: int) -> Observation:
    """In a batch with prompts of other tenants."""
    others = arena.strangers(request, arena.effort.width - 1, turn)
    if not others:
        raise VacuousError("no workload of another tenant was chosen: there are no strangers")
    witnessed = _cold(arena.main)
    completion, *_ = arena.main.ask([request, *others])
    evidence = witnessed.require(max_num_running=len(others) + 1)
    return Observation([observed(f"among {len(others)} strangers", completion)], evidence)


def prefill_reference(arena: Arena, request: Request) -> Observed:
    """What the answer's own forward passes said, as far as one forward pass can say it."""
    said = arena.alone(request)
    logprobs = said.logprobs if request.grammar is None else ()
    return Observed("token by token", Surface.build(said.token_ids, "", logprobs), said.wall_s)


def prefill_vs_decode(arena: Arena, request: Request, turn: int) -> Observation:
    """One forward pass over prompt and answer: the best tokens and, where no grammar masks them, their numbers."""
    said = arena.alone(request)
    witnessed = _cold(arena.main)
    score = arena.main.score(request, said.token_ids)
    logprobs = [p.logprob for p in score.positions] if request.grammar is None else []
    surface = Surface.build([p.best_token_id for p in score.positions], "", logprobs)
    evidence = {**witnessed.counted(), "num_scored_tokens": len(score.positions)}
    return Observation([Observed(f"in one forward pass, time {turn + 1}", surface, score.wall_s)], evidence)


def neighbour_abort(arena: Arena, request: Request, turn: int) -> Observation:
    """Beside a request that is given up while both run."""
    (neighbour,) = arena.neighbours(request, 1, turn)
    victim = replace(neighbour, max_tokens=MAX_TOKENS_OF_A_VICTIM, grammar=None)
    witnessed = _cold(arena.main)
    completion, was_given_up = arena.main.ask_beside_abort(request, victim)
    evidence = witnessed.require(max_num_running=2)
    if not was_given_up:
        raise VacuousError("the check was vacuous: the neighbour ended before it could be given up")
    return Observation([observed("beside an aborted request", completion)], {**evidence, "was_given_up": True})


def restart(arena: Arena, request: Request, turn: int) -> Observation:
    """In another process that was started for it."""
    ((_, other),) = arena.others.items()
    return _elsewhere(arena, {f"new process {turn + 1}": other}, request)


def second_server(arena: Arena, request: Request, turn: int) -> Observation:
    """On two servers of the same identity."""
    return _elsewhere(arena, arena.others, request)


def route(arena: Arena, request: Request, turn: int) -> Observation:
    """Over the completions route and over the chat route, as each is used most."""
    return _elsewhere(arena, _named(arena, ROUTES), request)


def streaming(arena: Arena, request: Request, turn: int) -> Observation:
    """The other way round: completions in one piece, and the chat token by token."""
    return _elsewhere(arena, _named(arena, TURNED_ROUTES), request)


def speculation(arena: Arena, request: Request, turn: int) -> Observation:
    """With and without tokens guessed ahead and verified together; free text may repeat nothing to guess from."""
    return _turned(arena, request, "num_draft_tokens")


def prefix_cache(arena: Arena, request: Request, turn: int) -> Observation:
    """Asked twice with and without a cache of prefixes, from which the second answer is read."""
    return _turned(arena, request, "num_cached_tokens")


def chunked_prefill(arena: Arena, request: Request, turn: int) -> Observation:
    """With a prompt that is computed in several steps."""
    ((name, other),) = arena.others.items()
    witnessed = _cold(other)
    (completion,) = other.ask([request])
    return Observation([observed(name, completion)], witnessed.require(num_steps=len(completion.token_ids) + 1))


def _turned(arena: Arena, request: Request, counter: str) -> Observation:
    """Twice on the endpoint and twice where one feature is the other way: the counter must move on one of them only."""
    ((name, other),) = arena.others.items()
    replays: list[Observed] = []
    evidence: dict[str, JsonValue] = {}
    moved = []
    for label, endpoint in (("as configured", arena.main), (name, other)):
        witnessed = _cold(endpoint)
        first, second = (endpoint.ask([request])[0] for _ in range(2))
        evidence[label] = counted = witnessed.counted()
        moved.append(bool(counted.get(counter)))
        replays += [observed(label, first), observed(f"{label}, again", second)]
    if sum(moved) != 1:
        raise VacuousError(f"the check was vacuous: {counter} moved on {sum(moved)} of two engines, and it needs one")
    return Observation(replays, evidence)


def preemption(arena: Arena, request: Request, turn: int) -> Observation:
    """Last in a crowd that the KV cache cannot hold, so that it is thrown out and computed again."""
    ((name, other),) = arena.others.items()
    (alone,) = other.ask([request])  # also has the grammar compiled, without which the request would come too late
    batch = [*crowd(request, arena.requests), request]
    witnessed = _cold(other)
    *_, completion = other.ask(batch)
    evidence = witnessed.require(num_preemptions=1, max_num_running=2)
    replays = [observed(f"{name}, alone", alone), observed(f"{name}, last of {len(batch)}", completion)]
    return Observation(replays, evidence)


def _cold(endpoint: Endpoint) -> Witnessed:
    """Begin a circumstance in which every prompt must be computed: one read from a cache has no neighbours."""
    endpoint.forget()
    return Witnessed(endpoint)


def _named(arena: Arena, names: Sequence[str]) -> dict[str, Endpoint]:
    return {name: other for name, other in arena.others.items() if name in names}


def _elsewhere(arena: Arena, others: Mapping[str, Endpoint], request: Request) -> Observation:
    """Each of the others alone; they must not be the endpoint itself, nor each other."""
    places = [arena.main.place, *(other.place for other in others.values())]
    if len(set(places)) < len(places):
        raise VacuousError(f"the check was vacuous: two of its endpoints are one and the same ({', '.join(places)})")
    replays = [observed(name, other.ask([request])[0]) for name, other in others.items()]
    return Observation(replays, {"places": list(places)})


CHECKS: tuple[Check, ...] = (
    Check("run_to_run", run_to_run),
    Check("prefill_vs_decode", prefill_vs_decode, reference=prefill_reference),
    Check("batch_size", batch_size, is_counted=True),
    Check("batch_position", batch_position, is_counted=True),
    Check("arrival_order", arrival_order, is_counted=True),
    Check("strangers", strangers, is_counted=True),
    Check("neighbour_abort", neighbour_abort, is_counted=True),
    Check("restart", restart, beside="new process", is_renewed=True),
    Check("speculation", speculation, beside="speculation turned", is_same_engine=False, needs_grammar=True),
    Check("chunked_prefill", chunked_prefill, beside="chunking", is_same_engine=False),
    Check("prefix_cache", prefix_cache, beside="caching turned", is_same_engine=False),
    Check("preemption", preemption, beside="crowded", is_same_engine=False),
    Check("route", route, beside="routes"),
    Check("streaming", streaming, beside="routes"),
    Check("second_server", second_server, beside="second server"),
)


def choose_checks(names: Sequence[str]) -> list[Check]:
    """The checks of these names, in the order of `CHECKS`.

    Raises:
        NotFoundError: there is none of that name.
    """
    unknown = sorted(set(names) - {check.name for check in CHECKS})
    if unknown:
        listed = ", ".join(check.name for check in CHECKS)
        raise NotFoundError(f"there is no check {', '.join(map(repr, unknown))}; there are {listed}")
    return [check for check in CHECKS if check.name in names]
