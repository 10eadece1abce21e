"""What the doctor can turn: settings of an engine, and the circumstances under which a call is asked.

Each setting knows which fields of an engine identity it accounts for, so that a difference between two identities
becomes a switch that restores the recorded value. What no setting accounts for (a library, a processor) cannot be
turned on one machine, and is listed instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from determinism.suite.variants import CHUNK_TOKENS, SPECULATION
from inference import engines
from inference.config import EngineConfig, SpeculationConfig
from inference.manifest import load_manifest
from projection.errors import WeightsError
from projection.replay import differing_fields

SPECULATION_ISSUE = "vllm-project/vllm#54506"
NEIGHBOURS_ISSUE = "vllm-project/vllm#51187"
_SIZES = ("max_model_len", "max_num_seqs", "kv_cache_memory_bytes", "max_num_batched_tokens")
ENGINES_WITHOUT_CACHE = ("transformers", "scripted")
UNKNOWN = object()
"""A recorded value that cannot be restored here."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a call is asked. is_rebuilt: with the prompt that the log gives today.

    beside_others: in a batch. is_warm: after it was asked before, so that its prompt is read from the prefix cache.
    """

    engine: str
    config: EngineConfig
    beside_others: bool = False
    is_warm: bool = False
    has_grammar: bool = True
    is_rebuilt: bool = True


@dataclass(frozen=True, slots=True)
class Switch:
    """One thing that can be turned. change: from what to what. issue: where the public knows of such a cause."""

    name: str
    change: str
    turn: Callable[[Setting], Setting]
    issue: str | None = None


@dataclass(frozen=True, slots=True)
class _Dimension:
    """One setting. fields: of the identity, by their dotted names' beginnings. other: a value that could matter."""

    name: str
    fields: tuple[str, ...]
    recorded: Callable[[Mapping[str, Any]], Any]
    current: Callable[[EngineConfig], Any]
    change: Callable[[EngineConfig, Any], EngineConfig]
    other: Callable[[Any], Any] | None
    issue: str | None = None


@dataclass(frozen=True, slots=True)
class Switches:
    """restoring: bring back a recorded value that differs here. others: turn what is equal, or was not recorded.

    fixed: identity fields that differ and that nothing here can turn.
    """

    restoring: tuple[Switch, ...]
    others: tuple[Switch, ...]
    fixed: tuple[str, ...]


def find_switches(recorded: Mapping[str, Any], here: Mapping[str, Any], setting: Setting) -> Switches:
    """The switches between a recorded engine identity and the one here. Settings are turned only of an engine that is
    started here: vllm, in process."""
    differing = differing_fields(recorded, here)
    restoring: list[Switch] = []
    others = [beside_others()] if setting.engine in ENGINES_WITHOUT_CACHE else [beside_others(), warm_cache()]
    if setting.engine == "vllm" and recorded.get("kind") == "vllm":
        for dimension in _DIMENSIONS:
            is_other = any(_covers(dimension, name) for name in differing)
            value = dimension.recorded(recorded)
            if is_other and value is not UNKNOWN and value != dimension.current(setting.config):
                restoring.append(_switch(dimension, setting.config, value))
                differing = [name for name in differing if not _covers(dimension, name)]
            elif dimension.other is not None:
                others.append(_switch(dimension, setting.config, dimension.other(dimension.current(setting.config))))
    return Switches(tuple(restoring), tuple(others), tuple(differing))


def setting_switches(config: EngineConfig) -> Iterator[Switch]:
    """Every setting of a configuration that can be turned without a record to restore it from."""
    for dimension in _DIMENSIONS:
        if dimension.other is not None:
            yield _switch(dimension, config, dimension.other(dimension.current(config)))


def beside_others() -> Switch:
    return Switch("batch neighbours", "alone -> beside other requests", _beside_others, NEIGHBOURS_ISSUE)


def warm_cache() -> Switch:
    return Switch("warm prefix cache", "first asked -> asked before", _warm)


def without_grammar() -> Switch:
    return Switch("grammar", "applied -> ignored", lambda setting: replace(setting, has_grammar=False))


def recorded_prompt() -> Switch:
    return Switch("prompt", "as the log gives it -> as recorded", lambda setting: replace(setting, is_rebuilt=False))


def _beside_others(setting: Setting) -> Setting:
    return replace(setting, beside_others=True)


def _warm(setting: Setting) -> Setting:
    return replace(setting, is_warm=True, config=_with_feature("prefix_caching")(setting.config, True))


def _switch(dimension: _Dimension, config: EngineConfig, value: Any) -> Switch:
    def turn(setting: Setting) -> Setting:
        return replace(setting, config=dimension.change(setting.config, value))

    change = f"{_said(dimension.current(config))} -> {_said(value)}"
    return Switch(dimension.name, change, turn, dimension.issue)


def _said(value: Any) -> str:
    match value:
        case bool():
            return "on" if value else "off"
        case SpeculationConfig():
            return value.method
        case None:
            return "off"
        case _:
            return str(value)


def _covers(dimension: _Dimension, field: str) -> bool:
    return any(f"{field}.".startswith(f"{beginning}.") for beginning in dimension.fields)


def _changed(config: EngineConfig, **changes: Any) -> EngineConfig:
    """The configuration with other values, checked."""
    return EngineConfig.model_validate(config.model_dump() | changes)


def _with_feature(name: str) -> Callable[[EngineConfig, Any], EngineConfig]:
    def change(config: EngineConfig, value: Any) -> EngineConfig:
        return _changed(config, features=config.features.model_dump() | {name: value})

    return change


def _with_attention(config: EngineConfig, is_invariant: bool) -> EngineConfig:
    changes = {"invariant": is_invariant} | ({"split_kv": False} if is_invariant else {})
    return _changed(config, attention=config.attention.model_dump() | changes)


def _with_split_kv(config: EngineConfig, is_split: bool) -> EngineConfig:
    changes = {"split_kv": is_split} | ({"invariant": False} if is_split else {})
    return _changed(config, attention=config.attention.model_dump() | changes)


def _with_chunks(config: EngineConfig, chunk_tokens: int | None) -> EngineConfig:
    """None is whole prompts, whatever their length."""
    changed = _with_feature("chunked_prefill")(config, chunk_tokens is not None)
    return _changed(changed, max_num_batched_tokens=chunk_tokens)


def _recorded_chunks(identity: Mapping[str, Any]) -> Any:
    flags = identity.get("flags", {})
    return flags.get("max_num_batched_tokens") if flags.get("enable_chunked_prefill") else None


def _current_chunks(config: EngineConfig) -> int | None:
    return (config.max_num_batched_tokens or config.max_model_len) if config.features.chunked_prefill else None


def _with_sizes(config: EngineConfig, sizes: tuple[int, int, int, int]) -> EngineConfig:
    max_model_len, max_num_seqs, kv_cache_bytes, max_num_batched_tokens = sizes
    batched = {} if config.features.chunked_prefill else {"max_num_batched_tokens": max_num_batched_tokens}
    return _changed(
        config, max_model_len=max_model_len, max_num_seqs=max_num_seqs, kv_cache_gib=kv_cache_bytes / 2**30, **batched
    )


def _recorded_sizes(identity: Mapping[str, Any]) -> Any:
    flags = identity.get("flags", {})
    found = tuple(flags.get(name) for name in _SIZES)
    return UNKNOWN if None in found else found


def _current_sizes(config: EngineConfig) -> tuple[int, int, int, int]:
    batched = config.max_num_batched_tokens or config.max_model_len
    return config.max_model_len, config.max_num_seqs, int(config.kv_cache_gib * 2**30), batched


def _with_weights(config: EngineConfig, manifest_digest: str) -> EngineConfig:
    """The pinned directory of that digest; `_recorded_weights` found it."""
    model = _find_weights(manifest_digest)
    return _changed(config, model=model or config.model, revision=None, manifest_digest=None)


def _find_weights(manifest_digest: str) -> str | None:
    """Name of the pinned directory of this digest; one whose manifest cannot be read is none."""
    folder = engines.home() / "weights"
    for directory in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            if load_manifest(directory).digest == manifest_digest:
                return directory.name
        except WeightsError:
            continue
    return None


def _flag(name: str, default: Any) -> Callable[[Mapping[str, Any]], Any]:
    return lambda identity: identity.get("flags", {}).get(name, default)


def _recorded_attention(identity: Mapping[str, Any]) -> bool:
    return identity.get("plugin") is not None


def _recorded_split_kv(identity: Mapping[str, Any]) -> bool:
    return bool(identity.get("environment", {}).get("VLLM_CPU_ATTN_SPLIT_KV") == "1")


def _recorded_speculation(identity: Mapping[str, Any]) -> Any:
    stated = identity.get("flags", {}).get("speculative_config")
    return None if stated is None else SpeculationConfig.model_validate_json(stated)


def _recorded_weights(identity: Mapping[str, Any]) -> Any:
    digest = identity.get("weights", {}).get("manifest_digest")
    return UNKNOWN if digest is None or _find_weights(digest) is None else digest


def _current_weights(config: EngineConfig) -> Any:
    return load_manifest(engines.existing_weights(config.model)).digest


def _negation(value: Any) -> Any:
    return not value


def _speculate_or_not(value: Any) -> Any:
    return SPECULATION if value is None else None


_DIMENSIONS: tuple[_Dimension, ...] = (
    _Dimension(
        "invariant attention",
        ("plugin", "attention_backend", "environment.VLLM_PLUGINS"),
        _recorded_attention,
        lambda config: config.attention.invariant,
        _with_attention,
        _negation,
    ),
    _Dimension(
        "split KV",
        ("environment.VLLM_CPU_ATTN_SPLIT_KV",),
        _recorded_split_kv,
        lambda config: config.attention.split_kv,
        _with_split_kv,
        None,
    ),
    _Dimension(
        "weights",
        ("weights",),
        _recorded_weights,
        _current_weights,
        _with_weights,
        None,
    ),
    _Dimension(
        "threads",
        ("device.num_threads", "environment.OMP_NUM_THREADS"),
        lambda identity: identity.get("device", {}).get("num_threads", UNKNOWN),
        lambda config: config.num_threads,
        lambda config, value: _changed(config, num_threads=value),
        lambda value: 2 if value == 1 else 1,
    ),
    _Dimension(
        "chunked prefill",
        ("flags.enable_chunked_prefill", "flags.max_num_batched_tokens"),
        _recorded_chunks,
        _current_chunks,
        _with_chunks,
        lambda value: CHUNK_TOKENS if value is None else None,
    ),
    _Dimension(
        "prefix cache",
        ("flags.enable_prefix_caching",),
        _flag("enable_prefix_caching", False),
        lambda config: config.features.prefix_caching,
        _with_feature("prefix_caching"),
        _negation,
    ),
    _Dimension(
        "speculation",
        ("flags.speculative_config",),
        _recorded_speculation,
        lambda config: config.features.speculation,
        _with_feature("speculation"),
        _speculate_or_not,
        SPECULATION_ISSUE,
    ),
    _Dimension(
        "torch.compile",
        ("flags.enforce_eager", "environment.TORCHDYNAMO_DISABLE"),
        lambda identity: not identity.get("flags", {}).get("enforce_eager", True),
        lambda config: config.features.compile,
        _with_feature("compile"),
        None,
    ),
    _Dimension(
        "sizes",
        tuple(f"flags.{name}" for name in _SIZES),
        _recorded_sizes,
        _current_sizes,
        _with_sizes,
        None,
    ),
)
