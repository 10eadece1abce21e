"""What the commands share: where things lie, which engine a name means, the clock and the salts.

Engines are imported only here and only when asked for, so that `dpm --help` stays instant.
"""

from __future__ import annotations

import os
import secrets
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Literal, Protocol

from inference.config import EngineConfig, load_config
from projection.engine import Engine, Tokenizer
from projection.errors import ConfigurationError, NotFoundError
from projection.view_grammar import Profile

EngineName = Literal["vllm", "transformers", "scripted"]
DEFAULT_DB = Path("dpm.sqlite")
DEFAULT_BUDGET_CHARS = 1338  # the paper's tight budget: a twentieth of its trajectories
DEFAULT_TENANT = "default"


class ClosableEngine(Engine, Protocol):
    """An engine that holds memory until it is closed."""

    def close(self) -> None: ...


def home() -> Path:
    """Where weights lie: DPM_HOME, or `.dpm` in the current directory."""
    return Path(os.environ.get("DPM_HOME", ".dpm"))


def weights_dir(model: str) -> Path:
    """The pinned directory of a model: a name under the home's `weights`, or a path."""
    named = home() / "weights" / model
    return named if named.exists() or not Path(model).is_dir() else Path(model)


def default_config_path() -> Path:
    """The CPU profile that ships with the package."""
    return Path(str(files("gpu_configs"))) / "cpu.yaml"


def read_config(path: Path | None) -> EngineConfig:
    """The named configuration, or the CPU profile."""
    return load_config(path or default_config_path())


def profile_of(config: EngineConfig) -> Profile:
    """The view's profile that a configuration asks for."""
    return Profile(slot_candidates=config.projection.slot_candidates)


def open_engine(name: str, config: EngineConfig) -> AbstractContextManager[ClosableEngine]:
    """Start the engine of that name; closing the context stops it.

    Raises:
        ConfigurationError: no such engine. EngineError: it cannot start.
    """
    if name == "scripted":
        from inference.scripted_engine import ScriptedEngine

        return closing(ScriptedEngine())
    directory = _existing_weights(config.model)
    if name == "vllm":
        from inference.vllm_engine import VllmEngine

        return closing(VllmEngine.load(config, directory))
    if name == "transformers":
        from inference.transformers_engine import TransformersEngine

        return closing(TransformersEngine.load(config, directory))
    raise ConfigurationError(f"there is no engine {name!r}; choose vllm, transformers or scripted", engine=name)


def open_tokenizer(name: str, config: EngineConfig) -> Tokenizer:
    """The tokenizer of that engine, without the engine."""
    if name == "scripted":
        from inference.scripted_engine import ScriptedTokenizer

        return ScriptedTokenizer()
    from inference.tokenizer import PinnedTokenizer

    return PinnedTokenizer(_existing_weights(config.model))


def now() -> str:
    """The current time, RFC 3339, UTC, microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def new_salt() -> bytes:
    """32 random bytes from the operating system."""
    return secrets.token_bytes(32)


def _existing_weights(model: str) -> Path:
    directory = weights_dir(model)
    if not directory.is_dir():
        raise NotFoundError(
            f"model {model!r} is not here ({directory}). Fetch it with: dpm weights pull {model}; or, if it lies in "
            "another folder's .dpm, name that with the environment variable DPM_HOME",
            model=model,
        )
    return directory
