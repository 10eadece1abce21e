"""A lane: one configured engine, and everything that checks need beside it, opened when it is needed.

Promises that every engine lives in a process of its own, that at most one is started at a time, and that all of them
end with the lane. What a lane cannot open raises NotPossibleError with the reason, and becomes a SKIPPED cell.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from determinism.endpoints.child import Child, ChildEndpoint, open_child
from determinism.endpoints.endpoint import Endpoint, NotPossibleError, Request
from determinism.endpoints.served import Served, connect, start
from determinism.suite import variants
from determinism.suite.checks import Beside
from determinism.suite.faults import RealFault
from determinism.suite.variants import Variant
from inference import engines
from inference.config import EngineConfig
from projection.engine import Tokenizer

NUM_KNOWN_PROMPT_TOKENS, NUM_KNOWN_TOKENS = 64, 4


class Lane(Protocol):
    """What the suite needs of an engine under test. A context: leaving it ends all processes."""

    @property
    def label(self) -> str: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def open(self) -> Endpoint:
        """The endpoint under test."""
        ...

    def open_beside(self, beside: Beside, requests: Sequence[Request]) -> Mapping[str, Endpoint]:
        """What a check needs beside it; a new process is new in every call, all else is kept while it can be.

        Raises:
            NotPossibleError: not here.
        """
        ...

    def open_faulty(self, fault: RealFault) -> Endpoint:
        """An engine that was started wrongly; the last one is kept while it can be. Raises as `open_beside`."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where a lane may write. environment: of this process before any engine was started in it."""

    scratch: Path
    environment: Mapping[str, str]

    @classmethod
    def here(cls, scratch: Path) -> Place:
        return cls(scratch, dict(os.environ))


class LocalLane:
    """An engine that this machine starts, by its name and configuration."""

    def __init__(self, label: str, engine: str, config: EngineConfig, place: Place) -> None:
        self.label = label
        self.tokenizer: Tokenizer = engines.open_tokenizer(engine, config)
        self._engine, self._config, self._place = engine, config, place
        self._opened = ExitStack()
        self._beside = ExitStack()
        self._main: ChildEndpoint | None = None
        self._variants: Child | None = None
        self._kept: dict[Variant, ChildEndpoint] = {}
        self._faulty: tuple[RealFault, ChildEndpoint] | None = None
        self._servers: list[Served] = []

    def open(self) -> Endpoint:
        if self._main is None:
            child = self._opened.enter_context(self._child("main"))
            self._main = child.open(self._engine, self._config)
        return self._main

    def open_beside(self, beside: Beside, requests: Sequence[Request]) -> Mapping[str, Endpoint]:
        match beside:
            case "new process":
                return {beside: self._anew(self._config)}
            case "routes":
                first = self._server(0, requests)
                return {"completions": first.endpoint, **first.routes}
            case "second server":
                servers = [self._server(index, requests) for index in (0, 1)]
                return {f"server {number}": served.endpoint for number, served in enumerate(servers, start=1)}
            case variant:
                return {variant: self._variant(variant, requests)}

    def open_faulty(self, fault: RealFault) -> Endpoint:
        directory = self._vllm_weights()
        if self._faulty is None or self._faulty[0] != fault:
            config = variants.faulty(fault, self._config, directory, self._place.scratch)
            self._faulty = (fault, self._anew(config))
        return self._faulty[1]

    def _anew(self, config: EngineConfig) -> ChildEndpoint:
        """An engine in a new process; what was beside the endpoint before is ended."""
        self._clear_beside()
        return self._beside.enter_context(self._child("beside")).open(self._engine, config)

    def _variant(self, variant: Variant, requests: Sequence[Request]) -> ChildEndpoint:
        """Another configuration. One process holds them in turn: they differ in no environment variable."""
        config = variants.variant(variant, self._config, self._vllm_weights(), requests)
        if self._variants is None:
            self._clear_beside()
            self._variants = self._beside.enter_context(self._child("beside"))
        if variant not in self._kept:
            self._kept = {variant: self._variants.open(self._engine, config)}
        return self._kept[variant]

    def _server(self, index: int, requests: Sequence[Request]) -> Served:
        directory = self._vllm_weights()
        if index == len(self._servers):
            self._clear_beside()
            prompt = requests[0].prompt_token_ids[:NUM_KNOWN_PROMPT_TOKENS]
            request = replace(requests[0], prompt_token_ids=prompt, max_tokens=NUM_KNOWN_TOKENS, grammar=None)
            (answer,) = self.open().ask([request])
            log = self._place.scratch / f"server-{index + 1}.log"
            served = start(self._config, directory, request, answer, log)
            self._servers.append(self._opened.enter_context(served))
        return self._servers[index]

    def _child(self, name: str) -> AbstractContextManager[Child]:
        return open_child(self._place.environment, self._place.scratch / f"{name}.log")

    def _clear_beside(self) -> None:
        self._beside.close()
        self._variants = self._faulty = None
        self._kept = {}

    def _vllm_weights(self) -> Path:
        if self._engine != "vllm":
            raise NotPossibleError(f"the engine {self._engine} cannot be started in this way: only vllm can")
        return engines.existing_weights(self._config.model)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._opened, self._beside:
            self._servers = []


class ServerLane:
    """A server at an address, which this machine can ask and cannot start."""

    def __init__(self, url: str, config: EngineConfig) -> None:
        self.label = url
        self.tokenizer: Tokenizer = engines.open_tokenizer(url, config)
        self._weights_dir = engines.existing_weights(config.model)
        self._opened = ExitStack()
        self._served: Served | None = None

    def open(self) -> Endpoint:
        return self._server().endpoint

    def open_beside(self, beside: Beside, requests: Sequence[Request]) -> Mapping[str, Endpoint]:
        if beside != "routes":
            raise NotPossibleError(f"a server that runs already cannot be started again for {beside!r}")
        return self._server().routes

    def open_faulty(self, fault: RealFault) -> Endpoint:
        raise NotPossibleError(f"a server that runs already cannot be started with the fault {fault!r}")

    def _server(self) -> Served:
        if self._served is None:
            self._served = self._opened.enter_context(connect(self.label, self._weights_dir))
        return self._served

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._opened.close()
