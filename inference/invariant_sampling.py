"""The same log-probabilities with speculation as without, for vLLM on a CPU.

With speculation switched on, vLLM's rejection sampler asks its sampler for logits and takes the log-softmax itself. The
sampler does not hand that wish on (vLLM 0.32: `Sampler.forward` calls `Sampler.sample` without its override), gives
log-probabilities, and their log-softmax moves some of them by one ULP: on every token, drafts or none. Here the wish
reaches the place where it is read.

Part of the plugin that `inference.invariant_attention` registers; does nothing by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

_stock_forward = Sampler.forward


def forward(
    self: Sampler,
    logits: torch.Tensor,
    sampling_metadata: SamplingMetadata,
    predict_bonus_token: bool = False,
    logprobs_mode_override: Any = None,
) -> SamplerOutput:
    """As vLLM's `Sampler.forward`, with the override kept for everything below. logits: (num_requests, vocab_size)."""
    own_mode = self.logprobs_mode
    self.logprobs_mode = logprobs_mode_override or own_mode
    try:
        return _stock_forward(self, logits, sampling_metadata, predict_bonus_token, logprobs_mode_override)
    finally:
        self.logprobs_mode = own_mode


def register() -> None:
    """Put `forward` of this module in the place of vLLM's. Calling it again changes nothing."""
    Sampler.forward = forward
