"""vLLM's steps, shared: calls of several threads that are in flight together are computed in the same batches.

vLLM's engine in a process belongs to one thread at a time. Whoever waits for an answer takes the next step for all who
wait; the others sleep until it is done. Promises that a call which fails to begin, is interrupted or is given up by its
caller ends alone, that an error inside a step ends every call of that step, and that no request outlives its call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inference.counters import SchedulerWitness
from inference.vllm_runtime import vllm_contained
from projection.engine import Progress
from projection.errors import DpmError, EngineError

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.v1.engine.llm_engine import LLMEngine

IDLE_S = 0.001  # between two looks whether a grammar is compiled, which another thread does and wants the processor for


@dataclass(slots=True, eq=False)
class StepCall:
    """Requests that one caller waits for together.

    outputs: the last of each request, by request id. error: why the call ended without them.
    """

    requests: Sequence[tuple[str, TokensPrompt, SamplingParams]]
    outputs: dict[str, RequestOutput] = field(default_factory=dict)
    error: DpmError | None = None

    @property
    def is_done(self) -> bool:
        is_finished = len(self.outputs) == len(self.requests) and all(o.finished for o in self.outputs.values())
        return is_finished or self.error is not None

    @property
    def num_tokens(self) -> int:
        """Completion tokens so far."""
        return sum(len(output.outputs[0].token_ids) for output in self.outputs.values())


class SharedSteps:
    """One vLLM engine for any number of calling threads."""

    def __init__(self, llm: LLMEngine, witness: SchedulerWitness) -> None:
        self._llm, self._witness = llm, witness
        self._turn = threading.Condition()
        self._is_busy = False
        self._is_closed = False
        self._new: list[StepCall] = []
        self._given_up: list[StepCall] = []
        self._in_flight: dict[str, StepCall] = {}

    def run(self, call: StepCall, max_tokens: int, progress: Progress | None = None) -> dict[str, RequestOutput]:
        """Step until every request of the call has ended; the last output of each, by request id.

        progress: told of this call's tokens after each step; an exception from it gives up this call alone.

        Raises:
            EngineError: vLLM refused a request, or failed.
        """
        with self._turn:
            self._require_open()
            self._new.append(call)
            try:
                while not call.is_done:
                    self._step_or_wait()
                    if progress is not None:
                        progress(call.num_tokens, max_tokens)
            finally:
                if not call.is_done:
                    self._given_up.append(call)
        if call.error is not None:
            raise call.error
        return call.outputs

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody steps meanwhile: for work on the model itself."""
        with self._turn:
            self._turn.wait_for(lambda: not self._is_busy)
            self._require_open()
            self._is_busy = True
        try:
            yield
        finally:
            self._yield_turn()

    def close(self) -> bool:
        """Let the step that runs end, and fail whoever still waits; whether this was the first time."""
        with self._turn:
            self._turn.wait_for(lambda: not self._is_busy)
            was_open, self._is_closed = not self._is_closed, True
            self._fail([*self._new, *self._in_flight.values()], EngineError("this engine was closed"))
            self._new = []
            self._turn.notify_all()
        return was_open

    def _require_open(self) -> None:
        if self._is_closed:
            raise EngineError("this engine was closed")

    def _step_or_wait(self) -> None:
        """Take the next step for all, or wait for whoever takes it. Holds the turn before and after."""
        if self._is_busy:
            self._turn.wait()
            return
        self._is_busy = True
        new, self._new = self._new, []
        given_up, self._given_up = self._given_up, []
        self._turn.release()
        try:
            self._step(new, given_up)
        finally:
            self._turn.acquire()
            self._is_busy = False
            self._turn.notify_all()

    def _yield_turn(self) -> None:
        with self._turn:
            self._is_busy = False
            self._turn.notify_all()

    def _step(self, new: Sequence[StepCall], given_up: Sequence[StepCall]) -> None:
        for call in given_up:
            self._abort([request_id for request_id, _, _ in call.requests])
        for call in new:
            if call not in given_up:
                self._add(call)
        if not self._in_flight:
            return
        try:
            with vllm_contained("vLLM"):
                outputs = self._llm.step()
        except DpmError as exc:
            self._fail(self._in_flight.values(), exc)
            return
        except BaseException:
            self._fail(self._in_flight.values(), EngineError("the step that computed this request was interrupted"))
            raise
        if self._witness.is_waiting:
            time.sleep(IDLE_S)
        for output in outputs:
            self._in_flight[output.request_id].outputs[output.request_id] = output
            if output.finished:
                del self._in_flight[output.request_id]
        if not self._llm.has_unfinished_requests():
            self._fail(self._in_flight.values(), EngineError("vLLM gave no answer to a request"))

    def _add(self, call: StepCall) -> None:
        """Hand all requests of a call to vLLM, or none."""
        added: list[str] = []
        try:
            with vllm_contained("vLLM"):
                for request_id, prompt, params in call.requests:
                    self._llm.add_request(request_id, prompt, params)
                    added.append(request_id)
        except DpmError as exc:
            self._abort(added)
            call.error = exc
            return
        self._in_flight.update(dict.fromkeys(added, call))

    def _abort(self, request_ids: Sequence[str]) -> None:
        self._llm.abort_request(list(request_ids))
        for request_id in request_ids:
            self._in_flight.pop(request_id, None)

    def _fail(self, calls: Iterable[StepCall], error: DpmError) -> None:
        """End calls with an error, and take their requests out of vLLM."""
        for call in list(calls):
            call.error = call.error or error
            self._abort([request_id for request_id, _, _ in call.requests])
