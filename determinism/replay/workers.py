"""Engines that replay records: this process's own or a server's, with several records in flight, or one a process.

Promises that a record which an engine cannot replay is told apart from an engine that is gone: the first is an outcome
with its error, the second ends the run. Processes end when the run does, however it ends.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection

from determinism.near_ties import Limit
from determinism.replay.cross_identity import audit_across, is_other_engine
from determinism.replay.outcome import Outcome
from determinism.replay.plan import Job
from determinism.replay.run import Replay
from inference import engines
from inference.config import EngineConfig
from projection.engine import Engine
from projection.errors import ConfigurationError, DpmError, EngineError, RequestError
from projection.replay import ReplayTools, replay


@dataclass(frozen=True, slots=True)
class Lanes:
    """Ways to replay, one for each record in flight, and the identity that all of their engines share."""

    replays: Sequence[Replay]
    engine_identity: str | None


def replay_job(job: Job, tools: ReplayTools, limit: Limit) -> Outcome:
    """Replay one record.

    Raises:
        EngineError: the engine failed, and does not answer a small question either.
    """
    started = time.perf_counter()
    try:
        report = replay(job.sealed.record, job.sealed.events, job.level, tools, job.sealed.log_break)
        other = job.level >= "R2" and is_other_engine(report)
        across = audit_across(job.sealed, tools.engine(), limit) if other else None
    except RequestError as exc:
        return Outcome(job.place, "ERROR", because=job.because, error=exc.message)
    except EngineError as exc:
        _require_alive(tools.engine(), job)
        return Outcome(job.place, "ERROR", because=job.because, error=exc.message)
    return Outcome.of(job.place, job.because, report, across, time.perf_counter() - started)


def _require_alive(engine: Engine, job: Job) -> None:
    """Raises EngineError where the engine does not even score one token after one token."""
    token_ids = job.sealed.record.content.projection.token_ids[:1]
    engine.score(token_ids, token_ids, None)


def lanes_without_engine(tools: ReplayTools, limit: Limit) -> Lanes:
    """One lane for R0 and R1, which ask no engine."""
    return Lanes([partial(replay_job, tools=tools, limit=limit)], None)


def lanes_of(opened: Sequence[Engine], in_flight: int, limit: Limit) -> Lanes:
    """Lanes over engines that are open in this process, servers among them; in_flight: records of each at a time.

    Raises:
        ConfigurationError: they are not one engine.
    """
    identity = shared_identity([engine.identity.digest for engine in opened])
    replays: list[Replay] = []
    for engine in opened:
        replays += [partial(replay_job, tools=tools_of(engine), limit=limit)] * in_flight
    return Lanes(replays, identity)


def tools_of(engine: Engine) -> ReplayTools:
    """An engine that is open, as a replay takes it."""
    return ReplayTools(lambda: engine.tokenizer, lambda: engine)


def shared_identity(digests: Sequence[str]) -> str:
    """The identity of all engines of a run.

    Raises:
        ConfigurationError: they have several, so that a verdict would depend on which one a record fell to.
    """
    if len(set(digests)) != 1:
        listed = ", ".join(digest[:16] for digest in digests)
        raise ConfigurationError(
            f"the engines of one run must be one engine, and these have the identities {listed}: run them one after "
            "the other, each with a results folder of its own",
            identities=list(digests),
        )
    return digests[0]


@contextmanager
def process_lanes(num_processes: int, name: str, config: EngineConfig, in_flight: int, limit: Limit) -> Iterator[Lanes]:
    """Lanes over new processes, each with an engine of its own.

    Raises:
        EngineError: an engine cannot be started.
    """
    with ExitStack() as stack:
        pipes = [stack.enter_context(_process(name, config, in_flight, limit)) for _ in range(num_processes)]
        identities = [str(_receive(of_process[0])) for of_process in pipes]
        replays = [partial(_ask, pipe) for of_process in pipes for pipe in of_process]
        yield Lanes(replays, shared_identity(identities))


@contextmanager
def _process(name: str, config: EngineConfig, in_flight: int, limit: Limit) -> Iterator[list[Connection]]:
    """A process with an engine, and a pipe for each record in flight; it ends when the pipes are closed."""
    context = get_context("spawn")
    pairs = [context.Pipe() for _ in range(in_flight)]
    ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    process = context.Process(target=_serve, args=(name, config, limit, theirs))
    process.start()
    for connection in theirs:
        connection.close()
    try:
        yield ours
    finally:
        for connection in ours:
            connection.close()
        process.join()


def _ask(pipe: Connection, job: Job) -> Outcome:
    """Have a record replayed at the other end."""
    try:
        pipe.send(job)
    except OSError as exc:
        raise _gone() from exc
    outcome = _receive(pipe)
    if not isinstance(outcome, Outcome):
        raise EngineError(f"a process that replays records answers {outcome!r}")
    return outcome


def _receive(pipe: Connection) -> object:
    """What the other end says; an error that it met is raised here."""
    try:
        answer: object = pipe.recv()
    except (EOFError, OSError) as exc:
        raise _gone() from exc
    if isinstance(answer, DpmError):
        raise answer
    return answer


def _gone() -> EngineError:
    return EngineError(
        "a process that replays records has ended by itself; what was finished is kept. Continue the run"
    )


def _serve(name: str, config: EngineConfig, limit: Limit, pipes: Sequence[Connection]) -> None:
    """Runs in a process of its own: says the engine's identity, then replays what comes until nobody is there."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one decides when to end
    try:
        with engines.open_engine(name, config) as engine:
            pipes[0].send(engine.identity.digest)
            lanes = lanes_of([engine], len(pipes), limit)
            with ThreadPoolExecutor(len(pipes)) as pool:
                list(pool.map(_answer, pipes, lanes.replays))
    except DpmError as exc:
        pipes[0].send(exc)


def _answer(pipe: Connection, replay_one: Replay) -> None:
    """Replay what comes through a pipe until the other end is closed."""
    while True:
        try:
            job: Job = pipe.recv()
            pipe.send(_outcome_or_error(replay_one, job))
        except (EOFError, OSError):
            return


def _outcome_or_error(replay_one: Replay, job: Job) -> Outcome | DpmError:
    try:
        return replay_one(job)
    except DpmError as exc:
        return exc
