"""Which engine a name means, and where its configuration and weights lie.

Engines are imported only when asked for, so that nothing heavy is loaded before it is needed. The scripted engine is
opened only by its own name.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, closing
from importlib.resources import files
from pathlib import Path
from typing import Protocol

from inference.config import EngineConfig, load_config
from projection.canonical import tagged_digest
from projection.engine import Engine, Tokenizer
from projection.errors import ConfigurationError, EngineError, NotFoundError
from projection.view_grammar import Profile

ENGINE_NAMES = ("vllm", "transformers", "scripted")


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


def read_config(path: Path | None = None) -> EngineConfig:
    """The named configuration, or the CPU profile that ships with the package."""
    return load_config(path or Path(str(files("gpu_configs"))) / "cpu.yaml")


def enrolment_path(engine_identity: str) -> Path:
    """Where the known answers of an engine lie."""
    return home() / "enrolments" / f"{engine_identity}.json"


def profile_of(config: EngineConfig) -> Profile:
    """The view's profile that a configuration asks for."""
    return Profile(slot_candidates=config.projection.slot_candidates)


def open_engine(
    name: str, config: EngineConfig, cache_salt: str | None = None
) -> AbstractContextManager[ClosableEngine]:
    """Start the engine of that name, or connect to the server at that address; closing the context stops it.

    cache_salt: whose prefix cache may be read, where there is one; callers give each tenant its own.

    Raises:
        ConfigurationError: no such engine. NotFoundError: the model was not fetched. EngineError: it cannot start.
    """
    if is_url(name):
        from inference.server_engine import VllmServerEngine

        return closing(VllmServerEngine.connect(name, existing_weights(config.model), cache_salt=cache_salt))
    require_known(name)
    if name == "scripted":
        from inference.scripted_engine import ScriptedEngine

        return closing(ScriptedEngine())
    _refuse_gpu_profile(name, config)
    directory = existing_weights(config.model)
    if name == "transformers":
        from inference.transformers_engine import TransformersEngine

        return closing(TransformersEngine.load(config, directory))
    from inference.vllm_engine import VllmEngine

    return closing(VllmEngine.load(config, directory, cache_salt))


def tenant_salt(tenant_id: str) -> str:
    """The cache salt of a tenant: a prefix is found again by whoever has the same."""
    return tagged_digest("dpm/cache-salt/v1", tenant_id.encode("utf-8"))


def require_identity(engine: Engine, expected: str | None) -> None:
    """See that an engine is the one that was asked for; None asks for no one in particular.

    Raises:
        EngineError: it is another.
    """
    if expected not in (None, engine.identity.digest):
        raise EngineError(
            f"this engine has the identity {engine.identity.digest}, but {expected} is expected: it runs on other "
            "weights, libraries, flags or hardware",
            expected=expected,
            found=engine.identity.digest,
        )


def open_tokenizer(name: str, config: EngineConfig) -> Tokenizer:
    """The tokenizer of that engine, without the engine; raises as `open_engine`."""
    require_known(name)
    if name == "scripted":
        from inference.scripted_engine import ScriptedTokenizer

        return ScriptedTokenizer()
    from inference.tokenizer import PinnedTokenizer

    return PinnedTokenizer(existing_weights(config.model))


def _refuse_gpu_profile(name: str, config: EngineConfig) -> None:
    if config.device != "cpu":
        raise ConfigurationError(
            f"engine {name!r} runs on a CPU, and this configuration is for {config.device}: start its server with "
            "dpm engine serve, and name the server with --engine http://HOST:PORT",
            device=config.device,
        )


def configured_context(name: str, config: EngineConfig) -> int | None:
    """Tokens of context that an engine will have, where its configuration decides it; None for the others."""
    return config.max_model_len if name in ("vllm", "transformers") else None


def is_url(name: str) -> bool:
    """Whether an engine's name is the address of a server."""
    return name.startswith(("http://", "https://"))


def require_known(name: str) -> None:
    """See that there can be such an engine; nothing is started, and no server is asked.

    Raises:
        ConfigurationError: there is none.
    """
    if not is_url(name) and name not in ENGINE_NAMES:
        raise ConfigurationError(
            f"there is no engine {name!r}; choose {', '.join(ENGINE_NAMES)}, or a server's http:// address", engine=name
        )


def existing_weights(model: str) -> Path:
    """The pinned directory of a model that was fetched.

    Raises:
        NotFoundError: it was not.
    """
    directory = weights_dir(model)
    if not directory.is_dir():
        raise NotFoundError(
            f"model {model!r} is not here ({directory}). Fetch it with: dpm weights pull {model}; or, if it lies in "
            "another folder's .dpm, name that with the environment variable DPM_HOME",
            model=model,
        )
    return directory
