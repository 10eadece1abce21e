"""An endpoint: whatever answers, and the circumstances under which a check can ask it.

`EngineEndpoint` makes one of any engine of the protocol. Promises that a batch is handed in at once where the engine
takes batches, else from several threads, and that nothing here waits for a clock: a late request begins when an early
one shows a token, and a neighbour is given up when the request beside it does. Whether it came out so is for the
counters to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from threading import Event
from typing import Protocol, runtime_checkable

from pydantic import JsonValue

from determinism.workloads import Workload
from inference.counters import CachingEngine, CountedEngine, Counters
from projection.engine import Completion, Engine, Progress, Score, Tokenizer
from projection.errors import EngineError, RequestError
from projection.grammar import Grammar


@dataclass(frozen=True, slots=True)
class Request:
    """One question to an endpoint. turns: system and user text, for routes that take messages. tenant: whose it is."""

    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    grammar: Grammar | None = field(hash=False)  # its rules are a dictionary
    turns: tuple[str, str]
    tenant: str

    @classmethod
    def of(cls, workload: Workload, tokenizer: Tokenizer, max_tokens: int) -> Request:
        prompt = workload.prompt_token_ids(tokenizer)
        return cls(prompt, max_tokens, workload.grammar, (workload.system, workload.user), workload.tenant)


class Endpoint(Protocol):
    """What checks ask. Every method raises EngineError where the endpoint fails."""

    @property
    def identity(self) -> str:
        """Digest of the engine identity."""
        ...

    @property
    def place(self) -> str:
        """Where it runs, so that two of them can be told apart: a process or an address."""
        ...

    def ask(self, requests: Sequence[Request]) -> list[Completion]:
        """Hand all requests in at once; the answers in their order."""
        ...

    def ask_late(self, first: Request, later: Sequence[Request]) -> list[Completion]:
        """Hand the later requests in when the first has shown a token; the answers in their order, `first` first."""
        ...

    def ask_beside_abort(self, request: Request, victim: Request) -> tuple[Completion, bool]:
        """Answer a request beside a running victim, which is given up meanwhile; and whether it was."""
        ...

    def score(self, request: Request, token_ids: Sequence[int]) -> Score:
        """One forward pass over a prompt and its answer."""
        ...

    def forget(self) -> None:
        """Let no later request read a prefix that was computed before."""
        ...

    def counters(self) -> Counters | None:
        """What was really computed; None where the endpoint cannot say."""
        ...

    def reset_counters(self) -> None:
        """Begin `max_num_running` anew."""
        ...


@runtime_checkable
class BatchEngine(Protocol):
    """An engine that takes a batch whole."""

    def generate_batch(self, requests: Sequence[tuple[Sequence[int], int, Grammar | None]]) -> Sequence[Completion]: ...


class _GivenUpError(Exception):
    """Ends a victim's call; never leaves this module."""


class EngineEndpoint:
    """An `Endpoint` around any engine.

    renew: makes an engine for the same place that finds nothing cached, where the engine itself cannot forget.
    """

    def __init__(self, engine: Engine, place: str, renew: Callable[[], Engine] | None = None) -> None:
        self._engine = engine
        self._place = place
        self._renew = renew
        self._identity = engine.identity.digest

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def place(self) -> str:
        return self._place

    def ask(self, requests: Sequence[Request]) -> list[Completion]:
        if isinstance(self._engine, BatchEngine):
            return list(self._engine.generate_batch([(r.prompt_token_ids, r.max_tokens, r.grammar) for r in requests]))
        with ThreadPoolExecutor(len(requests)) as threads:
            return list(threads.map(self._generate, requests))

    def ask_late(self, first: Request, later: Sequence[Request]) -> list[Completion]:
        with ThreadPoolExecutor(1 + len(later)) as threads:
            arrived: list[Future[Completion]] = []

            def let_others_in(num_done: int, _max_tokens: int) -> None:
                if num_done and not arrived:
                    arrived.extend(threads.submit(self._generate, request) for request in later)

            answer = self._generate(first, let_others_in)
            return [answer, *(future.result() for future in arrived)]

    def ask_beside_abort(self, request: Request, victim: Request) -> tuple[Completion, bool]:
        is_answering = Event()
        with ThreadPoolExecutor(1) as threads:
            beside: list[Future[Completion]] = []

            def answer(num_done: int, _max_tokens: int) -> None:
                if num_done:
                    is_answering.set()

            def give_up(num_done: int, _max_tokens: int) -> None:
                if num_done and not beside:
                    beside.append(threads.submit(self._generate, request, answer))
                if is_answering.is_set():
                    raise _GivenUpError

            try:
                self._generate(victim, give_up)
            except _GivenUpError:
                return beside[0].result(), True
            if not beside:
                raise EngineError("the neighbour showed no token before it ended: nothing ran beside it")
            return beside[0].result(), False

    def score(self, request: Request, token_ids: Sequence[int]) -> Score:
        return self._engine.score(request.prompt_token_ids, token_ids, request.grammar)

    def forget(self) -> None:
        if self._renew is not None:
            self._engine = self._renew()
        elif isinstance(self._engine, CachingEngine):
            self._engine.reset_prefix_cache()

    def counters(self) -> Counters | None:
        return self._engine.counters() if isinstance(self._engine, CountedEngine) else None

    def reset_counters(self) -> None:
        if isinstance(self._engine, CountedEngine):
            self._engine.reset_counters()

    def _generate(self, request: Request, progress: Progress | None = None) -> Completion:
        """One call. A server's counters must be looked at while it runs."""
        is_watched = isinstance(self._engine, CountedEngine) and not isinstance(self._engine, BatchEngine)

        def watched(num_done: int, max_tokens: int) -> None:
            if is_watched:
                self.counters()
            if progress is not None:
                progress(num_done, max_tokens)

        return self._engine.generate(request.prompt_token_ids, request.max_tokens, request.grammar, watched)


class NotPossibleError(RequestError):
    """An endpoint, or what opens it, cannot do what a check needs; the message says why."""


class VacuousError(EngineError):
    """The circumstance of a check did not come about, so that it shows nothing."""


class NoOccasionError(EngineError):
    """This question gives the circumstance of a check no occasion, where another one may."""


class Witnessed:
    """What an endpoint does from here on, as numbers."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        endpoint.reset_counters()
        self._before = endpoint.counters()

    def counted(self) -> dict[str, JsonValue]:
        """What was counted since; empty where the endpoint cannot say."""
        after = self._endpoint.counters()
        if self._before is None or after is None:
            return {}
        before = asdict(self._before) | {"max_num_running": 0}
        return {name: value - before[name] for name, value in asdict(after).items()}

    def require(self, **at_least: int) -> dict[str, JsonValue]:
        """The same, where it shows that the circumstance came about.

        Raises:
            VacuousError: a count is below what the check needs.
        """
        counted = self.counted()
        for name, least in at_least.items():
            found = counted.get(name, 0)
            if not isinstance(found, int) or found < least:
                raise VacuousError(f"the check was vacuous: {name} is {found}, and it needs {least} or more")
        return counted
