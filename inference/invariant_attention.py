"""Invariant attention for vLLM on a CPU: every token of a step is a request of its own to the attention kernel.

vLLM's CPU kernel cuts its work into tiles by the total length of the whole step, the thread count and the L2 size,
so a request's bits depend on its neighbours. Given one query token per request and no split of the KV cache, the
kernel's result for a token depends on that token's own context alone. This module gives it nothing else: a step of n
tokens is presented as n requests of query length 1, each with its request's row of the block table and the sequence
length position + 1. No kernel is replaced; only the metadata differ.

It is a vLLM plugin (entry point `dpm_invariant_attention` of `vllm.general_plugins`): vLLM loads it where
`VLLM_PLUGINS` names it. It brings `inference.invariant_linear` along, which does the same for matrix products. It knows
causal self-attention of decoders, sliding windows included, and refuses the rest.
"""

from __future__ import annotations

import torch
from vllm import envs
from vllm.config import VllmConfig
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.kv_cache_interface import AttentionSpec

from inference import invariant_linear
from projection.errors import ConfigurationError


def register() -> None:
    """Make vLLM use this back end wherever it would use its own CPU attention. Calling it again changes nothing."""
    invariant_linear.register()
    register_backend(AttentionBackendEnum.CPU_ATTN, f"{__name__}.{InvariantCPUAttentionBackend.__name__}")


class InvariantCPUAttentionBackend(CPUAttentionBackend):  # type: ignore[misc]  # vllm is not analysed
    """vLLM's CPU attention with metadata that keep tokens apart."""

    @staticmethod
    def get_builder_cls() -> type[InvariantCPUAttentionMetadataBuilder]:
        return InvariantCPUAttentionMetadataBuilder


class InvariantCPUAttentionMetadataBuilder(CPUAttentionMetadataBuilder):  # type: ignore[misc]  # as above
    """Builds the stock metadata for a step in which every token is a request.

    Raises:
        ConfigurationError: split KV is on, or the layers are cross or encoder-only attention.
    """

    def __init__(
        self, kv_cache_spec: AttentionSpec, layer_names: list[str], vllm_config: VllmConfig, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        if envs.VLLM_CPU_ATTN_SPLIT_KV:
            raise ConfigurationError(
                "invariant attention needs VLLM_CPU_ATTN_SPLIT_KV=0: a split KV cache is summed in an order that "
                "depends on the number of threads",
                variable="VLLM_CPU_ATTN_SPLIT_KV",
            )
        if self.is_cross_attention or self.is_encoder_only_attention:
            raise ConfigurationError(
                "invariant attention knows causal self-attention only, not encoders", layers=layer_names
            )

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> CPUAttentionMetadata:
        return super().build(common_prefix_len, one_token_requests(common_attn_metadata), fast_build)


def one_token_requests(common: CommonAttentionMetadata) -> CommonAttentionMetadata:
    """Return the metadata of the same step with each of its tokens presented as a request of query length 1.

    Raises:
        ConfigurationError: the step is not plain causal attention.
    """
    if common.causal is not True:
        raise ConfigurationError("invariant attention knows causal attention only")
    if common.dcp_local_seq_lens is not None or common.mm_req_doc_ranges or common.rswa_prefix_lens is not None:
        raise ConfigurationError("invariant attention knows plain causal attention of text on one device only")
    starts = common.query_start_loc[: common.num_reqs + 1].long()
    query_lens = starts[1:] - starts[:-1]  # (num_reqs,)
    num_tokens = int(starts[-1])
    request = torch.repeat_interleave(torch.arange(common.num_reqs), query_lens)  # (num_tokens,)
    num_later_tokens = starts[1:][request] - torch.arange(num_tokens) - 1  # of the same request in this step
    seq_lens = common.seq_lens[request] - num_later_tokens.to(common.seq_lens.dtype)  # position + 1
    token_starts = torch.arange(num_tokens + 1, dtype=common.query_start_loc.dtype)
    return common.replace(
        query_start_loc=token_starts,
        query_start_loc_cpu=token_starts,
        seq_lens=seq_lens,
        num_reqs=num_tokens,
        num_actual_tokens=num_tokens,
        max_query_len=1,
        block_table_tensor=common.block_table_tensor[request].contiguous(),
        is_prefilling=None,
        seq_lens_cpu_upper_bound=seq_lens,
        req_idx=None,
        _num_computed_tokens_cache=None,
        _token_to_req_indices_cache=None,
    )
