"""The pieces of work by which the lane is compared with stock vLLM, run on an engine in this process.

Each says how long it took and returns a digest of what it got, so that whoever times it can see that the same was done.
The prefix cache is emptied before a piece of work begins: what is timed is a case that nobody has seen before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

from benchmarks.example_cases import NAMES, long_case, read_example
from inference import engines
from projection.canonical import value_digest
from projection.decision import prepare_decision
from projection.events import Event, numbered
from projection.projector import prepare_projection
from projection.task import Task
from projection.view import parse_view

if TYPE_CHECKING:
    from inference.vllm_engine import GenerateRequest, VllmEngine
    from projection.engine import Completion

BUDGET_CHARS = 1338
SMALL_BUDGET_CHARS = 900
STORY = "Write a long story, of at least ten paragraphs, about a lighthouse keeper and the sea."
STORY_PROMPT_TOKENS, STORY_TOKENS = 300, 300
NUM_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Done:
    """What a piece of work took and gave. bits: digest over all token ids and log-probabilities."""

    wall_s: float
    num_prompt_tokens: int
    num_tokens: int
    bits: str


Work = Callable[["VllmEngine"], list[Done]]


def _generate(engine: VllmEngine, requests: Sequence[GenerateRequest]) -> tuple[Done, Sequence[Completion]]:
    engine.reset_prefix_cache()
    started = time.perf_counter()
    completions = engine.generate_batch(requests)
    wall_s = time.perf_counter() - started
    bits = value_digest("dpm/tax/v1", [[list(c.token_ids), [p.hex() for p in c.logprobs]] for c in completions])
    num_prompt_tokens = sum(len(prompt) for prompt, _, _ in requests)
    return Done(wall_s, num_prompt_tokens, sum(len(c.token_ids) for c in completions), bits), completions


def _projection(engine: VllmEngine, events: Sequence[Event], task: Task, budget_chars: int) -> GenerateRequest:
    logged = numbered(events)
    profile = engines.profile_of(engines.read_config())
    prompt, grammar = prepare_projection(engine.tokenizer, logged, task, budget_chars, profile)
    return prompt, min(grammar.max_chars + 1, engine.max_model_len - len(prompt)), grammar


def _made(engine: VllmEngine, num_events: int, turn: int, budget_chars: int = BUDGET_CHARS) -> GenerateRequest:
    """The projection of a made-up case, whose prompt differs from that of every other turn from its first event on."""
    events, task = long_case(num_events + turn)
    return _projection(engine, events[turn:], task, budget_chars)


def generate_alone(engine: VllmEngine) -> list[Done]:
    """One projection of a middling case."""
    return [_generate(engine, [_made(engine, 24, 0)])[0]]


def generate_at_once(engine: VllmEngine) -> list[Done]:
    """Eight projections of different cases in one batch."""
    return [_generate(engine, [_made(engine, 14, turn, SMALL_BUDGET_CHARS) for turn in range(NUM_AT_ONCE)])[0]]


def prefill(engine: VllmEngine) -> list[Done]:
    """One token after a prompt of 6,500."""
    prompt, _, _ = _made(engine, 104, 0, SMALL_BUDGET_CHARS)
    return [_generate(engine, [(prompt[:6500], 1, None)])[0]]


def replay_story(engine: VllmEngine) -> list[Done]:
    """R3 and R2 of 300 free tokens after a prompt of 300."""
    shortest = engine.tokenizer.render_chat("", STORY)
    filler = engine.tokenizer.encode_text(" The sea was grey." * STORY_PROMPT_TOKENS)
    prompt = engine.tokenizer.render_chat(engine.tokenizer.decode(filler[: STORY_PROMPT_TOKENS - len(shortest)]), STORY)
    return _replay(engine, [(prompt, STORY_TOKENS, None)])


def replay_example(name: str, engine: VllmEngine) -> list[Done]:
    """R3 and R2 of both calls of an example."""
    events, task = read_example(name)
    projection = _projection(engine, events, task, BUDGET_CHARS)
    (said,) = engine.generate_batch([projection])
    prompt, grammar = prepare_decision(engine.tokenizer, task, parse_view(said.text, task))
    return _replay(engine, [projection, (prompt, grammar.max_chars + 1, grammar)])


def replay_paper_size(num_records: int, engine: VllmEngine) -> list[Done]:
    """R3 and R2 of projections at the paper's size."""
    return _replay(engine, [_made(engine, 96, turn) for turn in range(num_records)])


def _replay(engine: VllmEngine, requests: Sequence[GenerateRequest]) -> list[Done]:
    """Generate again, then score: each all at once. Scoring must find every recorded token the best."""
    again, completions = _generate(engine, requests)
    engine.reset_prefix_cache()
    is_best: list[bool] = []

    def score(request: GenerateRequest, said: Completion) -> None:
        positions = engine.score(request[0], said.token_ids, request[2]).positions
        is_best.append(all(position.token_id == position.best_token_id for position in positions))

    threads = [Thread(target=score, args=pair) for pair in zip(requests, completions, strict=True)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall_s = time.perf_counter() - started
    if is_best != [True] * len(requests):
        raise SystemExit("R2 does not hold: these timings mean nothing")
    return [again, Done(wall_s, again.num_prompt_tokens, again.num_tokens, again.bits)]


WORKS: Mapping[str, Work] = {
    "one projection": generate_alone,
    "eight projections at once": generate_at_once,
    "prefill of 6,500 tokens": prefill,
    "replay of 300 tokens after 300": replay_story,
    **{f"replay of the {name} example": partial(replay_example, name) for name in NAMES},
    "replay at paper size": partial(replay_paper_size, 1),
    "replay at paper size, 8 records": partial(replay_paper_size, NUM_AT_ONCE),
}
