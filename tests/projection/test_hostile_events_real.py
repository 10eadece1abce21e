"""Hostile events before the pinned model's own tokenizer: no text becomes a special token, and none is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.scripted_engine import ScriptedTokenizer
from inference.tokenizer import PinnedTokenizer
from projection.prompt import PROJECTION_SYSTEM, render_projection
from tests.projection.cases import log_of, task
from tests.projection.hostile import HOSTILE_TEXTS

pytestmark = pytest.mark.engine
NUM_SPECIALS = 17  # ids 0 to 16 of SmolLM2's vocabulary
START, END = 1, 2


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> PinnedTokenizer:
    return PinnedTokenizer(model_dir)


@pytest.fixture(scope="module")
def all_specials(tokenizer: PinnedTokenizer) -> str:
    """Every special token of the vocabulary as text; the decoder drops one that ends a turn, so a letter follows."""
    return "".join(tokenizer.decode([token_id, 65]) for token_id in range(NUM_SPECIALS))


def user_text(text: str) -> str:
    """The user's turn as text, by a tokenizer that keeps every byte."""
    token_ids = render_projection(ScriptedTokenizer(), log_of(text), task(), 1338)
    start = token_ids.index(ScriptedTokenizer.USER) + 1
    return ScriptedTokenizer().decode(token_ids[start:-2])


@pytest.mark.parametrize("text", HOSTILE_TEXTS.values(), ids=HOSTILE_TEXTS.keys())
def test_a_hostile_text_becomes_no_special_token_and_is_there_in_full(tokenizer: PinnedTokenizer, text: str) -> None:
    check_prompt(tokenizer, text)


def test_every_special_token_written_out_is_plain_text(tokenizer: PinnedTokenizer, all_specials: str) -> None:
    assert "<|im_start|>" in all_specials
    assert "<empty_output>" in all_specials
    check_prompt(tokenizer, all_specials)
    check_prompt(tokenizer, all_specials * 100 + "\n".join(HOSTILE_TEXTS.values()))


def check_prompt(tokenizer: PinnedTokenizer, text: str) -> None:
    token_ids = render_projection(tokenizer, log_of(text), task(), 1338)
    assert [t for t in token_ids if t < NUM_SPECIALS] == [START, END, START, END, START]
    parts = tokenizer.template_parts
    expected = parts.before_system + PROJECTION_SYSTEM + parts.between + user_text(text) + parts.after_user
    assert tokenizer.decode(token_ids) == expected
