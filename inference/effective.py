"""What an engine would really run with: the configuration, vLLM's reading of it, environment, model and machine.

Owns gathering these facts into one frozen value, which the checker's rules judge without looking further. Reads; does
not start an engine, hash weights or judge.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from inference import vllm_args, vllm_runtime
from inference.config import EngineConfig
from inference.containment import contained
from inference.manifest import Manifest, list_files, load_manifest
from projection.errors import WeightsError

QUANTISATION_NONE = (None, "none")


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the check runs.

    compute_capabilities: of every visible GPU, (major, minor); empty where there is none.
    has_zentorch: AMD's replacement kernels are installed.
    """

    num_cores: int
    compute_capabilities: tuple[tuple[int, int], ...] = ()
    has_zentorch: bool = False


@dataclass(frozen=True, slots=True)
class PinnedModel:
    """The model directory as its manifest has it.

    digest, source: of the manifest; None where the directory is not pinned, which `problem` explains.
    model_config: the model's config.json; None where there is none.
    """

    digest: str | None
    source: str | None
    problem: str | None
    model_config: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Effective:
    """All that the checker judges.

    arguments: what vLLM's parser read from the configuration.
    outside: the environment that the server would inherit; `required`: what it needs there.
    enrolled_max_num_seqs: the largest batch of this machine's enrolment; None where it was not enrolled.
    """

    config: EngineConfig
    arguments: vllm_args.ParsedArguments
    outside: Mapping[str, str]
    required: Mapping[str, str]
    model: PinnedModel
    machine: Machine
    enrolled_max_num_seqs: int | None = None

    def argument(self, name: str) -> Any:
        """The value that vLLM reads under its own name; None where it has none."""
        return self.arguments.values.get(name)

    def changed_under(self, *names: str) -> tuple[str, ...]:
        """`name=value` of every argument that is not vLLM's default and is, or lies under, one of the names."""
        found = sorted(name for name in self.arguments.changed for under in names if f"{name}.".startswith(f"{under}."))
        return tuple(f"{name}={self.argument(name)}" for name in found)

    def variable(self, name: str) -> tuple[str, ...]:
        """Every value that something gives the variable: the configuration, the device's needs, the outside."""
        values = (source.get(name) for source in (self.config.environment, self.required, self.outside))
        return tuple(dict.fromkeys(value for value in values if value is not None))

    @property
    def architectures(self) -> tuple[str, ...]:
        return tuple((self.model.model_config or {}).get("architectures") or ())

    @property
    def quantisation(self) -> str | None:
        """The method, from the configuration or else from the model; None for plain weights."""
        of_model = (self.model.model_config or {}).get("quantization_config") or {}
        method = self.argument("quantization") or of_model.get("quant_method")
        return None if method in QUANTISATION_NONE else str(method)


def collect(config: EngineConfig, model_dir: Path, enrolled_max_num_seqs: int | None = None) -> Effective:
    """Gather the facts of this machine (about 10 s, most of it vLLM's imports).

    Raises:
        ConfigurationError: vLLM is not installed, or does not take the configuration's flags.
    """
    outside = dict(os.environ)  # before vLLM's import, which sets variables of its own
    for name, value in vllm_runtime.QUIET.items():
        os.environ.setdefault(name, value)
    return Effective(
        config=config,
        arguments=vllm_args.parse(config, model_dir),
        outside=outside,
        required=vllm_args.required_environment(config),
        model=read_model(model_dir),
        machine=_machine(config),
        enrolled_max_num_seqs=enrolled_max_num_seqs,
    )


def read_model(directory: Path) -> PinnedModel:
    """The directory's manifest and config.json. Names and sizes are compared, contents are not hashed."""
    model_config = _read_json(directory / "config.json")
    try:
        manifest = load_manifest(directory)
        _compare_sizes(directory, manifest)
    except WeightsError as exc:
        return PinnedModel(None, None, exc.message, model_config)
    return PinnedModel(manifest.digest, manifest.source, None, model_config)


def _compare_sizes(directory: Path, manifest: Manifest) -> None:
    expected = {file.name: file.size for file in manifest.files}
    found = {name: path.stat().st_size for name, path in list_files(directory).items()}
    differing = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if differing:
        raise WeightsError(
            f"{directory} is not what was pinned: {', '.join(differing)}. 'dpm weights verify' says more",
            differences=differing,
        )


def _read_json(path: Path) -> Mapping[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _machine(config: EngineConfig) -> Machine:
    return Machine(
        num_cores=len(os.sched_getaffinity(0)),
        compute_capabilities=_compute_capabilities() if config.device == "cuda" else (),
        has_zentorch=find_spec("zentorch") is not None,
    )


def _compute_capabilities() -> tuple[tuple[int, int], ...]:
    with contained("asking for GPUs"):
        import torch

        if not torch.cuda.is_available():
            return ()
        found = [torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())]
    return tuple((int(major), int(minor)) for major, minor in found)
