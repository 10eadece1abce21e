"""The engine that nobody pinned: a stock vLLM server of this model, spoken to as a live API is. Free answers only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from inference import engines
from inference.config import EngineConfig
from inference.live_calls import CallMeter
from inference.openai_engine import OpenAIEngine
from inference.uncontrolled_server import Dtype, StockSettings, endpoint_of, plan_uncontrolled, uncontrolled_server
from projection.engine import Engine, EngineIdentity

MAX_CALLS = 10_000


@contextmanager
def uncontrolled_engine(config: EngineConfig, dtype: Dtype) -> Iterator[tuple[Engine, EngineIdentity]]:
    """Start the server with vLLM's defaults but for compilation, which takes a compiler; end it with the context.

    Yields the engine, and what is known of the server: the engine's own identity says only how it is spoken to.

    Raises:
        EngineError: it cannot be started. NotFoundError: the model was not fetched.
    """
    plan = plan_uncontrolled(StockSettings(dtype, compile=False), engines.existing_weights(config.model))
    log = engines.home() / "logs" / f"uncontrolled-{dtype}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        uncontrolled_server(plan, log),
        closing(OpenAIEngine(endpoint_of(plan, "openai"), CallMeter(MAX_CALLS))) as engine,
    ):
        yield engine, plan.identity
