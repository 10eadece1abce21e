"""What the launcher tells the server's middleware, as a JSON file whose path is in the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from projection.engine import EngineIdentity
from projection.errors import ConfigurationError

SETTINGS_VARIABLE = "DPM_SERVER_SETTINGS"
MAX_BODY_BYTES = 8 * 2**20


class ServerSettings(BaseModel):
    """identity: the fields of the engine identity. seed: the pinned one. enrolment: path of the known answers; None
    is a server that is being enrolled, which never becomes ready. self_test_interval_s: None is no timer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    identity: dict[str, Any]
    seed: Annotated[int, Field(ge=0, strict=True)]
    enrolment: str | None = None
    self_test_interval_s: Annotated[float, Field(gt=0)] | None = None
    max_body_bytes: Annotated[int, Field(gt=0, strict=True)] = MAX_BODY_BYTES

    @property
    def engine_identity(self) -> str:
        """Digest of the identity."""
        return EngineIdentity(self.identity).digest

    @property
    def max_num_seqs(self) -> int:
        """The most requests that the server computes at once."""
        return int(self.identity.get("flags", {}).get("max_num_seqs", 1))


def load_settings(path: Path) -> ServerSettings:
    """Read a settings file.

    Raises:
        ConfigurationError: it is missing or malformed.
    """
    try:
        return ServerSettings.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as exc:
        raise ConfigurationError(f"{path} cannot be read as the server's settings: {exc}", path=str(path)) from exc
