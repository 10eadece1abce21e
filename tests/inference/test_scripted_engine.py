"""The scripted engine: the contract, and what a script alone promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.scripted_engine import ScriptedEngine, ScriptedTokenizer
from projection.canonical import value_digest
from projection.errors import RequestError
from projection.grammar import Chars, Grammar, Node, Ref, Rep, alt, seq
from tests.inference.engine_contract import NOTES, EngineContract

ROOT = Path(__file__).parents[2]


class TestScriptedEngine(EngineContract):
    vocab_size = ScriptedTokenizer().vocab_size

    @pytest.fixture
    def engine(self) -> ScriptedEngine:
        return ScriptedEngine()


def test_its_identity_says_that_it_is_no_model() -> None:
    fields = ScriptedEngine().identity.fields
    assert (fields["kind"], fields["is_a_model"]) == ("scripted", False)


def test_the_script_is_the_same_on_every_machine_and_for_ever() -> None:
    """A change here is another script: give it another SCRIPT_TAG."""
    engine = ScriptedEngine()
    prompt = engine.tokenizer.render_chat("notes", "Income 7,250 dollars.")
    said = [engine.generate(prompt, 4096, grammar).text for grammar in (NOTES, None)]
    assert said == PINNED_SCRIPTS
    assert engine.identity.digest == PINNED_IDENTITY


PINNED_SCRIPTS = [
    "FACTS\n- [2] claim with \n- [2] of fil\nOutcome: REFER\n",
    "with of proof recent with claim shows claim proof record with proof pr",
]
PINNED_IDENTITY = "ae8f63d8b9bcaf525214fda8e695fdc13bbf5fa3ee80be41c3cf20714e09d2fb"


def test_it_needs_no_torch() -> None:
    program = "import sys; from inference.scripted_engine import ScriptedEngine as E; e = E(); e.generate([1], 9, None)"
    program += "; print(*({'torch', 'numpy', 'transformers', 'vllm', 'xgrammar'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_grammar_and_every_token_of_the_prompt_count() -> None:
    engine = ScriptedEngine()
    prompt = engine.tokenizer.render_chat("", "Decide.")
    wide = Grammar({"root": seq("x", Chars("abcdefghijklmnopqrstuvwxyz ", 30, 60))})
    wider = Grammar({"root": seq("x", Chars("abcdefghijklmnopqrstuvwxyz ", 30, 61))})
    scripts = [engine.script(prompt, wide), engine.script(prompt, wider), engine.script([*prompt, 1], wide)]
    assert len(set(scripts)) == 3


def test_a_grammar_may_nest_deeper_than_the_stack() -> None:
    rules: dict[str, Node] = {f"r{n}": seq("a", Rep(Ref(f"r{n + 1}"), 1, 1)) for n in range(5000)}
    grammar = Grammar({"root": Ref("r0"), **rules, "r5000": alt("end")})
    assert ScriptedEngine().generate([1], 6000, grammar).text == "a" * 5000 + "end"


@given(st.text(), st.text())
def test_no_text_can_spell_a_special_token(system: str, user: str) -> None:
    tokenizer = ScriptedTokenizer()
    token_ids = tokenizer.render_chat(system, user)
    specials = [token_id for token_id in token_ids if token_id >= 256]
    assert specials == [
        tokenizer.SYSTEM,
        tokenizer.END,
        tokenizer.USER,
        tokenizer.END,
        tokenizer.ASSISTANT,
    ]


@given(st.text())
def test_text_survives_the_tokenizer(text: str) -> None:
    tokenizer = ScriptedTokenizer()
    assert tokenizer.decode([*text.encode("utf-8"), tokenizer.END]) == text


def test_forged_tokens_are_text_and_special_tokens_are_shown() -> None:
    tokenizer = ScriptedTokenizer()
    assert tokenizer.decode(list(b"<|end|>")) == "<|end|>"
    assert tokenizer.decode([tokenizer.USER, 65, tokenizer.END, 66, tokenizer.END]) == "<|user|>A<|end|>B"


def test_half_a_surrogate_has_no_tokens() -> None:
    with pytest.raises(RequestError):
        ScriptedTokenizer().render_chat("", "\ud800")


def test_the_tokenizer_digest_covers_its_vocabulary() -> None:
    tokenizer = ScriptedTokenizer()
    assert tokenizer.digest != value_digest("dpm/scripted-tokenizer/v1", {"bytes": 256, "specials": []})
