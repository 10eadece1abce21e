"""Engine configuration: one YAML file per device class, checked before anything heavy is loaded.

Promises that every key is known, stands once, and has a value of its type and range; an error names file, line and
key. Does not read the environment and does not know where weights lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from projection.errors import ConfigurationError

PositiveInt = Annotated[int, Field(ge=1, strict=True)]
StrictBool = Annotated[bool, Field(strict=True)]

PROBLEMS = {
    "extra_forbidden": "unknown key {key!r}; remove it or correct its spelling",
    "missing": "missing key {key!r}",
    "model_type": "expected keys and values{where}",
}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AttentionConfig(_Section):
    """How attention is computed on a CPU.

    invariant: load our plugin, so that a request's bits do not depend on its neighbours.
    split_kv: let several threads share one long context; refused together with `invariant`.
    """

    invariant: StrictBool
    split_kv: StrictBool

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


class EngineConfig(_Section):
    """Everything about an engine that a person chooses.

    max_model_len: prompt and completion tokens together.
    max_num_seqs: requests in one step.
    """

    model: Annotated[str, Field(min_length=1)]
    dtype: Literal["float32"]
    max_model_len: PositiveInt
    max_num_seqs: PositiveInt
    num_threads: PositiveInt
    kv_cache_gib: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
    seed: Annotated[int, Field(ge=0, lt=2**32, strict=True)]
    attention: AttentionConfig
    projection: ProjectionConfig


def load_config(path: Path) -> EngineConfig:
    """Read and check a configuration file.

    Raises:
        ConfigurationError: no such file, not YAML, an unknown, missing or repeated key, or a value of the wrong type
            or range.
    """
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        value = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise ConfigurationError(f"{path}: cannot be read as YAML: {exc}", file=str(path)) from exc
    for line, key in _repeated_keys(root):
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
