"""Invariant attention for vLLM on a CPU: no token shares the attention kernel's tiles with a stranger.

vLLM's CPU kernel cuts its work into tiles by the total length of the whole step, the thread count and the L2 size, so a
request's bits depend on its neighbours. It stops doing so when it is given requests that are one tile each: at most
eight rows of queries (what it holds in registers), with the KV cache not split. Then a row's result depends on its own
context, rounded up to the kernel's 32 tokens, and on nothing else. So a step is presented as such small requests:
each token alone, or, where eight rows have room for several tokens, all tokens of a request between two multiples of
that number. Tokens of one such stretch have the same rounded context, hence the same bits together and alone.

No kernel is replaced; only the metadata differ. Together with `inference.invariant_linear`, which does the same for
matrix products, this is a vLLM plugin (entry point `dpm_invariant_attention` of `vllm.general_plugins`): vLLM loads it
where `VLLM_PLUGINS` names it. It knows causal self-attention of decoders, sliding windows included, and refuses the
rest.
"""

from __future__ import annotations

import torch
from vllm import envs
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.kv_cache_interface import AttentionSpec

from inference import invariant_linear, invariant_sampling
from projection.errors import ConfigurationError

MAX_QUERY_ROWS = 8  # of one tile of the kernel for the `vec` instruction set (Source: vLLM, cpu_attn_vec.hpp)


def register() -> None:
    """Make vLLM use this back end wherever it would use its own CPU attention. Calling it again changes nothing."""
    invariant_linear.register()
    invariant_sampling.register()
    register_backend(AttentionBackendEnum.CPU_ATTN, f"{__name__}.{InvariantCPUAttentionBackend.__name__}")


class InvariantCPUAttentionBackend(CPUAttentionBackend):  # type: ignore[misc]  # vllm is not analysed
    """vLLM's CPU attention with metadata that keep tokens apart."""

    @staticmethod
    def get_builder_cls() -> type[InvariantCPUAttentionMetadataBuilder]:
        return InvariantCPUAttentionMetadataBuilder


class InvariantCPUAttentionMetadataBuilder(CPUAttentionMetadataBuilder):  # type: ignore[misc]  # as above
    """Builds the stock metadata for a step whose requests are one tile each.

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
        layers = get_layers_from_vllm_config(vllm_config, Attention, layer_names).values()
        is_plain = all(layer.impl.sliding_window == -1 and layer.impl.sinks is None for layer in layers)
        self.num_tokens_per_tile = (
            tokens_per_tile(self.isa, self.num_heads // self.num_kv_heads) if is_plain and layers else 1
        )

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> CPUAttentionMetadata:
        step = one_tile_requests(common_attn_metadata, self.num_tokens_per_tile)
        return super().build(common_prefix_len, step, fast_build)


def tokens_per_tile(isa: str, num_heads_per_kv_head: int) -> int:
    """How many tokens fit a tile: the kernel packs the heads of a group where their number divides its rows."""
    if isa != "vec":
        return 1
    packs = MAX_QUERY_ROWS % num_heads_per_kv_head == 0
    return MAX_QUERY_ROWS // num_heads_per_kv_head if packs else MAX_QUERY_ROWS


def one_tile_requests(common: CommonAttentionMetadata, num_tokens: int) -> CommonAttentionMetadata:
    """Return the metadata of the same step, cut into requests of at most `num_tokens` tokens at its multiples.

    Raises:
        ConfigurationError: the step is not plain causal attention.
    """
    if common.causal is not True:
        raise ConfigurationError("invariant attention knows causal attention only")
    if common.dcp_local_seq_lens is not None or common.mm_req_doc_ranges or common.rswa_prefix_lens is not None:
        raise ConfigurationError("invariant attention knows plain causal attention of text on one device only")
    starts = common.query_start_loc[: common.num_reqs + 1].long()
    num_step_tokens = int(starts[-1])
    token = torch.arange(num_step_tokens)
    request = torch.repeat_interleave(torch.arange(common.num_reqs), starts[1:] - starts[:-1])
    position = common.seq_lens.long()[request] - (starts[1:][request] - token)
    first = token[(position % num_tokens == 0) | (token == starts[:-1][request])]  # (num_requests,)
    end = torch.cat((first[1:], starts[-1:]))
    seq_lens = (position[end - 1] + 1).to(common.seq_lens.dtype)
    query_start_loc = torch.cat((first, starts[-1:])).to(common.query_start_loc.dtype)
    return common.replace(
        query_start_loc=query_start_loc,
        query_start_loc_cpu=query_start_loc,
        seq_lens=seq_lens,
        num_reqs=len(first),
        num_actual_tokens=num_step_tokens,
        max_query_len=int((end - first).max()),
        block_table_tensor=common.block_table_tensor[request[first]].contiguous(),
        is_prefilling=None,
        seq_lens_cpu_upper_bound=seq_lens,
        req_idx=None,
        _num_computed_tokens_cache=None,
        _token_to_req_indices_cache=None,
    )
