"""The hidden states of chosen requests, read off the model's own forward passes in vLLM.

Scoring a recorded completion needs what the model computed at the completion's positions only; vLLM's
log-probabilities of prompts would look at the vocabulary for the whole prompt. Strangers may share the step, and a
request may be cut into chunks or computed again after a preemption: rows are kept by position.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from projection.errors import EngineError

if TYPE_CHECKING:
    import torch
    from vllm.v1.engine.llm_engine import LLMEngine


@dataclass(slots=True)
class HiddenRows:
    """Rows of one request from position `first` to `end` (exclusive), by the position they begin at."""

    first: int
    end: int
    pieces: dict[int, torch.Tensor] = field(default_factory=dict)

    def add(self, start: int, rows: torch.Tensor) -> None:
        """rows: (num_tokens, hidden_size), of the positions from `start` on."""
        skipped = max(0, self.first - start)
        if skipped < len(rows):
            self.pieces[start + skipped] = rows[skipped:].clone()

    def joined(self) -> torch.Tensor:
        """All rows in order: (end - first, hidden_size).

        Raises:
            EngineError: a position was not computed.
        """
        import torch

        joined: list[torch.Tensor] = []
        position = self.first
        for start, rows in sorted(self.pieces.items()):
            if start <= position:
                joined.append(rows[position - start : self.end - start])
                position = max(position, min(self.end, start + len(rows)))
        if position != self.end:
            raise EngineError(f"vLLM computed the positions up to {position} of {self.end} in a forward pass")
        return torch.cat(joined)


class HiddenStatesTap:
    """Watches every forward pass of a vLLM model in this process."""

    def __init__(self, llm: LLMEngine, model: torch.nn.Module) -> None:
        self._states = llm.output_processor.request_states
        self._runner = llm.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        self._wanted: dict[str, HiddenRows] = {}
        model.register_forward_hook(self._see)

    @contextmanager
    def collecting(self, request_id: str, first: int, end: int) -> Iterator[HiddenRows]:
        """Collect the rows of that request's positions `first` to `end` (exclusive) while the context lasts."""
        rows = self._wanted[request_id] = HiddenRows(first, end)
        try:
            yield rows
        finally:
            del self._wanted[request_id]

    def _see(self, _module: Any, _inputs: Any, hidden_states: torch.Tensor) -> None:
        if not self._wanted:
            return
        batch = self._runner.input_batch
        bounds = self._runner.query_start_loc.np
        for index, internal_id in enumerate(batch.req_ids):
            rows = self._wanted.get(self._states[internal_id].external_req_id)
            if rows is not None:
                begin, end = int(bounds[index]), int(bounds[index + 1])
                rows.add(int(batch.num_computed_tokens_cpu[index]), hidden_states[begin:end])
