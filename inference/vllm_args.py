"""The flags of vLLM's own OpenAI server for a configuration, its environment, and what vLLM's parser makes of them.

Promises that what is judged is what vLLM would read: the flags go through vLLM's parser, and a flag that it does not
know, or a value that it does not take, is an error in vLLM's words. Only parses: no engine, no model and no device is
touched, so a GPU's configuration can be read on any machine.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from inference import vllm_runtime
from inference.config import EngineConfig, RopeConfig, SpeculationConfig
from inference.containment import contained
from projection.errors import ConfigurationError

if TYPE_CHECKING:
    from vllm import EngineArgs

NOT_IN_THE_SERVER = frozenset({"VLLM_ENABLE_V1_MULTIPROCESSING", "TORCHDYNAMO_DISABLE"})
GPU_ENVIRONMENT = {
    "VLLM_PLUGINS": "",  # our plugin is for CPUs, and nobody else's was judged
    "HF_HUB_OFFLINE": "1",  # the weights are pinned here; nothing is fetched
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True, slots=True)
class ParsedArguments:
    """What vLLM's parser read.

    values: by vLLM's name; those of nested configurations under dotted names; an enumeration's member by its name.
    changed: the names whose value is not vLLM's default and that no key of the configuration stands for.
    """

    values: Mapping[str, Any]
    changed: frozenset[str]


def server_environment(config: EngineConfig) -> dict[str, str]:
    """The variables that the server's process gets, each of which may be set to nothing else outside."""
    return {**required_environment(config), **config.environment}


def required_environment(config: EngineConfig) -> dict[str, str]:
    """The variables that a server on such a device needs, before the configuration's own `environment`."""
    if config.device == "cuda":
        return {**GPU_ENVIRONMENT, "OMP_NUM_THREADS": str(config.num_threads)}
    required = vllm_runtime.environment_for(config)
    eager = {} if config.features.compile else {"TORCHDYNAMO_DISABLE": "1"}
    return {name: value for name, value in required.items() if name not in NOT_IN_THE_SERVER} | eager


def server_arguments(config: EngineConfig, model: Path) -> list[str]:
    """The flags of vLLM's server for a configuration: those of its keys, in one order, then `vllm_arguments`."""
    return [*_own_arguments(config, model), *(_flag(name, value) for name, value in config.vllm_arguments.items())]


def engine_arguments(config: EngineConfig, model: Path) -> EngineArgs:
    """What an engine in this process is started with: the very flags of the server."""
    from vllm import EngineArgs

    return EngineArgs.from_cli_args(_parse(server_arguments(config, model)))


def _own_arguments(config: EngineConfig, model: Path) -> list[str]:
    return [_flag(name, value) for name, value in _own_flags(config, model).items() if value is not None]


def _own_flags(config: EngineConfig, model: Path) -> dict[str, bool | int | float | str | None]:
    """What each key of a configuration is called by vLLM; None leaves vLLM's default."""
    features = config.features
    return {
        "model": str(model),
        "dtype": config.dtype,
        "seed": config.seed,
        "max-model-len": config.max_model_len,
        "hf-overrides": _rope(config.rope_parameters) if config.rope_parameters else None,
        "max-num-seqs": config.max_num_seqs,
        "max-num-batched-tokens": config.max_num_batched_tokens or config.max_model_len,
        "block-size": vllm_runtime.BLOCK_SIZE if config.device == "cpu" else None,
        "kv-cache-memory-bytes": int(config.kv_cache_gib * 2**30),
        "kv-cache-dtype": config.kv_cache_dtype,
        "gpu-memory-utilization": config.gpu_memory_utilization,
        "tensor-parallel-size": config.tensor_parallel_size,
        "quantization": config.quantization,
        "attention-backend": config.attention.backend,
        "attention-config.flash_attn_version": config.attention.flash_attn_version,
        "enforce-eager": not features.compile,
        "enable-prefix-caching": features.prefix_caching,
        "enable-chunked-prefill": features.chunked_prefill,
        "speculative-config": _speculation(features.speculation) if features.speculation else None,
        "generation-config": config.generation_config,
        "logprobs-mode": "processed_logprobs",
        "structured-outputs-config.backend": "xgrammar",
    }


def _speculation(speculation: SpeculationConfig) -> str:
    return json.dumps(speculation.model_dump(exclude_none=True))


def _rope(rope: RopeConfig) -> str:
    """vLLM takes no more positions than the model's configuration states, and stretches that number not itself."""
    max_positions = int(rope.original_max_position_embeddings * rope.factor)
    return json.dumps({"max_position_embeddings": max_positions, "rope_parameters": rope.model_dump()})


def _flag(name: str, value: bool | int | float | str) -> str:
    """One word, so that a value which begins with a dash stays a value."""
    if isinstance(value, bool):
        if "." in name:
            return f"--{name}={json.dumps(value)}"
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={value}"


def parse(config: EngineConfig, model: Path) -> ParsedArguments:
    """What vLLM reads from the configuration's flags (about 10 s, most of it imports).

    Raises:
        ConfigurationError: vLLM is not installed, does not know a flag, or does not take a value; or one of
            `vllm_arguments` changes what a key of the configuration sets.
    """
    if find_spec("vllm") is None:
        raise ConfigurationError("vLLM is not installed: run the set-up; its own parser judges the configuration")
    with contained("reading vLLM's flags"):
        defaults, own, full = (
            _flatten(_parse(flags)) for flags in ([], _own_arguments(config, model), server_arguments(config, model))
        )
    names = sorted(full.keys() | own.keys() | defaults.keys())
    configured = {name.replace("-", "_") for name in _own_flags(config, model)}
    is_configured = {name: any(f"{name}.".startswith(f"{key}.") for key in configured) for name in names}
    for name in names:
        if is_configured[name] and full.get(name) != own.get(name):
            raise ConfigurationError(
                f"vllm_arguments: {name} would become {full.get(name)!r}, but the configuration's own keys make it "
                f"{own.get(name)!r}. Change those instead",
                argument=name,
            )
    changed = {name for name in names if full.get(name) != defaults.get(name) and not is_configured[name]}
    return ParsedArguments(full, frozenset(changed))


def _parse(flags: Sequence[str]) -> Namespace:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]  # vllm is not analysed
        """Raises where vLLM's own would end the process; no abbreviations, which hide what is meant."""

        def error(self, message: str) -> NoReturn:
            raise ConfigurationError(f"vLLM refuses its arguments: {message}", vllm_message=message)

        def print_help(self, file: Any = None) -> None:
            self.error("help is not a setting")

    parser = make_arg_parser(Parser(prog="vllm", allow_abbrev=False))
    try:
        namespace: Namespace = parser.parse_args(list(flags))
    except ValueError as exc:
        raise ConfigurationError(f"vLLM refuses its arguments: {exc}", vllm_message=str(exc)) from exc
    return namespace


def _flatten(namespace: Namespace) -> dict[str, Any]:
    return dict(_leaves("", vars(namespace)))


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Scalars and lists by dotted name; the name of an empty mapping leads to None, as an absent one does."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name, None) for field in fields(value)}
    if isinstance(value, dict):
        if not value:
            yield prefix, None
        for key, inner in value.items():
            yield from _leaves(f"{prefix}.{key}" if prefix else str(key), inner)
    else:
        yield prefix, _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in (sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value)]
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)
