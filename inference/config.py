"""Engine configuration: one YAML file per device class, checked before anything heavy is loaded.

Promises that every key is known, stands once, and has a value of its type and range; an error names file, line and
key. Does not read the environment, does not know where weights lie, and does not judge whether what is asked for is
deterministic: that is the checker's work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from projection.errors import ConfigurationError

PositiveInt = Annotated[int, Field(ge=1, strict=True)]
StrictBool = Annotated[bool, Field(strict=True)]
Name = Annotated[str, Field(min_length=1, strict=True)]
VariableName = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]
FlagName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)*$")]
FlagValue = StrictBool | Annotated[int, Field(strict=True)] | Annotated[float, Field(strict=True)] | Name

PROBLEMS = {
    "extra_forbidden": "unknown key {key!r}; remove it or correct its spelling",
    "missing": "missing key {key!r}",
    "model_type": "expected keys and values{where}",
}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AttentionConfig(_Section):
    """How attention is computed.

    invariant: a request's bits must not depend on its neighbours. On a CPU this loads our plugin; on a GPU it is
        vLLM's own mode, which `environment` switches on.
    split_kv: let several threads share one long context; refused together with `invariant`.
    backend: vLLM's name of the attention back end; None is the only one there is (CPU) or vLLM's own choice.
    flash_attn_version: of the FLASH_ATTN back end; None is vLLM's choice for the device.
    """

    invariant: StrictBool
    split_kv: StrictBool
    backend: Name | None = None
    flash_attn_version: PositiveInt | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.invariant and self.split_kv:
            raise ValueError("invariant attention needs split_kv: false")
        return self


class ProjectionConfig(_Section):
    """What the projection is given: part of the profile and of every record.

    slot_candidates: anchors offered per field; None offers all of them.
    """

    slot_candidates: PositiveInt | None


class SpeculationConfig(_Section):
    """Tokens guessed ahead and then verified.

    method: vLLM's name; `ngram` looks the next tokens up in the prompt.
    prompt_lookup_min, prompt_lookup_max: length of the words that `ngram` looks up, in tokens.
    """

    method: Name
    num_speculative_tokens: PositiveInt
    prompt_lookup_min: PositiveInt | None = None
    prompt_lookup_max: PositiveInt | None = None


class RopeConfig(_Section):
    """Rotary positions in place of the model's own, for contexts longer than it was trained for.

    Every bit of every answer depends on it, that of a short one too. Words are those of the model's `config.json`.
    factor: how far the positions are stretched; `max_model_len` can be `factor` times the positions of the training.
    """

    rope_type: Literal["yarn"]
    rope_theta: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    factor: Annotated[float, Field(gt=1, allow_inf_nan=False)]
    original_max_position_embeddings: PositiveInt


class FeaturesConfig(_Section):
    """What vLLM does for speed; each is off unless it is switched on.

    compile: torch.compile, and CUDA graphs on a GPU; off is vLLM's eager mode.
    """

    prefix_caching: StrictBool = False
    chunked_prefill: StrictBool = False
    compile: StrictBool = False
    speculation: SpeculationConfig | None = None


class EngineConfig(_Section):
    """Everything about an engine that a person chooses.

    status: whether all that the file asks for was shown to be deterministic by tests on such a device.
    revision, manifest_digest: which weights `model` must name: the commit of the hub's repository that they were
        pulled from, or the digest of their manifest. None: whatever is pinned under that name.
    max_model_len: prompt and completion tokens together.
    max_num_seqs: requests in one step.
    max_num_batched_tokens: tokens in one step; None is `max_model_len`.
    gpu_memory_utilization: share of the GPU's memory that must be free at the start; None is vLLM's default. The KV
        cache has `kv_cache_gib`, whatever this says.
    environment: variables of the server's process.
    vllm_arguments: further flags of vLLM's server, without the leading dashes; true is the bare flag.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    status: Literal["proved", "to be proved on the device"] = "to be proved on the device"
    model: Annotated[str, Field(min_length=1)]
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None
    manifest_digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    dtype: Literal["float32", "bfloat16", "float16"]
    quantization: Name | None = None
    kv_cache_dtype: Name = "auto"
    generation_config: Name = "vllm"
    max_model_len: PositiveInt
    rope_parameters: RopeConfig | None = None
    max_num_seqs: PositiveInt
    max_num_batched_tokens: PositiveInt | None = None
    num_threads: PositiveInt
    tensor_parallel_size: PositiveInt = 1
    kv_cache_gib: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1, strict=True)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32, strict=True)]
    attention: AttentionConfig
    features: FeaturesConfig = FeaturesConfig()
    environment: dict[VariableName, Annotated[str, Field(strict=True)]] = {}
    vllm_arguments: dict[FlagName, FlagValue] = {}
    projection: ProjectionConfig

    @field_validator("dtype")
    @classmethod
    def _suits_the_device(cls, dtype: str, known: ValidationInfo) -> str:
        if known.data.get("device") == "cpu" and dtype != "float32":
            raise ValueError("a CPU needs float32: it is the only type whose matrix products are invariant there")
        return dtype


def load_config(path: Path) -> EngineConfig:
    """Read and check a configuration file.

    Raises:
        ConfigurationError: no such file, not YAML, an unknown, missing or repeated key, or a value of the wrong type
            or range.
    """
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        repeated = list(_repeated_keys(root))
        value = yaml.safe_load(text)
    except (OSError, yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as exc:
        raise ConfigurationError(f"{path}: cannot be read as YAML: {exc}", file=str(path)) from exc
    for line, key in repeated:
        raise ConfigurationError(f"{path}:{line}: key {key!r} stands twice", file=str(path), line=line, key=key)
    try:
        return EngineConfig.model_validate(value)
    except ValidationError as exc:
        raise _first_problem(path, root, exc) from exc


def _repeated_keys(node: yaml.Node | None) -> Iterator[tuple[int, str]]:
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[str] = set()
    for key, value in node.value:
        if key.value in seen:
            yield key.start_mark.line + 1, key.value
        seen.add(str(key.value))
        yield from _repeated_keys(value)


def _first_problem(path: Path, root: yaml.Node | None, error: ValidationError) -> ConfigurationError:
    problem = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")  # a typo is also a missing key
    keys = [str(part) for part in problem["loc"]]
    key, line = ".".join(keys), _line_of(root, keys)
    template = PROBLEMS.get(problem["type"], "{key!r}: {message}")
    what = template.format(key=key, message=problem["msg"], where=f" under {key!r}" if key else "")
    return ConfigurationError(f"{path}:{line}: {what}", file=str(path), line=line, key=key)


def _line_of(node: yaml.Node | None, keys: Sequence[str]) -> int:
    """1-based line of the innermost of `keys` that stands in the file."""
    line = 1 if node is None else node.start_mark.line + 1
    for wanted in keys:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        found = next(((key, value) for key, value in pairs if key.value == wanted), None)
        if found is None:
            break
        line, node = found[0].start_mark.line + 1, found[1]
    return int(line)
