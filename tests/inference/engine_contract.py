"""What every engine must do, as tests: a subclass gives the `engine` fixture and inherits them all."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from projection.canonical import canonical_bytes
from projection.engine import Completion, Engine
from projection.errors import PromptTooLongError, RequestError
from projection.grammar import Alt, Chars, Grammar, Lit, Node, Ref, Rep, Seq, alt, seq

LETTERS = "abcdefghijklmnopqrstuvwxyz"
NOTES = Grammar(
    {
        "root": seq("FACTS\n", Rep(Ref("line"), 2, 3), "Outcome: ", alt("APPROVE", "DENY", "REFER"), "\n"),
        "line": seq("- [", alt("1", "2", "3"), "] ", Chars(LETTERS + " ", 1, 12), "\n"),
    }
)
HOSTILE = Grammar(
    {
        "root": seq(
            Lit('"quoted" \\n back\\slash ]^- {2} 100% é “—” ₤\n\t'), Chars("]^-\\\"'é", 2, 5), Lit(" # ::= | end")
        )
    }
)
OUTCOMES = ("APPROVE", "DENY", "REFER")


def outcome_grammar(*outcomes: str) -> Grammar:
    return Grammar({"root": seq("Outcome: ", alt(*outcomes), "\n")})


def to_regex(grammar: Grammar) -> str:
    """The grammar as a regular expression, independent of any engine's reading of it."""
    return _regex(Ref(grammar.root), grammar)


def _regex(node: Node, grammar: Grammar) -> str:
    match node:
        case Lit(text):
            return re.escape(text)
        case Chars(members, min_count, max_count):
            return f"[{re.escape(members)}]{{{min_count},{max_count}}}"
        case Seq(parts):
            return "".join(_regex(part, grammar) for part in parts)
        case Alt(options):
            return "(?:" + "|".join(_regex(option, grammar) for option in options) + ")"
        case Rep(inner, min_count, max_count):
            return f"(?:{_regex(inner, grammar)}){{{min_count},{max_count}}}"
        case Ref(name):
            return _regex(grammar.rules[name], grammar)


def first_other(token_ids: Any, others: Any) -> int:
    """The first index at which two sequences differ."""
    return next(index for index, (one, other) in enumerate(zip(token_ids, others, strict=False)) if one != other)


class EngineContract:
    """Tests of a `projection.engine.Engine`. `vocab_size` is the number of token ids that the engine takes."""

    vocab_size: int

    @pytest.fixture
    def prompt(self, engine: Engine) -> list[int]:
        return engine.tokenizer.render_chat(
            "You take notes of a case.", "Income 7,250 dollars. Debt ratio 43%. Decide."
        )

    @pytest.fixture
    def notes(self, engine: Engine, prompt: list[int]) -> Completion:
        return engine.generate(prompt, 120, NOTES)

    def test_the_same_call_gives_the_same_bytes(self, engine: Engine, prompt: list[int], notes: Completion) -> None:
        again = engine.generate(prompt, 120, NOTES)
        assert (again.token_ids, again.text, again.logprobs, again.margins) == (
            notes.token_ids,
            notes.text,
            notes.logprobs,
            notes.margins,
        )

    def test_another_prompt_gives_other_bytes(self, engine: Engine, notes: Completion) -> None:
        other = engine.tokenizer.render_chat("You take notes of a case.", "The claim was reported late, in March.")
        assert engine.generate(other, 120, NOTES).logprobs + engine.generate(other, 120, NOTES).token_ids != (
            notes.logprobs + notes.token_ids
        )

    def test_a_completion_is_a_sentence_of_its_grammar(self, notes: Completion) -> None:
        assert notes.finish_reason == "stop"
        assert re.fullmatch(to_regex(NOTES), notes.text)

    def test_a_grammar_of_hostile_characters_is_followed(self, engine: Engine, prompt: list[int]) -> None:
        completion = engine.generate(prompt, 200, HOSTILE)
        assert completion.finish_reason == "stop"
        assert re.fullmatch(to_regex(HOSTILE), completion.text)
        assert all(p.token_id == p.best_token_id for p in engine.score(prompt, completion.token_ids, HOSTILE).positions)

    def test_text_is_what_the_tokenizer_reads_in_the_tokens(self, engine: Engine, notes: Completion) -> None:
        assert notes.text == engine.tokenizer.decode(notes.token_ids)

    def test_there_is_one_log_probability_and_one_margin_for_each_token(
        self, prompt: list[int], notes: Completion
    ) -> None:
        assert len(notes.logprobs) == len(notes.margins) == len(notes.token_ids)
        assert all(logprob <= 0 for logprob in notes.logprobs)
        assert all(margin is None or margin >= 0 for margin in notes.margins)
        assert notes.num_prompt_tokens == len(prompt)

    def test_the_token_limit_is_reported(self, engine: Engine, prompt: list[int], notes: Completion) -> None:
        cut = engine.generate(prompt, 5, NOTES)
        assert cut.finish_reason == "length"
        assert cut.token_ids == notes.token_ids[:5]

    def test_without_a_grammar_it_says_something(self, engine: Engine, prompt: list[int]) -> None:
        completion = engine.generate(prompt, 12, None)
        assert completion.text
        assert all(p.token_id == p.best_token_id for p in engine.score(prompt, completion.token_ids, None).positions)

    @pytest.mark.parametrize("max_tokens", [0, -1, True, 1.0, "3", None, 2**63])
    def test_a_hostile_max_tokens_is_refused(self, engine: Engine, prompt: list[int], max_tokens: Any) -> None:
        with pytest.raises(RequestError):
            engine.generate(prompt, max_tokens, NOTES)

    def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(self, engine: Engine, prompt: list[int]) -> None:
        max_tokens = engine.max_model_len - len(prompt) + 1
        with pytest.raises(PromptTooLongError) as caught:
            engine.generate(prompt, max_tokens, NOTES)
        assert caught.value.fields["num_tokens_needed"] == engine.max_model_len + 1
        assert caught.value.fields["num_tokens_available"] == engine.max_model_len
        with pytest.raises(PromptTooLongError):
            engine.score(prompt, [1] * max_tokens, None)

    @pytest.mark.parametrize("token_ids", [[], [-1], [2**40], [True], ["1"]])
    def test_a_prompt_that_is_no_prompt_is_refused(self, engine: Engine, token_ids: Any) -> None:
        with pytest.raises(RequestError):
            engine.generate(token_ids, 5, NOTES)
        with pytest.raises(RequestError):
            engine.score(token_ids, [1], NOTES)

    def test_an_empty_completion_cannot_be_scored(self, engine: Engine, prompt: list[int]) -> None:
        with pytest.raises(RequestError):
            engine.score(prompt, [], NOTES)

    def test_scoring_agrees_with_generating_at_every_position(
        self, engine: Engine, prompt: list[int], notes: Completion
    ) -> None:
        score = engine.score(prompt, notes.token_ids, NOTES)
        assert tuple(p.token_id for p in score.positions) == notes.token_ids
        assert tuple(p.best_token_id for p in score.positions) == notes.token_ids
        assert score.num_prompt_tokens == len(prompt)

    def test_a_changed_token_is_found_where_it_stands(
        self, engine: Engine, prompt: list[int], notes: Completion
    ) -> None:
        for index in (0, len(notes.token_ids) // 2, len(notes.token_ids) - 1):
            changed = list(notes.token_ids)
            changed[index] = (changed[index] + 1) % self.vocab_size
            positions = engine.score(prompt, changed, NOTES).positions
            assert positions[index].best_token_id == notes.token_ids[index] != positions[index].token_id
            assert all(p.best_token_id == p.token_id for p in positions[:index])

    def test_an_allowed_token_that_is_not_the_best_is_found(self, engine: Engine, prompt: list[int]) -> None:
        grammar = outcome_grammar(*OUTCOMES)
        best = engine.generate(prompt, 40, grammar)
        others = [outcome for outcome in OUTCOMES if outcome not in best.text]
        other = engine.generate(prompt, 40, outcome_grammar(*others))
        index = first_other(best.token_ids, other.token_ids)
        position = engine.score(prompt, other.token_ids, grammar).positions[index]
        assert position.token_id == other.token_ids[index]
        assert position.best_token_id == best.token_ids[index]

    def test_nothing_is_allowed_after_a_forbidden_token_or_after_end_of_turn(
        self, engine: Engine, prompt: list[int], notes: Completion
    ) -> None:
        forbidden = [*notes.token_ids[:3], notes.token_ids[-1], *notes.token_ids[3:]]
        positions = engine.score(prompt, forbidden, NOTES).positions
        assert positions[3].best_token_id == notes.token_ids[3]
        assert {p.best_token_id for p in positions[4:]} == {-1}
        longer = engine.score(prompt, [*notes.token_ids, *notes.token_ids[:2]], NOTES).positions
        assert [p.best_token_id for p in longer[len(notes.token_ids) :]] == [-1, -1]

    @pytest.mark.parametrize("token_id", [-1, 2**40])
    def test_a_token_that_the_model_lacks_is_found_and_not_a_crash(
        self, engine: Engine, prompt: list[int], token_id: int
    ) -> None:
        for grammar in (NOTES, None):
            said = engine.generate(prompt, 3, grammar).token_ids
            positions = engine.score(prompt, [said[0], token_id, said[2]], grammar).positions
            assert positions[1].token_id == token_id
            assert positions[1].best_token_id == said[1]
            assert positions[1].logprob == float("-inf")
            assert positions[2].best_token_id == -1

    def test_progress_counts_up_to_the_tokens_made(self, engine: Engine, prompt: list[int], notes: Completion) -> None:
        seen: list[tuple[int, int]] = []
        engine.generate(prompt, 120, NOTES, lambda num_done, max_tokens: seen.append((num_done, max_tokens)))
        assert [num_done for num_done, _ in seen] == sorted(num_done for num_done, _ in seen)
        assert seen[-1] == (len(notes.token_ids), 120)

    def test_an_interrupted_call_leaves_the_engine_as_it_was(
        self, engine: Engine, prompt: list[int], notes: Completion
    ) -> None:
        def interrupt(num_done: int, max_tokens: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            engine.generate(prompt, 120, NOTES, interrupt)
        assert engine.generate(prompt, 120, NOTES).logprobs == notes.logprobs

    def test_the_identity_is_canonical_json_and_names_no_place(self, engine: Engine) -> None:
        text = canonical_bytes(dict(engine.identity.fields)).decode("utf-8")
        assert json.loads(text)["tokenizer_digest"] == engine.tokenizer.digest
        assert re.search(r'["\s:=]/', text) is None
