"""Transformers with the real model: the contract, and agreement with vLLM on what is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from inference.config import EngineConfig
from inference.transformers_engine import TransformersEngine
from projection.errors import ConfigurationError, EngineError
from tests.inference.engine_contract import NOTES, OUTCOMES, EngineContract, outcome_grammar

if TYPE_CHECKING:
    from inference.vllm_engine import VllmEngine

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def transformers_engine(engine_config: EngineConfig, model_dir: Path) -> Iterator[TransformersEngine]:
    with TransformersEngine.load(engine_config, model_dir) as engine:
        yield engine


class TestTransformersEngine(EngineContract):
    vocab_size = 49152

    @pytest.fixture
    def engine(self, transformers_engine: TransformersEngine) -> TransformersEngine:
        return transformers_engine


@pytest.mark.parametrize(
    "text",
    ["Income 7,250 dollars. Debt ratio 43%. Decide.", "Water entered the kitchen on March 5. The claim is late."],
)
def test_both_implementations_say_the_same_tokens(
    transformers_engine: TransformersEngine, vllm_engine: VllmEngine, text: str
) -> None:
    prompt = vllm_engine.tokenizer.render_chat("You take notes of a case.", text)
    for grammar in (NOTES, outcome_grammar(*OUTCOMES), None):
        one, other = (engine.generate(prompt, 60, grammar) for engine in (transformers_engine, vllm_engine))
        assert one.token_ids == other.token_ids
        assert one.text == other.text


def test_the_two_identities_differ(transformers_engine: TransformersEngine, vllm_engine: VllmEngine) -> None:
    assert transformers_engine.identity.digest != vllm_engine.identity.digest
    assert transformers_engine.identity.fields["weights"] == vllm_engine.identity.fields["weights"]


def test_more_context_than_the_model_has_is_refused(engine_config: EngineConfig, model_dir: Path) -> None:
    with pytest.raises(ConfigurationError, match="8192 positions"):
        TransformersEngine.load(engine_config.model_copy(update={"max_model_len": 8193}), model_dir)


def test_a_closed_engine_says_so(engine_config: EngineConfig, model_dir: Path) -> None:
    engine = TransformersEngine.load(engine_config, model_dir)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.generate([1], 1, None)
