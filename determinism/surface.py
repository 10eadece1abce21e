"""The surface of one answer: everything a replay must reproduce, bit for bit.

Floating-point numbers are kept as hexadecimal text (`float.hex`), so that a file holds their very bits. Equality is
decided on all of it; SHA-256 is the evidence, and the running xxh3-128 is what many replays are counted by.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import xxhash
from pydantic import BaseModel, ConfigDict, model_validator

from projection.canonical import value_digest
from projection.engine import Completion
from projection.replay import first_other

DIGEST_TAG = "dpm/surface/v1"


class Surface(BaseModel):
    """What an answer shows.

    logprobs: (num_tokens,), natural log, hexadecimal; empty where the endpoint gives none.
    margins: (num_tokens,), top-1 minus top-2, hexadecimal; None where one token was allowed; empty where not known.
    sha256: over all the other fields; checked whenever a surface is read.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    token_ids: tuple[int, ...]
    logprobs: tuple[str, ...]
    margins: tuple[str | None, ...]
    text: str
    finish_reason: str
    sha256: str

    @classmethod
    def build(
        cls,
        token_ids: Sequence[int],
        text: str,
        logprobs: Iterable[float] = (),
        margins: Iterable[float | None] = (),
        finish_reason: str = "",
    ) -> Self:
        content: dict[str, Any] = {
            "token_ids": tuple(token_ids),
            "logprobs": tuple(float(logprob).hex() for logprob in logprobs),
            "margins": tuple(None if margin is None else float(margin).hex() for margin in margins),
            "text": text,
            "finish_reason": finish_reason,
        }
        return cls(**content, sha256=_digest(content))

    @classmethod
    def of(cls, completion: Completion) -> Self:
        """The surface of a completion; how long it took is no part of it."""
        return cls.build(
            completion.token_ids, completion.text, completion.logprobs, completion.margins, completion.finish_reason
        )

    @model_validator(mode="after")
    def _has_its_digest(self) -> Self:
        if self.sha256 != _digest(self.model_dump(exclude={"sha256"})):
            raise ValueError(f"a surface does not have its digest {self.sha256}: the file was changed")
        return self

    @cached_property
    def xxh3(self) -> str:
        """Running xxh3-128 over the tokens in their order, each with its log-probability and margin; then the text."""
        digest = xxhash.xxh3_128()
        for index, token_id in enumerate(self.token_ids):
            digest.update(f"{token_id} {self.logprobs[index : index + 1]} {self.margins[index : index + 1]}\n".encode())
        digest.update(f"{self.finish_reason}\n{self.text}".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    @property
    def min_margin(self) -> float | None:
        """The answer's distance from flipping; None when no position had a choice, or margins are not known."""
        return min((float.fromhex(margin) for margin in self.margins if margin is not None), default=None)


def _digest(content: dict[str, Any]) -> str:
    lists = {name: list(value) if isinstance(value, tuple) else value for name, value in content.items()}
    return value_digest(DIGEST_TAG, lists)


DifferingPart = Literal["token_ids", "logprobs", "margins", "text", "finish_reason"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two surfaces part. index: 0-based token, or character of the text; None for a whole."""

    what: DifferingPart
    index: int | None
    reference: Any
    found: Any

    def __str__(self) -> str:
        unit = "character" if self.what == "text" else "token"
        place = "" if self.index is None else f" at {unit} {self.index}"
        return f"{self.what} differ{place}: {self.reference!r}, then {self.found!r}"


def first_difference(reference: Surface, found: Surface) -> Difference | None:
    """Where `found` parts from `reference`: by the earliest token, a token's id before its numbers; None if nowhere."""
    if reference == found:
        return None
    per_token: tuple[DifferingPart, ...] = ("token_ids", "logprobs", "margins")
    places = [
        (index, rank, name)
        for rank, name in enumerate(per_token)
        if (index := first_other(getattr(reference, name), getattr(found, name))) is not None
    ]
    if places:
        index, _, name = min(places)
        return Difference(name, index, _at(getattr(reference, name), index), _at(getattr(found, name), index))
    if (character := first_other(reference.text, found.text)) is not None:
        return Difference("text", character, _at(reference.text, character), _at(found.text, character))
    return Difference("finish_reason", None, reference.finish_reason, found.finish_reason)


def _at(values: Sequence[Any], index: int) -> Any:
    return values[index] if index < len(values) else None
