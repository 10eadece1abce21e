"""How the doctor asks: the calls of a record, of an engine under a setting, in a process of its own where it must be.

vLLM reads its settings once in a process, so each setting of it has a new one. Promises that what is compared is the
surface of each call and nothing else, and that neighbours were really there where a trial is held beside others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from determinism.doctor.calls import RebuiltCall
from determinism.doctor.switches import Setting
from determinism.endpoints.child import open_child
from determinism.endpoints.endpoint import Endpoint, EngineEndpoint, Request, Witnessed
from determinism.surface import Surface
from inference import engines, vllm_runtime, weights
from inference.config import EngineConfig
from projection.engine import EngineIdentity
from projection.errors import EngineError

NUM_NEIGHBOURS = 3


@dataclass(frozen=True, slots=True)
class Bench:
    """Where engines are tried. log: what their processes say."""

    log: Path

    def ask(self, setting: Setting, calls: Sequence[RebuiltCall]) -> list[Surface]:
        """What each call says under a setting.

        Raises:
            EngineError: the engine cannot be started so, or failed; or no neighbour was there, or none can be shown.
        """
        with self._endpoint(setting) as endpoint:
            return [_ask(endpoint, setting, call, calls) for call in calls]

    @contextmanager
    def _endpoint(self, setting: Setting) -> Iterator[Endpoint]:
        if setting.engine != "vllm":
            with engines.open_engine(setting.engine, setting.config) as engine:
                yield EngineEndpoint(engine, "this process")
            return
        stated = self.identity(setting).digest
        with open_child(_environment(setting.config), self.log) as child:
            endpoint = child.open(setting.engine, setting.config)
            if endpoint.identity != stated:
                raise EngineError(f"an engine of the identity {stated} was asked for, and {endpoint.identity} answers")
            yield endpoint

    def identity(self, setting: Setting) -> EngineIdentity:
        """What an engine of this setting is, without starting vLLM."""
        if setting.engine != "vllm":
            with engines.open_engine(setting.engine, setting.config) as engine:
                return engine.identity
        from inference.vllm_identity import vllm_identity

        manifest = weights.check(engines.existing_weights(setting.config.model))
        tokenizer = engines.open_tokenizer(setting.engine, setting.config)
        environ = {**_environment(setting.config), **_set_by_engine(setting.config)}
        return vllm_identity(setting.config, manifest, tokenizer.digest, environ)


def _environment(config: EngineConfig) -> Mapping[str, str]:
    """This process's environment without what an engine sets, so that a trial may set it otherwise."""
    return {name: value for name, value in os.environ.items() if name not in _set_by_engine(config)}


def _set_by_engine(config: EngineConfig) -> Mapping[str, str]:
    return {**vllm_runtime.environment_for(config), **config.environment}


def _ask(endpoint: Endpoint, setting: Setting, call: RebuiltCall, calls: Sequence[RebuiltCall]) -> Surface:
    request = _request(setting, call)
    if setting.is_warm:
        endpoint.ask([request])
    if not setting.beside_others:
        return Surface.of(endpoint.ask([request])[0])
    if endpoint.counters() is None:
        raise EngineError("this engine does not say what ran together, so no neighbour can be shown")
    neighbours = [_request(setting, other) for other in (*reversed(calls), *calls)][:NUM_NEIGHBOURS]
    witnessed = Witnessed(endpoint)
    answer, *_ = endpoint.ask([request, *neighbours])
    witnessed.require(max_num_running=2)
    return Surface.of(answer)


def _request(setting: Setting, call: RebuiltCall) -> Request:
    prompt = call.prompt_token_ids if setting.is_rebuilt else tuple(call.recorded.prompt_token_ids)
    grammar = call.grammar if setting.has_grammar else None
    return Request(prompt, call.recorded.max_tokens, grammar, ("", ""), "record")
