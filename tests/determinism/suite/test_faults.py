"""Faults are as small as they are said to be."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from determinism.divergence import ulp_distance
from determinism.endpoints.endpoint import Request
from determinism.suite.faults import change_prompt_byte, one_ulp_below
from determinism.suite.pressure import BLOCKS_OF_A_NEIGHBOUR, TOKENS_OF_A_NEIGHBOUR, crowd, num_blocks
from determinism.suite.variants import change_weight_byte
from determinism.workloads import load_workloads
from inference.scripted_engine import ScriptedTokenizer
from inference.vllm_runtime import BLOCK_SIZE
from inference.weights import pin, verify
from projection.errors import WeightsError

LENGTHS = st.lists(st.integers(BLOCKS_OF_A_NEIGHBOUR * BLOCK_SIZE, 4000), min_size=1, max_size=6)


@given(st.floats(-1024.0, 0, width=32))
def test_one_ulp_is_the_next_lower_number(logprob: float) -> None:
    below = one_ulp_below(logprob)
    assert below < logprob
    assert ulp_distance(below, logprob) == 1


def test_one_prompt_byte_is_one_byte_of_the_user_text() -> None:
    tokenizer = ScriptedTokenizer()
    for workload in load_workloads():
        request = Request.of(workload, tokenizer, 24)
        changed = change_prompt_byte(request, tokenizer)
        pairs = zip(request.prompt_token_ids, changed.prompt_token_ids, strict=True)
        assert sum(one != other for one, other in pairs) == 1
        assert changed.prompt_token_ids == tuple(tokenizer.render_chat(*changed.turns))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A pinned directory with two tensors."""
    folder = tmp_path / "weights"
    folder.mkdir()
    tensors = {"model.layers.0.norm.weight": [0, 8], "model.norm.weight": [8, 16]}
    header = {name: {"dtype": "F32", "shape": [2], "data_offsets": offsets} for name, offsets in tensors.items()}
    data = json.dumps(header).encode()
    numbers = struct.pack("<4f", 1.0, 2.0, 3.0, 4.0)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(data)) + data + numbers)
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}", encoding="utf-8")
    pin(folder)
    return folder


def test_one_weight_byte_is_one_byte_of_the_last_norm_and_pinned_as_if_it_were_right(
    weights: Path, tmp_path: Path
) -> None:
    copy = change_weight_byte(weights, tmp_path / "copy")
    before, after = ((folder / "model.safetensors").read_bytes() for folder in (weights, copy))
    assert [index - len(before) for index in range(len(before)) if before[index] != after[index]] == [-7]
    (changed,) = struct.unpack("<f", after[-8:-4])
    assert abs(changed / 3.0 - 1) < 2**-7
    assert verify(copy).digest != verify(weights).digest


def test_a_model_without_a_last_norm_is_refused(weights: Path, tmp_path: Path) -> None:
    (weights / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    with pytest.raises(WeightsError):
        change_weight_byte(weights, tmp_path / "copy")


@given(LENGTHS)
def test_a_crowd_fits_at_first_and_then_does_not(lengths: list[int]) -> None:
    requests = [Request((number,) * length, 24, None, ("", ""), "t") for number, length in enumerate(lengths)]
    for request in requests:
        neighbours = crowd(request, requests)
        at_first = sum(-(-len(r.prompt_token_ids) // BLOCK_SIZE) for r in [*neighbours, request])
        grown = [len(r.prompt_token_ids) + TOKENS_OF_A_NEIGHBOUR for r in neighbours]
        at_last = sum(-(-length // BLOCK_SIZE) for length in grown)
        assert at_first <= num_blocks(requests)
        assert at_last + at_first - len(neighbours) * BLOCKS_OF_A_NEIGHBOUR > num_blocks(requests)
