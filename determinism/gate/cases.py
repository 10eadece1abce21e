"""The cases that a gate guards, and the file that lists them: `cases.yaml` in the folder of goldens.

    cases:
      - {name: mortgage, events: ../cases/mortgage.jsonl, task: ../cases/mortgage.yaml}
      - {name: claim, events: ../cases/claim.jsonl, task: ../cases/claim.yaml, budget_chars: 900}
      - {name: old-form, events: ../cases/old.jsonl, task: ../cases/old.yaml, skip: waits for the new form}

Paths start at the file's own folder. An unknown key, a name that stands twice, a file that cannot be read are errors;
nothing is skipped unless the file says so, with a reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from determinism.gate.golden import check_case_name
from projection.errors import NotFoundError, RequestError
from projection.events import LoggedEvent, numbered
from projection.ingest import MAX_BATCH_BYTES, parse_events
from projection.task import MAX_TASK_BYTES, Task, parse_task

CASES_NAME = "cases.yaml"
MAX_CASES_BYTES = 1 << 20
DEFAULT_BUDGET_CHARS = 1338  # as `dpm decide`

_Text = Annotated[str, StringConstraints(min_length=1, max_length=1_000)]


@dataclass(frozen=True, slots=True)
class GateCase:
    """One case: what goes in. skip: why it is not to be decided; None where it is."""

    name: str
    events: tuple[LoggedEvent, ...]
    task: Task
    budget_chars: int = DEFAULT_BUDGET_CHARS
    skip: str | None = None


class _Loader(yaml.SafeLoader):
    """YAML without what could hide something: aliases, and keys that stand twice."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed; write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key, _ in node.value:
            if keys.count(key.value) > 1:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} stands twice", problem_mark=key.start_mark)
        return super().construct_mapping(node, deep)


class _Listed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: _Text
    events: _Text
    task: _Text
    budget_chars: Annotated[int, Field(ge=1, le=10_000_000)] = DEFAULT_BUDGET_CHARS
    skip: _Text | None = None


class _CasesFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    cases: list[_Listed]


def read_cases(directory: Path) -> tuple[GateCase, ...]:
    """Every case that the folder's `cases.yaml` lists, in its order.

    Raises:
        NotFoundError: there is no such folder, list, events file or task file. RequestError: one of them is wrong.
    """
    path = directory / CASES_NAME
    listed = _read_list(path)
    names = [case.name for case in listed]
    for name in names:
        check_case_name(name)
        if names.count(name) > 1:
            raise RequestError(f"{path}: case {name!r} stands twice", file=str(path), case=name)
    return tuple(
        read_case(case.name, directory / case.events, directory / case.task, case.budget_chars, case.skip)
        for case in listed
    )


def read_case(
    name: str, events: Path, task: Path, budget_chars: int = DEFAULT_BUDGET_CHARS, skip: str | None = None
) -> GateCase:
    """Read one case from its two files; raises as `read_cases`."""
    check_case_name(name)
    for path in (events, task):
        if "\0" in str(path):
            raise RequestError(f"case {name!r}: {str(path)!r} is no path: it holds a NUL character", case=name)
    parsed = parse_events(_read_bytes(events, MAX_BATCH_BYTES), source_name=str(events))
    logged = numbered(parsed.events)
    if not logged:
        raise RequestError(f"{events}: case {name!r} has no events", file=str(events), case=name)
    return GateCase(name, logged, parse_task(_read_bytes(task, MAX_TASK_BYTES), str(task)), budget_chars, skip)


def _read_list(path: Path) -> list[_Listed]:
    text = _read_bytes(path, MAX_CASES_BYTES)
    try:
        return _CasesFile.model_validate(yaml.load(text, Loader=_Loader)).cases
    except ValidationError as exc:
        problem = exc.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, problem["loc"])) or "the file"
        raise RequestError(f"{path}: {place}: {problem['msg']}", file=str(path)) from exc
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise RequestError(f"{path}: cannot be read as YAML: {exc}", file=str(path)) from exc


def _read_bytes(path: Path, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError as exc:
        hint = ". It lists the cases: see docs/gate.md" if path.name == CASES_NAME else ""
        raise NotFoundError(f"{path}: no such file{hint}", file=str(path)) from exc
    except OSError as exc:
        raise RequestError(f"{path} cannot be read: {exc.strerror}", file=str(path)) from exc
    if len(data) > max_bytes:
        raise RequestError(f"{path} has over {max_bytes} bytes, which is the limit", file=str(path))
    return data
