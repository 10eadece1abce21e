"""The pinned tokenizer: chat prompts as token ids, in which no text can forge a role.

Owns `tokenizer.json`, the chat template and the end-of-turn tokens of a pinned model directory. Promises that the
template's own parts are the only source of special tokens: system and user text are tokenised apart from them, by a
tokenizer that knows no special tokens, and the result is checked. Text is taken verbatim (a template's own trimming
does not reach it) and never truncated. The chat template runs in a sandbox without a clock. Neither loads nor verifies
weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as JsonTokenizer

from projection.canonical import sha256_hex, value_digest
from projection.errors import ConfigurationError, EngineError, RequestError

TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
CHAT_TEMPLATE_NAME = "chat_template.jinja"
GENERATION_CONFIG_NAME = "generation_config.json"
CONFIG_NAME = "config.json"

SYSTEM_SENTINEL = "dpmsystemsentinel7c1f4e"
USER_SENTINEL = "dpmusersentinel9b3d62"


@dataclass(frozen=True, slots=True)
class TemplateParts:
    """What the chat template writes before, between and after the system's and the user's text."""

    before_system: str
    between: str
    after_user: str


class PinnedTokenizer:
    """A `projection.engine.Tokenizer` read from a pinned model directory."""

    def __init__(self, directory: Path) -> None:
        """Read the tokenizer of a model directory and render its chat template once.

        Raises:
            ConfigurationError: a file is missing or malformed, the template does not keep the two texts apart, or the
                tokenizer cannot keep special tokens out of plain text.
        """
        self._read: dict[str, str] = {}
        description = self._read_json(directory, TOKENIZER_NAME)
        config = self._read_json(directory, TOKENIZER_CONFIG_NAME)
        added = _added_tokens(description)
        self._special = _build(description)
        self._plain = _build(_without_added_tokens(description, added))
        self._plain.encode_special_tokens = True
        self._parts = split_template(self._chat_template(directory, config), _named_tokens(config))
        parts = [self._encode_part(part) for part in _as_tuple(self._parts)]
        self._part_ids = (parts[0], parts[1], parts[2])
        self._reserved = _reserved_ids(added, self._plain)
        self._require_turns_apart()
        self._eos_token_ids = self._find_eos(directory, config)
        self._vocab_size = 1 + max(self._special.get_vocab(with_added_tokens=True).values())
        self._missing_bytes = _missing_bytes(description)

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files that were read, sorted."""
        return tuple(sorted(self._read))

    @property
    def digest(self) -> str:
        """64 hex digits over the names and the SHA-256 of the files that were read; the weights do not count."""
        return value_digest("dpm/tokenizer/v1", self._read)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every token that ends the assistant's turn, ascending; never empty."""
        return self._eos_token_ids

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id; the model's logits may be padded beyond it."""
        return self._vocab_size

    @property
    def template_parts(self) -> TemplateParts:
        """The chat template's own text."""
        return self._parts

    def render_chat(self, system: str, user: str) -> list[int]:
        """Token ids of one system and one user turn, ready for the assistant's answer.

        Raises:
            RequestError: a text is not valid Unicode, or holds a character that the vocabulary cannot spell.
            EngineError: a text would need a special token.
        """
        before, between, after = self._part_ids
        return [*before, *self.encode_text(system), *between, *self.encode_text(user), *after]

    def encode_text(self, text: str) -> list[int]:
        """Token ids of plain text, in which special tokens do not exist; raises as `render_chat`."""
        try:
            token_ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeEncodeError) as exc:
            raise RequestError(f"this text is not valid Unicode and has no tokens: {exc}") from exc
        self._require_spellable(text)
        forged = self._reserved.intersection(token_ids)
        if forged:
            names = ", ".join(repr(self._special.id_to_token(token_id)) for token_id in sorted(forged))
            raise EngineError(
                f"this text cannot be tokenised without the special tokens {names}", token_ids=sorted(forged)
            )
        return token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of completion token ids without the end-of-turn tokens that end it; any other special token is shown.

        Raises:
            RequestError: an id that the vocabulary lacks.
        """
        for token_id in token_ids:
            if not 0 <= token_id < self.vocab_size or self._special.id_to_token(token_id) is None:
                raise RequestError(f"token id {token_id} is not in the vocabulary", token_id=token_id)
        end = len(token_ids)
        while end and token_ids[end - 1] in self._eos_token_ids:
            end -= 1
        text: str = self._special.decode(list(token_ids[:end]), skip_special_tokens=False)
        return text

    def _require_turns_apart(self) -> None:
        for part, token_ids in zip(_as_tuple(self._parts)[1:], self._part_ids[1:], strict=True):
            if self._reserved.isdisjoint(token_ids):
                raise ConfigurationError(
                    f"the chat template ends a turn with plain text, {part!r}, which any event can write: "
                    "an event could forge a role, so this model cannot be used"
                )

    def _require_spellable(self, text: str) -> None:
        """Raise where the tokenizer would drop a character without a word."""
        if self._missing_bytes.isdisjoint(text.encode("utf-8")):
            return
        at, character = next(
            (at, character)
            for at, character in enumerate(text)
            if not self._missing_bytes.isdisjoint(character.encode("utf-8"))
        )
        raise RequestError(
            f"the model's vocabulary cannot spell the character U+{ord(character):04X} at position {at} of this text "
            f"(...{text[max(0, at - 20) : at]!r}): it would be dropped. Remove it, or use another model",
            character=f"U+{ord(character):04X}",
            position=at,
        )

    def _read_json(self, directory: Path, name: str) -> dict[str, Any]:
        return _parse_object(self._read_text(directory, name), directory / name)

    def _read_text(self, directory: Path, name: str) -> str:
        try:
            data = (directory / name).read_bytes()
            text = data.decode("utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigurationError(f"{directory / name} cannot be read: {exc}", path=str(directory / name)) from exc
        self._read[name] = sha256_hex(data)
        return text

    def _chat_template(self, directory: Path, config: Mapping[str, Any]) -> str:
        if (directory / CHAT_TEMPLATE_NAME).exists():
            return self._read_text(directory, CHAT_TEMPLATE_NAME)
        template = config.get("chat_template")
        if isinstance(template, list):
            named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
            template = named.get("default")
        if not isinstance(template, str):
            raise ConfigurationError(
                f"{directory} has no chat template: neither {CHAT_TEMPLATE_NAME} nor a default one in "
                f"{TOKENIZER_CONFIG_NAME}. Use the model's instruction-tuned version",
                path=str(directory),
            )
        return template

    def _encode_part(self, part: str) -> list[int]:
        token_ids: list[int] = self._special.encode(part, add_special_tokens=False).ids
        return token_ids

    def _find_eos(self, directory: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
        name = GENERATION_CONFIG_NAME if (directory / GENERATION_CONFIG_NAME).exists() else CONFIG_NAME
        stated = self._read_json(directory, name).get("eos_token_id")
        token_ids = set(stated if isinstance(stated, list) else [] if stated is None else [stated])
        named = _named_tokens(config).get("eos_token")
        if named is not None:
            token_ids.add(self._special.token_to_id(named))
        if not token_ids or not all(type(token_id) is int for token_id in token_ids):
            raise ConfigurationError(
                f"{directory} does not say which token ends a turn: eos_token_id in {name}, eos_token in "
                f"{TOKENIZER_CONFIG_NAME}",
                path=str(directory),
            )
        return tuple(sorted(token_ids))


def split_template(template: str, named_tokens: Mapping[str, str]) -> TemplateParts:
    """Render the chat template around two sentinel words and cut it at them.

    Raises:
        ConfigurationError: the template fails, or does not show each text once, unchanged, system first.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.filters["tojson"] = _to_json
    messages = [{"role": "system", "content": SYSTEM_SENTINEL}, {"role": "user", "content": USER_SENTINEL}]
    try:
        text = environment.from_string(template).render(
            messages=messages, tools=None, documents=None, add_generation_prompt=True, **named_tokens
        )
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as exc:
        raise ConfigurationError(
            f"the chat template cannot render a system and a user turn: {exc}. Templates get no clock (strftime_now)"
        ) from exc
    if text.count(SYSTEM_SENTINEL) != 1 or text.count(USER_SENTINEL) != 1:
        raise ConfigurationError(
            "the chat template drops, repeats or rewrites the text of a turn, so its own parts cannot be told from it"
        )
    before, _, rest = text.partition(SYSTEM_SENTINEL)
    between, found, after = rest.partition(USER_SENTINEL)
    if not found:
        raise ConfigurationError("the chat template puts the user's turn before the system's")
    return TemplateParts(before, between, after)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _as_tuple(parts: TemplateParts) -> tuple[str, str, str]:
    return parts.before_system, parts.between, parts.after_user


def _parse_object(text: str, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ConfigurationError(f"{path} is not JSON: {exc}", path=str(path)) from exc
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path} is not a JSON object", path=str(path))
    return value


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and their like, which are strings or descriptions of an added token."""
    named: dict[str, str] = {}
    for key, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(content, str):
            named[key] = content
    return named


def _added_tokens(description: Mapping[str, Any]) -> dict[int, tuple[str, bool]]:
    """Content of each added token, and whether it is special."""
    try:
        return {
            token["id"]: (token["content"], bool(token.get("special")))
            for token in description.get("added_tokens") or []
        }
    except (KeyError, TypeError) as exc:
        raise ConfigurationError(f"{TOKENIZER_NAME} has malformed added_tokens: {exc!r}") from exc


def _without_added_tokens(description: Mapping[str, Any], added: Mapping[int, tuple[str, bool]]) -> dict[str, Any]:
    """The same tokenizer without its added tokens, neither as such nor, where nothing needs them, in its vocabulary.

    A vocabulary entry matters where the model looks whole words up before it applies merges (`ignore_merges`).
    """
    model = dict(description.get("model") or {})
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        kept = {model.get("unk_token"), *(_merged(merge) for merge in model.get("merges") or [])}
        contents = {content for content, _ in added.values()} - kept
        model["vocab"] = {token: token_id for token, token_id in vocab.items() if token not in contents}
    return {**description, "added_tokens": [], "post_processor": None, "model": model}


def _merged(merge: Any) -> str:
    return merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge)


def _build(description: Mapping[str, Any]) -> JsonTokenizer:
    model = description.get("model") or {}
    if model.get("dropout"):
        raise ConfigurationError(f"{TOKENIZER_NAME} asks for dropout {model['dropout']}: its token ids would be random")
    try:
        tokenizer = JsonTokenizer.from_buffer(json.dumps(description).encode("utf-8"))
    except ValueError as exc:
        raise ConfigurationError(f"{TOKENIZER_NAME} is not a tokenizer: {exc}") from exc
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _missing_bytes(description: Mapping[str, Any]) -> frozenset[int]:
    """Bytes for which a byte-level vocabulary has no token: BPE without an unknown token drops them silently."""
    model = description.get("model") or {}
    is_byte_level = '"ByteLevel"' in json.dumps([description.get("pre_tokenizer"), description.get("normalizer")])
    if not is_byte_level or model.get("type") != "BPE" or model.get("unk_token") is not None:
        return frozenset()
    return frozenset(byte for byte, character in enumerate(byte_level_alphabet()) if character not in model["vocab"])


def byte_level_alphabet() -> tuple[str, ...]:
    """The character that stands for each byte in a byte-level vocabulary (Source: GPT-2, bytes_to_unicode)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return tuple(chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256))


def _reserved_ids(added: Mapping[int, tuple[str, bool]], plain: JsonTokenizer) -> frozenset[int]:
    """Ids that plain text may never have: every added token, but for ordinary words of the vocabulary.

    Some tokenizers list words that their merges produce anyway ("\\n\\n") as added tokens that are not special: these
    are ordinary.

    Raises:
        ConfigurationError: plain text would produce a special token.
    """
    reserved = set(added)
    for token_id, (content, is_special) in added.items():
        if token_id not in plain.encode(content, add_special_tokens=False).ids:
            continue
        if is_special:
            raise ConfigurationError(
                f"the tokenizer turns the plain text {content!r} into the special token {token_id}: "
                "an event could forge a role, so this model cannot be used",
                token_id=token_id,
            )
        reserved.discard(token_id)
    return frozenset(reserved)
