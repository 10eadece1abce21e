"""The lanes of a comparison, opened one after the other: each is asked the same questions and answers in the same form.

Promises that a lane is opened only if it is needed, that a server is shared by the two routes of its dtype, and that
everything is closed and ended when the iteration ends, whatever ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from sys import maxsize

from determinism.compare.live_surface import Question, ask_surface, why_invalid
from determinism.compare.plan import PINNED, PROVIDER_OF, Plan, live_name, parse_live, uncontrolled_name
from determinism.compare.traffic import stranger_prompt
from inference import engines
from inference.config import EngineConfig
from inference.counters import CountedEngine, parse_metrics
from inference.live_calls import CallMeter
from inference.live_endpoint import Endpoint, official_endpoint
from inference.live_engine import LiveEngine
from inference.tokenizer import PinnedTokenizer
from inference.uncontrolled_server import Dtype, StockSettings, endpoint_of, plan_uncontrolled, uncontrolled_server
from projection.canonical import value_digest
from projection.engine import Engine, EngineIdentity
from projection.prompt import render_projection

IsNeeded = Callable[[str], bool]
"""Whether anything is left to be asked of the lane of that name."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer of any lane.

    token_ids: the engine's own, or those of the text by the pinned tokenizer; empty where that is not the model's.
    logprobs: digest over the log-probabilities' bits; None where the lane gives none.
    input_tokens, output_tokens: as the lane counts them. model, fingerprint: as a server states them.
    why_invalid: None where the free text happens to be a memory view that holds against the log.
    """

    text: str
    finish_reason: str
    token_ids: tuple[int, ...]
    logprobs: str | None
    input_tokens: int
    output_tokens: int
    model: str | None
    fingerprint: str | None
    why_invalid: str | None
    wall_s: float


@dataclass(frozen=True, slots=True)
class Lane:
    """One way to reach a model, open.

    send_stranger: None where no traffic is to be made (a live API has its own). num_running: requests that run now, or
    the most since the lane was last asked; None where nobody can say. meter: of the lane's own calls, where they cost.
    """

    name: str
    identity: EngineIdentity
    ask: Callable[[Question, int], Answered]
    send_stranger: Callable[[int], object] | None = None
    num_running: Callable[[], int] | None = None
    meter: CallMeter | None = None


def open_lanes(
    plan: Plan, config: EngineConfig, engine: str, is_needed: IsNeeded, strangers: Sequence[Question], max_calls: int
) -> Iterator[Lane]:
    """Every lane that is needed. engine: the pinned one, as `engines.open_engine` takes it. max_calls: of a live API.

    Raises:
        ConfigurationError, NotFoundError, EngineError: a lane cannot be opened.
    """
    if plan.pinned and is_needed(PINNED):
        with engines.open_engine(engine, config) as running:
            yield pinned_lane(running, strangers)
    for dtype in plan.dtypes:
        yield from _uncontrolled_lanes(plan, dtype, engines.existing_weights(plan.model), is_needed, strangers)
    if plan.live and is_needed(live_name(plan.live)):
        provider, model = parse_live(plan.live)
        meter = CallMeter(max_calls)
        with closing(open_live(official_endpoint(provider, model, plan.live_url), meter)) as live:
            yield live_lane(live_name(plan.live), live, meter=meter)


def _uncontrolled_lanes(
    plan: Plan, dtype: Dtype, weights_dir: Path, is_needed: IsNeeded, strangers: Sequence[Question]
) -> Iterator[Lane]:
    routes = [route for route in plan.routes if is_needed(uncontrolled_name(dtype, route))]
    if not routes:
        return
    started = plan_uncontrolled(StockSettings(dtype, plan.num_threads, plan.compile), weights_dir)
    tokenizer = PinnedTokenizer(weights_dir)
    with uncontrolled_server(started, engines.home() / "logs" / f"uncontrolled-{dtype}.log") as server:
        for route in routes:
            endpoint = endpoint_of(started, PROVIDER_OF[route])
            with closing(open_live(endpoint, CallMeter(maxsize))) as live:
                lane = live_lane(uncontrolled_name(dtype, route), live, tokenizer)
                client = dict(live.identity.fields) | {"base_url": "a free port of this machine"}
                yield replace(
                    lane,
                    identity=EngineIdentity({**started.identity.fields, "client": client}),
                    send_stranger=partial(_ask_as_stranger, live, strangers),
                    num_running=partial(_num_running, server.url),
                )


def _ask_as_stranger(live: LiveEngine, strangers: Sequence[Question], number: int) -> object:
    return live.ask(*stranger_prompt(live.tokenizer, strangers, number))


def open_live(endpoint: Endpoint, meter: CallMeter) -> LiveEngine:
    """The engine of an endpoint's provider; raises as its constructor."""
    if endpoint.provider == "anthropic":
        from inference.anthropic_engine import AnthropicEngine

        return AnthropicEngine(endpoint, meter)
    from inference.openai_engine import OpenAIEngine

    return OpenAIEngine(endpoint, meter)


def live_lane(
    name: str, engine: LiveEngine, tokenizer: PinnedTokenizer | None = None, meter: CallMeter | None = None
) -> Lane:
    """A lane over a provider's protocol. tokenizer: the model's own, where it is known."""

    def ask(question: Question, max_tokens: int) -> Answered:
        surface = ask_surface(engine, question, max_tokens)
        answer = surface.answer
        return Answered(
            text=answer.text,
            finish_reason=answer.finish_reason,
            token_ids=tuple(tokenizer.encode_text(answer.text)) if tokenizer else (),
            logprobs=_digest(answer.logprobs),
            input_tokens=answer.input_tokens,
            output_tokens=answer.output_tokens,
            model=answer.model,
            fingerprint=answer.fingerprint,
            why_invalid=surface.why_invalid,
            wall_s=answer.wall_s,
        )

    return Lane(name, engine.identity, ask, meter=meter)


def pinned_lane(engine: Engine, strangers: Sequence[Question]) -> Lane:
    """The engine that promises its bytes, asked freely as the others are."""

    def ask(question: Question, max_tokens: int) -> Answered:
        prompt = render_projection(engine.tokenizer, question.events, question.task, question.budget_chars)
        completion = engine.generate(prompt, max_tokens, None)
        return Answered(
            text=completion.text,
            finish_reason=completion.finish_reason,
            token_ids=completion.token_ids,
            logprobs=_digest(completion.logprobs),
            input_tokens=completion.num_prompt_tokens,
            output_tokens=len(completion.token_ids),
            model=None,
            fingerprint=None,
            why_invalid=why_invalid(completion.text, completion.finish_reason, question),
            wall_s=completion.wall_s,
        )

    def send_stranger(number: int) -> object:
        return engine.generate(*stranger_prompt(engine.tokenizer, strangers, number), None)

    def num_running() -> int:
        """The most since this was last asked."""
        if not isinstance(engine, CountedEngine):
            return 0
        most = engine.counters().max_num_running
        engine.reset_counters()
        return most

    return Lane(PINNED, engine.identity, ask, send_stranger, num_running)


def _digest(logprobs: Sequence[float]) -> str | None:
    bits = [float(logprob).hex() for logprob in logprobs]
    return value_digest("dpm/comparison-logprobs/v1", bits) if bits else None


def _num_running(url: str) -> int:
    """Requests that a server of vLLM runs now; 0 where it does not say."""
    import httpx

    try:
        return parse_metrics(httpx.get(f"{url}/metrics", timeout=10.0, trust_env=False).text).max_num_running
    except (httpx.HTTPError, ValueError):
        return 0
