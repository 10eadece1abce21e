"""Replaying records on a Ray cluster that exists already: one actor an engine, several records in flight on each.

The nodes need this program and its weights, as this machine has them; the log stays here, and each record is sent with
its case. Ray is imported only when a cluster is asked for.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from determinism.near_ties import Limit
from determinism.replay.outcome import Outcome
from determinism.replay.plan import Job
from determinism.replay.workers import Lanes, replay_job, shared_identity, tools_of
from inference import engines
from inference.config import EngineConfig
from projection.errors import ConfigurationError, DpmError, EngineError

CONNECT_TIMEOUT_S = 10.0


class RayReplayer:
    """Lives on a node of the cluster, with an engine of its own."""

    def __init__(self, name: str, config: EngineConfig, limit: Limit) -> None:
        self._name, self._config, self._limit = name, config, limit
        self._opened = ExitStack()

    def open(self) -> str:
        """Start the engine; returns its identity."""
        self._engine = self._opened.enter_context(engines.open_engine(self._name, self._config))
        return self._engine.identity.digest

    def replay(self, job: Job) -> Outcome:
        return replay_job(job, tools_of(self._engine), self._limit)


@contextmanager
def ray_lanes(
    address: str, num_actors: int, name: str, config: EngineConfig, in_flight: int, limit: Limit
) -> Iterator[Lanes]:
    """Lanes over actors of the cluster at `address` ("auto": the one that this machine belongs to).

    Raises:
        ConfigurationError: Ray is not installed, or the actors are not one engine.
        EngineError: there is no cluster, or an engine cannot be started on it.
    """
    try:
        import ray
    except ImportError as exc:
        raise ConfigurationError("Ray is not installed: pip install ray, of the cluster's version") from exc
    with ExitStack() as stack:
        with _cluster_errors():
            _require_reachable(address)
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        stack.callback(ray.shutdown)
        options = {"num_cpus": config.num_threads, "max_concurrency": in_flight, "max_restarts": 0}
        actors = [ray.remote(**options)(RayReplayer).remote(name, config, limit) for _ in range(num_actors)]
        for actor in actors:
            stack.callback(ray.kill, actor)
        with _cluster_errors():
            identity = shared_identity(ray.get([actor.open.remote() for actor in actors]))
        yield Lanes([partial(_ask, actor) for actor in actors for _ in range(in_flight)], identity)


def _require_reachable(address: str) -> None:
    """Raises OSError where nothing answers at HOST:PORT: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "/" not in address:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()


def _ask(actor: Any, job: Job) -> Outcome:
    """Have a record replayed there."""
    import ray

    with _cluster_errors():
        outcome: Outcome = ray.get(actor.replay.remote(job))
    return outcome


@contextmanager
def _cluster_errors() -> Iterator[None]:
    """What fails on the cluster becomes what failed there, else an EngineError."""
    import ray

    try:
        yield
    except ray.exceptions.RayTaskError as exc:
        if isinstance(exc.cause, DpmError):
            raise exc.cause from exc
        raise EngineError(f"an engine on the cluster failed: {exc.cause!r}") from exc
    except (ray.exceptions.RayError, OSError) as exc:
        raise EngineError(f"the cluster failed: {exc}. What was finished is kept; continue the run") from exc
