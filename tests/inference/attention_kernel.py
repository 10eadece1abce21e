"""vLLM's CPU attention kernel, called as its back end calls it, on random queries, keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

BLOCK_SIZE = 128


@dataclass(frozen=True)
class AttentionStep:
    """One request whose keys and values are in the cache. query: (num_tokens, num_heads, head_size), float32."""

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    block_table: torch.Tensor

    @classmethod
    def random(cls, num_heads: int, num_kv_heads: int, head_size: int, num_tokens: int) -> AttentionStep:
        import torch
        import vllm._custom_ops as ops

        draw = torch.Generator().manual_seed(num_heads)
        query = torch.randn(num_tokens, num_heads, head_size, generator=draw)
        key, value = (torch.randn(num_tokens, num_kv_heads, head_size, generator=draw) for _ in range(2))
        num_blocks = num_tokens // BLOCK_SIZE + 1
        cache = torch.zeros(num_blocks, num_kv_heads, BLOCK_SIZE * 2, head_size)
        key_cache, value_cache = cache.chunk(2, dim=2)
        block_table = torch.randperm(num_blocks, generator=draw, dtype=torch.int32)[None]
        tokens = torch.arange(num_tokens)
        slots = block_table[0].long()[tokens // BLOCK_SIZE] * BLOCK_SIZE + tokens % BLOCK_SIZE
        ops.cpu_attn_reshape_and_cache(key, value, key_cache, value_cache, slots, "vec")
        return cls(query, key_cache, value_cache, block_table)

    def run(self, num_tokens_per_tile: int, first: int = 0) -> torch.Tensor:
        """Attention of the tokens from `first` on, presented in tiles of that many tokens."""
        import torch
        import vllm._custom_ops as ops
        from vllm.v1.attention.backend import CommonAttentionMetadata

        from inference.invariant_attention import one_tile_requests

        query = self.query[first:]
        starts = torch.tensor([0, len(query)], dtype=torch.int32)
        step = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=torch.tensor([len(self.query)], dtype=torch.int32),
            num_reqs=1,
            num_actual_tokens=len(query),
            max_query_len=len(query),
            max_seq_len=len(self.query),
            block_table_tensor=self.block_table,
            slot_mapping=torch.arange(len(query)),
        )
        tiles = one_tile_requests(step, num_tokens_per_tile)
        scheduler_metadata = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=tiles.num_reqs,
            num_heads=query.shape[1],
            num_kv_heads=self.key_cache.shape[1],
            head_dim=query.shape[2],
            seq_lens=tiles.seq_lens,
            dtype=query.dtype,
            query_start_loc=tiles.query_start_loc,
            causal=True,
            sliding_window_size=-1,
            isa="vec",
            enable_kv_split=False,
        )
        output = torch.empty_like(query)
        ops.cpu_attention_with_kv_cache(
            query=query,
            key_cache=self.key_cache,
            value_cache=self.value_cache,
            output=output,
            query_start_loc=tiles.query_start_loc,
            seq_lens=tiles.seq_lens,
            scale=query.shape[2] ** -0.5,
            causal=True,
            alibi_slopes=None,
            sliding_window=-1,
            block_table=tiles.block_table_tensor,
            softcap=0.0,
            scheduler_metadata=scheduler_metadata,
            s_aux=None,
        )
        return output
