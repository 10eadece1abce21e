"""`ScriptedEngine`: no model at all. It speaks any grammar, as a pure function of the prompt, for tests and trials.

A script walks the grammar's tree and takes its choices from SHA-256 of prompt and grammar, so that the same call gives
the same bytes on every machine. Its identity says that it is no model, and no command uses it unless it is asked for by
name. What it says has the form of an answer and means nothing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from inference.request_checks import check_generate, check_score
from projection.canonical import tagged_digest, value_digest
from projection.engine import Completion, EngineIdentity, Progress, Score, ScoredPosition
from projection.errors import RequestError
from projection.grammar import Alt, Chars, Grammar, Lit, Node, Ref, Rep, Seq

SCRIPT_TAG = "dpm/script/v1"  # names the way choices are taken; a change in any script is a new tag
NUM_BYTES = 256
WORDS = ("the", "file", "shows", "income", "and", "a", "recent", "claim", "with", "proof", "of", "loss", "on", "record")
VOWELS, CONSONANTS = "aeiou", "bdfglmnprst"


class ScriptedTokenizer:
    """One token per UTF-8 byte, and four tokens that no text can spell."""

    SPECIALS: ClassVar[tuple[str, ...]] = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
    SYSTEM, USER, ASSISTANT, END = range(NUM_BYTES, NUM_BYTES + 4)

    @property
    def digest(self) -> str:
        return value_digest("dpm/scripted-tokenizer/v1", {"bytes": NUM_BYTES, "specials": list(self.SPECIALS)})

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return (self.END,)

    @property
    def vocab_size(self) -> int:
        return NUM_BYTES + len(self.SPECIALS)

    def render_chat(self, system: str, user: str) -> list[int]:
        """Token ids of one system and one user turn, ready for the assistant's answer.

        Raises:
            RequestError: a text is not valid Unicode.
        """
        turns = [self.SYSTEM, *_utf8(system), self.END, self.USER, *_utf8(user), self.END]
        return [*turns, self.ASSISTANT]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of completion token ids without the end-of-turn tokens that end it; bytes that are no UTF-8 are U+FFFD.

        Raises:
            RequestError: an id that the vocabulary lacks.
        """
        end = len(token_ids)
        while end and token_ids[end - 1] == self.END:
            end -= 1
        return b"".join(map(self._spelling, token_ids[:end])).decode("utf-8", errors="replace")

    def _spelling(self, token_id: int) -> bytes:
        if not 0 <= token_id < self.vocab_size:
            raise RequestError(f"token id {token_id} is not in the vocabulary", token_id=token_id)
        return bytes([token_id]) if token_id < NUM_BYTES else self.SPECIALS[token_id - NUM_BYTES].encode("ascii")


class ScriptedEngine:
    """A `projection.engine.Engine` without a model."""

    def __init__(self, max_model_len: int = 262_144) -> None:
        self._max_model_len = max_model_len
        self._tokenizer = ScriptedTokenizer()

    @property
    def identity(self) -> EngineIdentity:
        fields: dict[str, Any] = {
            "kind": "scripted",
            "is_a_model": False,
            "script": SCRIPT_TAG,
            "tokenizer_digest": self._tokenizer.digest,
            "flags": {"max_model_len": self._max_model_len},
        }
        return EngineIdentity(fields)

    @property
    def tokenizer(self) -> ScriptedTokenizer:
        return self._tokenizer

    @property
    def max_model_len(self) -> int:
        return self._max_model_len

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        grammar: Grammar | None,
        progress: Progress | None = None,
    ) -> Completion:
        """Say the script of this prompt; every token has log-probability 0 and no rival."""
        check_generate(prompt_token_ids, max_tokens, self._max_model_len, self._tokenizer.vocab_size)
        started = time.perf_counter()
        script = self.script(prompt_token_ids, grammar)
        token_ids = script[:max_tokens]
        if progress is not None:
            progress(len(token_ids), max_tokens)
        return Completion(
            token_ids=token_ids,
            text=self._tokenizer.decode(token_ids),
            finish_reason="stop" if token_ids == script else "length",
            logprobs=(0.0,) * len(token_ids),
            margins=(None,) * len(token_ids),
            num_prompt_tokens=len(prompt_token_ids),
            wall_s=time.perf_counter() - started,
        )

    def score(
        self, prompt_token_ids: Sequence[int], completion_token_ids: Sequence[int], grammar: Grammar | None
    ) -> Score:
        """Compare a recorded completion with the script; from the first other token on, the script allows nothing."""
        check_score(prompt_token_ids, completion_token_ids, self._max_model_len, self._tokenizer.vocab_size)
        started = time.perf_counter()
        script = self.script(prompt_token_ids, grammar)
        positions = tuple(_compare(script, completion_token_ids))
        return Score(positions, len(prompt_token_ids), time.perf_counter() - started)

    def script(self, prompt_token_ids: Sequence[int], grammar: Grammar | None) -> tuple[int, ...]:
        """The token ids that answer this prompt, end of turn included."""
        prompt = b"".join(token_id.to_bytes(4, "big") for token_id in prompt_token_ids)
        seed = tagged_digest(SCRIPT_TAG, (grammar.digest if grammar else "0" * 64).encode("ascii"), prompt)
        choices = _Choices(seed)
        text = _words(choices, 40, 80) if grammar is None else "".join(_sentence(grammar, choices))
        return (*_utf8(text), self._tokenizer.END)

    def close(self) -> None:
        """Nothing to free."""


class _Choices:
    """Numbers from SHA-256 of a seed and a counter."""

    def __init__(self, seed: str) -> None:
        self._seed = seed.encode("ascii")
        self._num_taken = 0

    def below(self, num_options: int) -> int:
        """A number from 0 to num_options - 1."""
        digest = hashlib.sha256(self._seed + self._num_taken.to_bytes(8, "big")).digest()
        self._num_taken += 1
        return int.from_bytes(digest, "big") % num_options

    def between(self, least: int, most: int) -> int:
        return least + self.below(most - least + 1)


def _sentence(grammar: Grammar, choices: _Choices) -> Iterator[str]:
    """The pieces of one sentence, without recursion: a grammar may nest deeper than Python's stack."""
    todo: list[Node] = [Ref(grammar.root)]
    while todo:
        match todo.pop():
            case Lit(text):
                yield text
            case Chars() as chars:
                yield _characters(chars, choices)
            case Seq(parts):
                todo.extend(reversed(parts))
            case Alt(options):
                todo.append(options[choices.below(len(options))])
            case Rep(node, min_count, max_count):
                todo.extend([node] * choices.between(min_count, max_count))
            case Ref(name):
                todo.append(grammar.rules[name])


def _characters(chars: Chars, choices: _Choices) -> str:
    """Words where there is room for them, else letters that can be spoken, else whatever is a member."""
    if chars.max_count >= 8 and set(chars.members).issuperset(" abcdefghijklmnopqrstuvwxyz"):
        return _words(choices, chars.min_count, chars.max_count)
    count = choices.between(chars.min_count, chars.max_count)
    return "".join(_character(chars.members, choices) for _ in range(count))


def _character(members: str, choices: _Choices) -> str:
    for preferred in (VOWELS, CONSONANTS) if choices.below(2) else (CONSONANTS, VOWELS):
        if set(preferred) <= set(members):
            return preferred[choices.below(len(preferred))]
    return members[choices.below(len(members))]


def _words(choices: _Choices, min_chars: int, max_chars: int) -> str:
    text = ""
    wanted = choices.between(min_chars, max_chars)
    while len(text) < wanted:
        word = WORDS[choices.below(len(WORDS))]
        text += f" {word}" if text else word
    return text[:wanted]


def _compare(script: Sequence[int], token_ids: Sequence[int]) -> Iterator[ScoredPosition]:
    is_same = True
    for index, token_id in enumerate(token_ids):
        best_token_id = script[index] if is_same and index < len(script) else -1
        is_same = is_same and token_id == best_token_id
        yield ScoredPosition(token_id, best_token_id, 0.0 if is_same else float("-inf"))


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise RequestError(f"this text is not valid Unicode and has no tokens: {exc}") from exc
