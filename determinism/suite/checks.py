"""The checks: each asks the same question under circumstances that should not matter.

A check is a name, what must be opened beside the endpoint, and a function that makes replays. It proves that its
circumstance came about, from the endpoint's own counters or from where the answers came from, or raises VacuousError:
a check that shows nothing is an ERROR, never a PASS. Nothing is asked again because it failed.
A question that gives the circumstance no occasion is skipped, unless that is true of all.

What counts as a comparison is one answer that was given under the circumstance, held against the answer to the same
request alone. Of a batch that was seen to run together every row is one, each request once: a second row of the same
request may be read from the first one's prefix. Answers on the way (one that fills a cache, or shows that the endpoint
itself guesses ahead) are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from pydantic import JsonValue

from determinism.cell import Observed
from determinism.endpoints.endpoint import Endpoint, NoOccasionError, Request, VacuousError, Witnessed
from determinism.suite.arena import ALONE, Arena, observed
from determinism.suite.pressure import crowd
from determinism.surface import Surface
from projection.engine import Completion
from projection.errors import NotFoundError

Beside = Literal[
    "new process", "speculation turned", "caching turned", "chunking", "crowded", "routes", "second server"
]

NUM_TIMES_IN_A_ROW = 3
MAX_PROMPT_TOKENS_OF_A_VICTIM, MAX_TOKENS_OF_A_VICTIM = 2048, 1024  # short enough for the tiny model's context
ROUTES = ("completions", "chat")  # streamed, and in one piece
TURNED_ROUTES = ("completions, whole", "chat, streamed")


class Row(NamedTuple):
    """One comparison: what was asked, and what came."""

    request: Request
    replay: Observed


@dataclass(frozen=True, slots=True)
class Observation:
    """One turn of a check, led by one request: what was compared, and what shows that the circumstance was there."""

    rows: list[Row]
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
    reference: what the replays are held against; `observe` gets the request that leads, and its turn's number, from 0.
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
    return Observation(_of(request, replays), witnessed.counted())


def batch_size(arena: Arena, request: Request, turn: int) -> Observation:
    """In batches of several sizes."""
    rows: list[Row] = []
    evidence: dict[str, JsonValue] = {}
    for size in arena.effort.batch_sizes:
        batch = [request, *arena.neighbours(request, size - 1, turn + size)]
        witnessed = _cold(arena.main)
        completions = arena.main.ask(batch)
        evidence[f"batch of {size}"] = witnessed.require(max_num_running=size)
        rows += _distinct(batch, completions, [f"batch of {size}"] * size)
    return Observation(rows, evidence)


def batch_position(arena: Arena, request: Request, turn: int) -> Observation:
    """At each place of a batch but the first, which goes round."""
    width = arena.effort.width
    batch = [request, *arena.neighbours(request, width - 1, turn)]
    rows: list[Row] = []
    evidence: dict[str, JsonValue] = {}
    for place in range(1, width):
        turned = batch[-place:] + batch[:-place]
        witnessed = _cold(arena.main)
        completions = arena.main.ask(turned)
        evidence[f"place {place + 1}"] = witnessed.require(max_num_running=width)
        labels = [f"place {number} of {width}" for number in range(2, width + 1)]
        rows += _distinct(turned[1:], completions[1:], labels)
    return Observation(rows, evidence)


def arrival_order(arena: Arena, request: Request, turn: int) -> Observation:
    """Joining requests that run already, and being joined by others."""
    width = arena.effort.width
    first, *more = arena.neighbours(request, width - 1, turn)
    rows: list[Row] = []
    evidence: dict[str, JsonValue] = {}
    for name, batch in (("joins", [first, request, *more]), ("is joined", [request, first, *more])):
        witnessed = _cold(arena.main)
        completions = arena.main.ask_late(batch[0], batch[1:])
        evidence[name] = witnessed.require(max_num_running=width)
        labels = ["is joined while it runs", *["joins a running request"] * (width - 1)]
        rows += _distinct(batch, completions, labels)
    return Observation(rows, evidence)


def strangers(arena: Arena, request: Request, turn: int) -> Observation:
    """In a batch with prompts of other tenants."""
    others = arena.strangers(request, arena.effort.width - 1, turn)
    if not others:
        raise VacuousError("no workload of another tenant was chosen: there are no strangers")
    batch = [request, *others]
    witnessed = _cold(arena.main)
    completions = arena.main.ask(batch)
    evidence = witnessed.require(max_num_running=len(batch))
    labels = [f"among {len(others)} strangers", *["beside a stranger"] * len(others)]
    return Observation(_distinct(batch, completions, labels), evidence)


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
    replay = Observed(f"in one forward pass, time {turn + 1}", surface, score.wall_s)
    return Observation(_of(request, [replay]), evidence)


def neighbour_abort(arena: Arena, request: Request, turn: int) -> Observation:
    """Beside a request that is given up while both run."""
    (neighbour,) = arena.neighbours(request, 1, turn)
    prompt = neighbour.prompt_token_ids[:MAX_PROMPT_TOKENS_OF_A_VICTIM]
    victim = replace(neighbour, prompt_token_ids=prompt, max_tokens=MAX_TOKENS_OF_A_VICTIM, grammar=None)
    witnessed = _cold(arena.main)
    completion, was_given_up = arena.main.ask_beside_abort(request, victim)
    evidence = witnessed.require(max_num_running=2)
    if not was_given_up:
        raise VacuousError("the check was vacuous: the neighbour ended before it could be given up")
    replay = observed("beside an aborted request", completion)
    return Observation(_of(request, [replay]), {**evidence, "was_given_up": True})


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
    ((name, other),) = arena.others.items()
    _, as_configured = _again(arena.main, request, 1)
    completions, turned = _again(other, request, NUM_TIMES_IN_A_ROW)
    if not (as_configured.get("num_draft_tokens") or turned.get("num_draft_tokens")):
        raise NoOccasionError(
            "no token was guessed ahead: the answer repeats nothing, or num_draft_tokens is not counted"
        )
    evidence = _one_moved("num_draft_tokens", {"as configured": as_configured, name: turned})
    return Observation(_of(request, [observed(name, completion) for completion in completions]), evidence)


def prefix_cache(arena: Arena, request: Request, turn: int) -> Observation:
    """Asked twice with and without a cache of prefixes, from which the second answer is read."""
    ((name, other),) = arena.others.items()
    (_, second), as_configured = _again(arena.main, request, 2)
    completions, turned = _again(other, request, 2)
    evidence = _one_moved("num_cached_tokens", {"as configured": as_configured, name: turned})
    replays = [observed("as configured, again", second), *(observed(name, completion) for completion in completions)]
    return Observation(_of(request, replays), evidence)


def chunked_prefill(arena: Arena, request: Request, turn: int) -> Observation:
    """With a prompt that is computed in several steps."""
    ((name, other),) = arena.others.items()
    witnessed = _cold(other)
    (completion,) = other.ask([request])
    evidence = witnessed.require(num_steps=len(completion.token_ids) + 1)
    return Observation(_of(request, [observed(name, completion)]), evidence)


def preemption(arena: Arena, request: Request, turn: int) -> Observation:
    """Last in a crowd that the KV cache cannot hold, so that it is thrown out and computed again."""
    ((name, other),) = arena.others.items()
    if request.grammar is not None:
        other.ask([replace(request, max_tokens=1)])  # has the grammar compiled: else the request would come too late
    batch = [*crowd(request, arena.requests), request]
    witnessed = _cold(other)
    *_, completion = other.ask(batch)
    evidence = witnessed.require(num_preemptions=1, max_num_running=2)
    return Observation(_of(request, [observed(f"{name}, last of {len(batch)}", completion)]), evidence)


def _of(request: Request, replays: Iterable[Observed]) -> list[Row]:
    return [Row(request, replay) for replay in replays]


def _distinct(batch: Sequence[Request], completions: Sequence[Completion], labels: Sequence[str]) -> list[Row]:
    """The rows of a batch, each request once."""
    rows: dict[Request, Row] = {}
    for request, completion, label in zip(batch, completions, labels, strict=True):
        rows.setdefault(request, Row(request, observed(label, completion)))
    return list(rows.values())


def _again(endpoint: Endpoint, request: Request, num_times: int) -> tuple[list[Completion], dict[str, JsonValue]]:
    """Alone, several times, from cold; and what was counted."""
    witnessed = _cold(endpoint)
    return [endpoint.ask([request])[0] for _ in range(num_times)], witnessed.counted()


def _one_moved(counter: str, counted: dict[str, dict[str, JsonValue]]) -> dict[str, JsonValue]:
    """The evidence of two engines, of which one only must have moved the counter."""
    moved = sum(bool(numbers.get(counter)) for numbers in counted.values())
    if moved != 1:
        raise VacuousError(f"the check was vacuous: {counter} moved on {moved} of two engines, and it needs one")
    return dict(counted)


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
    return Observation(_of(request, replays), {"places": list(places)})


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
