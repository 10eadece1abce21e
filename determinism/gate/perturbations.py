"""A case asked again under circumstances that should not matter: the suite's own checks, for the pytest plugin.

Only checks that need nothing beside the running engine are offered. Each proves that its circumstance came about, from
the engine's own counters, or the case is an ERROR: a scripted engine, which counts nothing, can only be asked again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from determinism.endpoints.endpoint import EngineEndpoint, Request
from determinism.gate.compare import Divergence, compare_surface
from determinism.gate.golden import CallName, Golden
from determinism.suite.arena import Arena, Effort
from determinism.suite.checks import CHECKS, Check
from projection.engine import Engine
from projection.errors import RequestError
from projection.grammar import Grammar

PERTURBATIONS: Mapping[str, Check] = {
    check.name: check for check in CHECKS if check.beside is None and check.name != "prefill_vs_decode"
}
"""By name. What a forward pass says is no answer to be held against a golden; level R2 asks for it."""
EFFORT = Effort(max_tokens=128, batch_sizes=(2, 4), width=3)
STRANGERS = (
    ("You answer for another tenant.", "List every colour that you know, each with a thing that has it."),
    ("You write for another tenant.", "Tell how rain comes about, from the sea to the river, in plain words."),
)


def choose_perturbations(names: Sequence[str]) -> tuple[Check, ...]:
    """The checks of these names.

    Raises:
        RequestError: there is none of that name here.
    """
    unknown = sorted(set(names) - PERTURBATIONS.keys())
    if unknown:
        raise RequestError(
            f"there is no perturbation {', '.join(map(repr, unknown))} of a gate; choose {', '.join(PERTURBATIONS)}"
        )
    return tuple(PERTURBATIONS[name] for name in names)


def perturbed(
    golden: Golden, grammars: Mapping[CallName, Grammar], engine: Engine, checks: Sequence[Check], num_turns: int
) -> Iterator[Divergence | None]:
    """Both calls under each circumstance, `num_turns` times: where each answer parts from the golden.

    Raises:
        VacuousError: the circumstance did not come about. EngineError: the engine failed.
    """
    requests = {call: _request(golden, call, grammars[call]) for call in golden.calls}
    arena = Arena(EngineEndpoint(engine, "this process"), {}, (*requests.values(), *_strangers(engine)), EFFORT)
    calls = {request: call for call, request in requests.items()}
    for check, turn, leader in product(checks, range(num_turns), requests.values()):
        for request, replay in check.observe(arena, leader, turn).rows:
            if request in calls:
                call, cause = calls[request], f"{check.name}, {replay.label}"
                yield compare_surface(call, golden.calls[call].answer, replay.surface, engine.tokenizer, cause)


def _request(golden: Golden, call: CallName, grammar: Grammar) -> Request:
    asked = golden.calls[call].asked
    return Request(asked.prompt_token_ids, asked.max_tokens, grammar, ("", ""), golden.case)


def _strangers(engine: Engine) -> Iterator[Request]:
    for turns in STRANGERS:
        yield Request(tuple(engine.tokenizer.render_chat(*turns)), EFFORT.max_tokens, None, turns, "another tenant")
