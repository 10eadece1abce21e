"""Known answers: what an engine of one identity says to a few prompts, bit for bit, in a file that seals itself.

Owns the file. Promises that one which was changed, cut or made for another engine is refused. Does not ask anything of
an engine: `inference.selftest` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from projection.canonical import value_digest
from projection.engine import EngineIdentity
from projection.errors import ConfigurationError

TokenIds = Annotated[tuple[Annotated[int, Field(ge=0, strict=True)], ...], Field(min_length=1)]
HexFloat = Annotated[str, Field(pattern=r"^-?0x[01]\.[0-9a-f]+p[+-][0-9]+$")]


class KnownAnswer(BaseModel):
    """What one prompt is answered with. logprobs: hexadecimal floats, one for each token."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt_token_ids: TokenIds
    token_ids: TokenIds
    logprobs: tuple[HexFloat, ...]


class Enrolment(BaseModel):
    """The known answers of one engine identity. `digest` covers all the rest."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["dpm-enrolment/1"] = "dpm-enrolment/1"
    identity: dict[str, Any]
    known_answers: tuple[KnownAnswer, ...]
    digest: str

    @property
    def engine_identity(self) -> str:
        """Digest of the identity."""
        return EngineIdentity(self.identity).digest


def enrol(identity: EngineIdentity, known_answers: Sequence[KnownAnswer]) -> Enrolment:
    """Seal known answers."""
    draft = Enrolment(identity=dict(identity.fields), known_answers=tuple(known_answers), digest="")
    return draft.model_copy(update={"digest": _digest(draft)})


def _digest(enrolment: Enrolment) -> str:
    return value_digest("dpm/enrolment/v1", enrolment.model_dump(mode="json", exclude={"digest"}))


def save_enrolment(enrolment: Enrolment, path: Path) -> None:
    """Write the file in one step; an older one is replaced.

    Raises:
        ConfigurationError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(enrolment.model_dump_json(indent=1) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as exc:
        raise ConfigurationError(f"{path} cannot be written: {exc}", path=str(path)) from exc


def load_enrolment(path: Path, engine_identity: str) -> Enrolment:
    """Read the known answers of the engine of that identity.

    Raises:
        ConfigurationError: there are none, they are malformed or changed, or they are another engine's.
    """
    again = "Make it with: dpm engine enroll"
    try:
        enrolment = Enrolment.model_validate_json(path.read_bytes())
    except OSError as exc:
        raise ConfigurationError(f"there are no known answers in {path}: {exc}. {again}", path=str(path)) from exc
    except ValidationError as exc:
        raise ConfigurationError(f"{path} is not an enrolment: {exc}. {again}", path=str(path)) from exc
    if enrolment.digest != _digest(enrolment):
        raise ConfigurationError(f"{path} was changed after it was made: its digest does not hold. {again}")
    if enrolment.engine_identity != engine_identity:
        raise ConfigurationError(
            f"{path} was made for the engine {enrolment.engine_identity}, but this one is {engine_identity}. {again}",
            expected=engine_identity,
            found=enrolment.engine_identity,
        )
    return enrolment
