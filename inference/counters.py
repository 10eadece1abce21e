"""What an engine has really done since it started: the witness that a changed circumstance was there.

A check of determinism that asks for a batch of eight and got eight requests one after the other has shown nothing.
These numbers say what happened: in process they are read off vLLM's scheduler, step by step; from a server, off its
metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Counters:
    """Counts since the engine started; `max_num_running` since it was last reset.

    num_steps: forward passes. max_num_running: most requests in one of them.
    num_preemptions: requests that were thrown out of the KV cache and computed again.
    num_cached_tokens: prompt tokens that were read from the prefix cache instead of computed.
    num_draft_tokens, num_accepted_draft_tokens: guessed by speculation, and found right.
    """

    num_steps: int = 0
    max_num_running: int = 0
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0


@runtime_checkable
class CountedEngine(Protocol):
    """An engine that says what it has done."""

    def counters(self) -> Counters: ...

    def reset_counters(self) -> None: ...


@runtime_checkable
class CachingEngine(Protocol):
    """An engine that can forget cached prefixes."""

    def reset_prefix_cache(self) -> None: ...


class SchedulerWitness:
    """Counts what a scheduler of this process decides and what comes of it.

    is_waiting: the last step had nothing to compute, since a grammar is still being compiled in another thread.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._schedule, self._update = scheduler.schedule, scheduler.update_from_output
        self._counts = dict.fromkeys(Counters.__dataclass_fields__, 0)
        self.is_waiting = False
        scheduler.schedule, scheduler.update_from_output = self._watched_schedule, self._watched_update

    @property
    def counters(self) -> Counters:
        return Counters(**self._counts)

    def reset_max_num_running(self) -> None:
        self._counts["max_num_running"] = 0

    def _watched_schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        output = self._schedule(*args, **kwargs)
        counts = self._counts
        self.is_waiting = not output.total_num_scheduled_tokens
        if self.is_waiting:
            return output
        counts["num_steps"] += 1
        counts["max_num_running"] = max(counts["max_num_running"], len(output.num_scheduled_tokens))
        counts["num_preemptions"] += len(output.preempted_req_ids or ())
        counts["num_cached_tokens"] += sum(request.num_computed_tokens for request in output.scheduled_new_reqs)
        counts["num_draft_tokens"] += sum(map(len, output.scheduled_spec_decode_tokens.values()))
        return output

    def _watched_update(self, output: SchedulerOutput, model_output: Any) -> Any:
        for request_id in output.scheduled_spec_decode_tokens:
            sampled = model_output.sampled_token_ids[model_output.req_id_to_index[request_id]]
            self._counts["num_accepted_draft_tokens"] += max(0, len(sampled) - 1)
        return self._update(output, model_output)


METRICS = {
    "vllm:iteration_tokens_total_count": "num_steps",
    "vllm:num_requests_running": "max_num_running",
    "vllm:num_preemptions_total": "num_preemptions",
    "vllm:prefix_cache_hits_total": "num_cached_tokens",
    "vllm:spec_decode_num_draft_tokens_total": "num_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "num_accepted_draft_tokens",
}
"""vLLM's names; a server that does not speculate has none of the last two."""


def parse_metrics(text: str) -> Counters:
    """Read vLLM's /metrics; `max_num_running` is what runs now.

    Raises:
        ValueError: a value is no number.
    """
    counts = dict.fromkeys(Counters.__dataclass_fields__, 0)
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        counter = METRICS.get(name.partition("{")[0])
        if counter is not None:
            counts[counter] += int(float(value.rpartition(" ")[2]))
    return Counters(**counts)
