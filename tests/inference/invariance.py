"""The bits of an engine under changed circumstances, and where they differ.

As a program, runs the engine that `vllm_engine` does not: `python -m tests.inference.invariance CONTROL WEIGHTS_DIR`
prints one JSON document and nothing else.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference.config import EngineConfig, load_config

if TYPE_CHECKING:
    from inference.vllm_engine import VllmEngine

ROOT = Path(__file__).parents[2]
LENGTHS = (450, 900, 1400, 2000)
STRANGERS = (520, 610, 777, 1023)
MAX_TOKENS = 16

Bits = dict[str, list[Any]]
"""Token ids, and log-probabilities as hexadecimal floats, so that JSON keeps every bit."""


def make_prompt(engine: VllmEngine, seed: int, num_tokens: int) -> list[int]:
    """A prompt of exactly that many tokens, different from the first words on."""
    rows = (
        f"Day {day}: borrower {(seed * 7 + day * 13) % 101} reports income of {(seed * 991 + day * 37) % 9973} dollars "
        f"and a debt ratio of {(seed + day * 29) % 60} percent.\n"
        for day in range(seed, seed + num_tokens // 8)
    )
    return engine.tokenizer.encode_text(f"Case {seed * 1009}\n" + "".join(rows))[:num_tokens]


def as_bits(token_ids: Sequence[int], logprobs: Sequence[float]) -> Bits:
    return {"token_ids": list(token_ids), "logprobs": [logprob.hex() for logprob in logprobs]}


def collect(engine: VllmEngine, lengths: Sequence[int], strangers: Sequence[int]) -> dict[str, list[Bits]]:
    """Each prompt alone, among strangers, and scored in one forward pass with what it said alone."""
    prompts = [make_prompt(engine, seed, length) for seed, length in enumerate(lengths)]
    others = [make_prompt(engine, seed, length) for seed, length in enumerate(strangers, start=100)]
    solo = [engine.generate(prompt, MAX_TOKENS, None) for prompt in prompts]
    batch = engine.generate_batch([(p, MAX_TOKENS, None) for p in _interleaved(prompts, others)])[:: 2 if others else 1]
    scores = [engine.score(prompt, said.token_ids, None) for prompt, said in zip(prompts, solo, strict=True)]
    return {
        "solo": [as_bits(said.token_ids, said.logprobs) for said in solo],
        "batch": [as_bits(said.token_ids, said.logprobs) for said in batch],
        "score": [
            as_bits([p.best_token_id for p in score.positions], [p.logprob for p in score.positions])
            for score in scores
        ],
    }


def _interleaved(prompts: Sequence[list[int]], others: Sequence[list[int]]) -> Iterator[list[int]]:
    if not others:
        yield from prompts
    for prompt, other in zip(prompts, others, strict=False):
        yield prompt
        yield other


def differences(bits: dict[str, list[Bits]]) -> list[tuple[str, int, str]]:
    """Where a circumstance gave other bits than the prompt alone: (circumstance, prompt, what)."""
    return [
        (circumstance, prompt, what)
        for circumstance in ("batch", "score")
        for prompt, (alone, other) in enumerate(zip(bits["solo"], bits[circumstance], strict=True))
        for what in ("token_ids", "logprobs")
        if alone[what] != other[what]
    ]


def _load(config: EngineConfig, weights_dir: Path) -> VllmEngine:
    from inference.vllm_engine import VllmEngine

    return VllmEngine.load(config, weights_dir)


def without_plugin(config: EngineConfig, weights_dir: Path) -> dict[str, Any]:
    """The same circumstances on stock vLLM; then with the matrix products made invariant, and attention not."""
    stock = config.model_copy(update={"attention": config.attention.model_copy(update={"invariant": False})})
    with _load(stock, weights_dir) as engine:
        result: dict[str, Any] = {
            "identity": dict(engine.identity.fields),
            "stock": collect(engine, LENGTHS, STRANGERS),
        }
        from inference import invariant_linear

        invariant_linear.register()
        return result | {"stock_attention": collect(engine, LENGTHS[1:3], ())}


def with_two_threads_and_a_restart(config: EngineConfig, weights_dir: Path) -> dict[str, Any]:
    """One prompt on two threads, then again on a second engine of the same process."""
    said = []
    identities = []
    for _ in range(2):
        with _load(config.model_copy(update={"num_threads": 2}), weights_dir) as engine:
            prompt = make_prompt(engine, 0, LENGTHS[0])
            completion = engine.generate(prompt, MAX_TOKENS, None)
            said.append(as_bits(completion.token_ids, completion.logprobs))
            identities.append(engine.identity.digest)
    return {"solo": said, "identities": identities}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("control", choices=["without_plugin", "with_two_threads_and_a_restart"])
    parser.add_argument("weights_dir", type=Path)
    arguments = parser.parse_args()
    run = {"without_plugin": without_plugin, "with_two_threads_and_a_restart": with_two_threads_and_a_restart}
    config = load_config(ROOT / "gpu_configs" / "cpu.yaml")
    print(json.dumps(run[arguments.control](config, arguments.weights_dir)))


if __name__ == "__main__":
    main()
