"""vLLM with the real model: the contract, and the bits that must not move."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from inference import vllm_runtime
from inference.config import AttentionConfig, EngineConfig
from inference.shared_steps import StepCall
from projection.errors import ConfigurationError, EngineError
from projection.grammar import Grammar, Ref
from tests.inference import invariance
from tests.inference.engine_contract import NOTES, EngineContract

if TYPE_CHECKING:
    from inference.vllm_engine import VllmEngine

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
PRELOADED = os.environ.get("LD_PRELOAD")  # before any engine starts


def run_apart(module: str, *arguments: object) -> Any:
    """Run a program of ours in a process without our settings; its stdout is one JSON document."""
    settings = ("VLLM_", "OMP_", "HF_", "TORCH", "TOKENIZERS_", "LD_PRELOAD")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "stderr": done.stderr}


class TestVllmEngine(EngineContract):
    vocab_size = 49152

    @pytest.fixture
    def engine(self, vllm_engine: VllmEngine) -> VllmEngine:
        return vllm_engine


@pytest.fixture(scope="module")
def bits(vllm_engine: VllmEngine) -> dict[str, list[invariance.Bits]]:
    return invariance.collect(vllm_engine, invariance.LENGTHS, invariance.STRANGERS)


@pytest.fixture(scope="module")
def control_bits(model_dir: Path) -> Any:
    return run_apart("tests.inference.invariance", "without_plugin", model_dir)


def test_alone_in_a_batch_of_eight_and_in_one_forward_pass_the_bits_are_the_same(
    bits: dict[str, list[invariance.Bits]],
) -> None:
    assert invariance.differences(bits) == []
    assert [len(said["token_ids"]) for said in bits["solo"]] == [invariance.MAX_TOKENS] * len(invariance.LENGTHS)


def test_without_the_plugin_the_same_check_fails_on_the_bits(control_bits: Any) -> None:
    assert control_bits["identity"]["attention_backend"] == "CPUAttentionBackend"
    assert control_bits["identity"]["plugin"] is None
    found = invariance.differences(control_bits["stock"])
    assert {what for _, _, what in found} >= {"logprobs"}


def test_an_engine_that_does_its_work_says_nothing(control_bits: Any) -> None:
    assert control_bits["stderr"] == ""


def test_invariant_matrix_products_alone_are_not_enough(control_bits: Any) -> None:
    found = invariance.differences(control_bits["stock_attention"])
    assert ("score", 0, "logprobs") in found or ("score", 1, "logprobs") in found


def test_two_threads_and_a_restart_in_one_process_change_no_bit(
    bits: dict[str, list[invariance.Bits]], vllm_engine: VllmEngine, model_dir: Path
) -> None:
    other = run_apart("tests.inference.invariance", "with_two_threads_and_a_restart", model_dir)
    assert other["solo"] == [bits["solo"][0]] * 2
    assert len(set(other["identities"])) == 1
    assert other["identities"][0] != vllm_engine.identity.digest


def test_a_sliding_window_is_kept_and_its_bits_are_invariant_too(model_dir: Path, tmp_path: Path) -> None:
    result = run_apart("tests.inference.sliding_window", model_dir, tmp_path)
    assert invariance.differences(result["vllm"]) == []
    assert result["vllm"]["solo"][0]["token_ids"] == result["transformers"]
    assert result["transformers"] != result["transformers_without_window"]
    said, best = result["fills_the_context"]
    assert said == best


def test_a_batch_of_grammars_gives_each_what_it_gets_alone(vllm_engine: VllmEngine) -> None:
    prompts = [invariance.make_prompt(vllm_engine, seed, 460 + 40 * seed) for seed in range(3)]
    grammars = [NOTES, None, NOTES]
    batch = vllm_engine.generate_batch([(p, 40, g) for p, g in zip(prompts, grammars, strict=True)])
    for prompt, grammar, among in zip(prompts, grammars, batch, strict=True):
        alone = vllm_engine.generate(prompt, 40, grammar)
        assert (alone.token_ids, alone.logprobs, alone.margins) == (among.token_ids, among.logprobs, among.margins)


def test_scores_are_what_vllm_itself_says_of_prompts(vllm_engine: VllmEngine) -> None:
    """Our reading of the hidden states against vLLM's own log-probabilities of prompt tokens, which cost it all."""
    prompt = invariance.make_prompt(vllm_engine, 7, 600)
    said = vllm_engine.generate(prompt, 20, None).token_ids
    request = vllm_engine._request([*prompt, *said], vllm_engine._sampling_params(1, None, prompt_logprobs=1))
    (output,) = vllm_engine._steps.run(StepCall([request]), 1).values()
    assert output.prompt_logprobs is not None
    theirs = [
        entry[token_id].logprob for token_id, entry in zip(said, output.prompt_logprobs[len(prompt) :], strict=True)
    ]
    ours = [position.logprob for position in vllm_engine.score(prompt, said, None).positions]
    assert ours == theirs


def test_a_long_completion_is_scored_in_pieces_without_a_seam(vllm_engine: VllmEngine) -> None:
    prompt = invariance.make_prompt(vllm_engine, 8, 450)
    said = vllm_engine.generate(prompt, 150, None)
    positions = vllm_engine.score(prompt, said.token_ids, None).positions
    assert [p.logprob for p in positions] == list(said.logprobs)
    assert [p.best_token_id for p in positions] == list(said.token_ids)


def test_only_the_end_of_turn_ends_a_completion(vllm_engine: VllmEngine) -> None:
    prompt = vllm_engine.tokenizer.render_chat("You are terse.", "Say hello.")
    completion = vllm_engine.generate(prompt, 200, None)
    assert completion.finish_reason == "stop"
    assert completion.token_ids[-1] in vllm_engine.tokenizer.eos_token_ids
    assert not set(completion.token_ids[:-1]) & set(vllm_engine.tokenizer.eos_token_ids)


def test_a_grammar_that_is_none_is_an_engine_error_and_the_engine_lives_on(vllm_engine: VllmEngine) -> None:
    prompt = vllm_engine.tokenizer.render_chat("", "Decide.")
    broken = Grammar({"root": Ref("nowhere")})
    with pytest.raises(EngineError):
        vllm_engine.generate(prompt, 5, broken)
    with pytest.raises(EngineError):
        vllm_engine.score(prompt, [1, 2], broken)
    assert vllm_engine.generate(prompt, 5, None).finish_reason in ("stop", "length")


def test_a_second_engine_beside_the_first_is_refused(
    vllm_engine: VllmEngine, engine_config: EngineConfig, model_dir: Path
) -> None:
    with pytest.raises(ConfigurationError, match="close it first"):
        type(vllm_engine).load(engine_config, model_dir)


def test_settings_that_vllm_has_read_already_are_refused_and_nothing_is_changed(
    vllm_engine: VllmEngine, engine_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert vllm_engine.identity.fields["environment"]["VLLM_CPU_ATTN_SPLIT_KV"] == "0"
    for name in vllm_runtime.environment_for(engine_config):
        monkeypatch.delenv(name)
    split = AttentionConfig(invariant=False, split_kv=True)
    before = dict(os.environ)
    with pytest.raises(ConfigurationError, match="imported before"):
        vllm_runtime.prepare_environment(engine_config.model_copy(update={"attention": split}))
    assert dict(os.environ) == before


def test_calls_from_two_threads_wait_for_each_other(vllm_engine: VllmEngine) -> None:
    prompts = [invariance.make_prompt(vllm_engine, seed, 100) for seed in range(2)]
    alone = [vllm_engine.generate(prompt, 8, None).logprobs for prompt in prompts]
    with ThreadPoolExecutor(2) as threads:
        together = list(threads.map(lambda prompt: vllm_engine.generate(prompt, 8, None).logprobs, prompts))
    assert together == alone


def test_the_process_is_left_without_vllms_own_variables(vllm_engine: VllmEngine) -> None:
    assert "VLLM_DIST_IDENT" not in os.environ
    assert os.environ.get("LD_PRELOAD") == PRELOADED
    assert set(vllm_engine.identity.fields["environment"]) >= {"OMP_NUM_THREADS", "VLLM_PLUGINS"}


def test_rows_of_a_matrix_product_do_not_depend_on_their_number(vllm_engine: VllmEngine) -> None:
    """Inner dimensions on both sides of the 1,024 beyond which oneDNN treats a single row differently."""
    import torch
    import vllm._custom_ops as ops

    generator = torch.Generator().manual_seed(0)
    for inner in (576, 1536, 4096):
        weight = torch.randn(320, inner, generator=generator)
        x = torch.randn(64, inner, generator=generator)
        handler = ops.create_onednn_mm(weight.t(), 32)
        whole = ops.onednn_mm(handler, x, None)
        for num_rows in (1, 2, 3, 4, 7, 8, 9, 16, 31, 33):
            assert torch.equal(ops.onednn_mm(handler, x[:num_rows], None), whole[:num_rows]), (inner, num_rows)
        assert torch.equal(ops.onednn_mm(handler, x[0], None), whole[0])


def test_a_step_is_cut_into_requests_of_one_tile(vllm_engine: VllmEngine) -> None:
    import torch
    from vllm.v1.attention.backend import CommonAttentionMetadata

    from inference.invariant_attention import one_tile_requests

    starts = torch.tensor([0, 5, 6, 10], dtype=torch.int32)  # a prefill of 5, a decode, a chunk of positions 3 to 6
    step = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor([5, 9, 7], dtype=torch.int32),
        num_reqs=3,
        num_actual_tokens=10,
        max_query_len=5,
        max_seq_len=9,
        block_table_tensor=torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=torch.int32),
        slot_mapping=torch.arange(10),
    )
    alone = one_tile_requests(step, 1)
    assert alone.query_start_loc.tolist() == list(range(11))
    assert alone.seq_lens.tolist() == [1, 2, 3, 4, 5, 9, 4, 5, 6, 7]
    assert alone.block_table_tensor.tolist() == [[1, 2]] * 5 + [[3, 4]] + [[5, 6]] * 4
    assert (alone.num_reqs, alone.max_query_len, alone.num_actual_tokens) == (10, 1, 10)
    in_fours = one_tile_requests(step, 4)
    assert in_fours.query_start_loc.tolist() == [0, 4, 5, 6, 7, 10]
    assert in_fours.seq_lens.tolist() == [4, 5, 9, 4, 7]
    assert in_fours.block_table_tensor.tolist() == [[1, 2], [1, 2], [3, 4], [5, 6], [5, 6]]
    assert (in_fours.num_reqs, in_fours.max_query_len) == (5, 3 + 1)
    assert in_fours.seq_lens.dtype == in_fours.query_start_loc.dtype == torch.int32
    for not_causal in (False, torch.tensor([True, True, False])):
        with pytest.raises(ConfigurationError):
            one_tile_requests(step.replace(causal=not_causal), 1)


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_size"), [(9, 3, 64), (8, 2, 64), (8, 1, 128), (4, 4, 32)])
def test_a_tile_of_tokens_gives_each_the_bits_it_gets_alone(
    vllm_engine: VllmEngine, num_heads: int, num_kv_heads: int, head_size: int
) -> None:
    """The kernel itself, over 2,100 positions: one token at a time, and in our tiles, from any first token on."""
    import torch

    from inference.invariant_attention import tokens_per_tile
    from tests.inference.attention_kernel import AttentionStep

    step = AttentionStep.random(num_heads, num_kv_heads, head_size, num_tokens=2100)
    alone = step.run(1)
    num_tokens = tokens_per_tile("vec", num_heads // num_kv_heads)
    assert torch.equal(step.run(num_tokens), alone)
    assert torch.equal(step.run(num_tokens, first=1003), alone[1003:])
    assert torch.equal(step.run(num_tokens, first=2099), alone[2099:])


def test_the_best_allowed_token_is_the_lowest_id_among_equals(vllm_engine: VllmEngine) -> None:
    import torch

    from inference.token_grammar import best_allowed

    logits = torch.zeros(4, 64)
    logits[1, [7, 9, 40]] = 3.0
    bitmask = torch.full((4, 2), -1, dtype=torch.int32)
    bitmask[2] = torch.tensor([0, 1 << 5])
    bitmask[3] = 0
    assert best_allowed(logits, bitmask) == [0, 7, 37, -1]
    with pytest.raises(EngineError, match="not numbers"):
        best_allowed(torch.full((1, 64), float("nan")), bitmask[:1])
