"""How many KV blocks a crowd gets, and who is in it, so that vLLM must throw a request out of the cache.

vLLM admits a request when its prompt fits, and takes back the blocks of the one that came last when an earlier one
grows and none is free. So the crowd's prompts end just below a block's border, the request under test comes last, and
fewer blocks are free than the crowd will ask for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from determinism.endpoints.endpoint import Request
from inference.vllm_runtime import BLOCK_SIZE

BLOCKS_OF_A_NEIGHBOUR = 3
MIN_NEIGHBOURS = 4  # more than the blocks that can be left over, which are fewer than a neighbour has
TOKENS_TO_THE_BORDER = 4
TOKENS_OF_A_NEIGHBOUR = 16


def num_blocks(requests: Sequence[Request]) -> int:
    """Blocks of a cache that holds any of the requests, answer included, and the least crowd."""
    return max(map(_blocks_of, requests)) + 1 + MIN_NEIGHBOURS * BLOCKS_OF_A_NEIGHBOUR


def crowd(request: Request, requests: Sequence[Request]) -> list[Request]:
    """What runs before the request in a cache of `num_blocks`: as many neighbours as find room beside it."""
    room = num_blocks(requests) - _blocks_of(request)
    pool = [other for other in requests if other != request] or [request]
    return [_cut(pool[index % len(pool)]) for index in range(room // BLOCKS_OF_A_NEIGHBOUR)]


def _blocks_of(request: Request) -> int:
    return -(-len(request.prompt_token_ids) // BLOCK_SIZE)


def _cut(request: Request) -> Request:
    length = BLOCKS_OF_A_NEIGHBOUR * BLOCK_SIZE - TOKENS_TO_THE_BORDER
    prompt = request.prompt_token_ids[:length]
    return replace(request, prompt_token_ids=prompt, grammar=None, max_tokens=TOKENS_OF_A_NEIGHBOUR)
