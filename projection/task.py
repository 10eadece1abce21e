"""The task specification T: what is asked, which fields the view must fill, which outcomes and reasons exist.

A task is YAML (hence also JSON). Unknown keys, duplicate keys and aliases are errors with their line; nothing is
guessed.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from projection.anchors import compile_pattern
from projection.canonical import value_digest
from projection.errors import TaskError

FieldType = Literal["money", "percent", "date", "identifier", "integer", "text"]
ReasonRule = Literal["none", "optional", "required"]
MAX_TASK_BYTES = 262_144
MAX_TASK_DEPTH = 16
MAX_REASONS = 4  # Regulation B's comment 9(b)(2)-1: more than four reasons is not likely to help the applicant

_Line = Annotated[str, StringConstraints(min_length=1, max_length=400, pattern=r"^[^\x00-\x1f\x7f]+$")]
_Label = Annotated[str, StringConstraints(min_length=1, max_length=60, pattern=r"^[^\x00-\x1f\x7f:\[\]]+$")]
_Code = Annotated[str, StringConstraints(min_length=1, max_length=40, pattern=r"^[^\x00-\x1f\x7f:\[\]]+$")]
_Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
_EventType = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
_OutcomeName = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]{0,39}$")]


def _compilable(pattern: str) -> str:
    try:
        compile_pattern(pattern)
    except TaskError as exc:
        raise ValueError(exc.message) from exc
    return pattern


_Pattern = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_compilable)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TaskField(_Strict):
    """One slot of the view's FACTS. `description` is the slot's label, in the words the documents use.

    required: the decision's document and screen name it where the view gives it as unknown; no rule depends on it.
    """

    name: _Name
    type: FieldType
    description: _Label
    required: bool = True
    pattern: _Pattern | None = None


class Outcome(_Strict):
    """One decision of the closed list, and whether it must, may or cannot give reasons."""

    name: _OutcomeName
    reasons: ReasonRule = "optional"


class Reason(_Strict):
    """A principal reason that a decision may give."""

    code: _Code
    text: _Line


class Provision(_Strict):
    """A rule that a COMPLIANCE line may name."""

    id: _Code
    text: _Line


class Task(_Strict):
    """A task specification T.

    party_statements: the types of events that hold what a party says and prove nothing against a document. The policy
    says it to the model; this says it to the ranking of candidates.
    """

    question: Annotated[str, StringConstraints(min_length=1, max_length=2_000)]
    fields: Annotated[list[TaskField], Field(min_length=1, max_length=64)]
    outcomes: Annotated[list[Outcome], Field(min_length=1, max_length=32)]
    reasons: Annotated[list[Reason], Field(max_length=128)] = []
    provisions: Annotated[list[Provision], Field(max_length=128)] = []
    policy: Annotated[str, StringConstraints(max_length=20_000)] = ""
    party_statements: Annotated[list[_EventType], Field(max_length=128)] = []

    @model_validator(mode="before")
    @classmethod
    def _plain_outcomes(cls, data: Any) -> Any:
        """`outcomes: [PAY, DENY]` is short for mappings with a name."""
        if isinstance(data, dict) and isinstance(data.get("outcomes"), list):
            return {**data, "outcomes": [{"name": o} if isinstance(o, str) else o for o in data["outcomes"]]}
        return data

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        _refuse_repeats("fields", "name", [f.name for f in self.fields])
        _refuse_repeats("fields", "description", [f.description for f in self.fields])
        _refuse_repeats("outcomes", "name", [o.name for o in self.outcomes])
        _refuse_repeats("reasons", "code", [r.code for r in self.reasons])
        _refuse_repeats("provisions", "id", [p.id for p in self.provisions])
        _refuse_repeats("party_statements", "type", self.party_statements)
        for index, outcome in enumerate(self.outcomes):
            if outcome.reasons == "required" and not self.reasons:
                raise _misfit("the outcome requires reasons, but the task lists none", "outcomes", index, "reasons")
        return self

    @model_serializer(mode="wrap")
    def _leave_out_what_is_not_said(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without `party_statements` where there are none, so that a task from before it keeps its digest."""
        dumped: dict[str, Any] = serialize(self)
        return {key: value for key, value in dumped.items() if key != "party_statements" or value}

    @cached_property
    def digest(self) -> str:
        """Digest of T; equal tasks have equal digests however their YAML is laid out."""
        return value_digest("dpm/task/v1", self.model_dump(mode="json"))

    def outcome(self, name: str) -> Outcome | None:
        """The outcome of that name, or None."""
        return next((o for o in self.outcomes if o.name == name), None)


def parse_task(data: bytes | str, source: str = "task") -> Task:
    """Parse and validate a task file.

    Raises:
        TaskError: with `line` where it is known and every problem in the message.
    """
    text = _task_text(data, source)
    lines: dict[tuple[Hashable, ...], int] = {}
    try:
        is_json, value = _read_json(text)
        layout = text.replace("\t", " ") if is_json else text  # JSON may be indented with tabs, YAML may not
        _refuse_bombs(layout, source)
        node = yaml.compose(layout, Loader=yaml.SafeLoader)
        if node is None:
            raise TaskError(f"{source}: the task is empty; it needs question, fields and outcomes", line=1)
        _walk(node, (), lines, source)
        if not is_json:
            value = yaml.safe_load(text)
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else None
        raise TaskError(f"{source}, line {line}: not valid YAML: {exc.problem}", line=line) from exc
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise TaskError(f"{source}: not valid YAML: {exc}", line=None) from exc
    return load_task(value, source, lines)


def load_task(value: Any, source: str = "task", lines: dict[tuple[Hashable, ...], int] | None = None) -> Task:
    """Validate a task that is already a JSON value.

    Raises:
        TaskError: every problem, each with its place.
    """
    try:
        return Task.model_validate(value)
    except ValidationError as exc:
        problems = [
            _problem(error.get("ctx", {}).get("place", error["loc"]), _message(error), lines or {})
            for error in exc.errors()
        ]
        text = "\n".join(f"{source}{f', line {line}' if line else ''}: {message}" for line, message in problems)
        raise TaskError(text, line=problems[0][0]) from exc


def _task_text(data: bytes | str, source: str) -> str:
    if len(data) > MAX_TASK_BYTES:
        raise TaskError(f"{source}: {len(data)} bytes; a task has at most {MAX_TASK_BYTES}", line=None)
    if isinstance(data, str):
        return data
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise TaskError(f"{source}: not UTF-8 at byte {exc.start}", line=data[: exc.start].count(b"\n") + 1) from exc


def _read_json(text: str) -> tuple[bool, Any]:
    """Whether the text is a JSON object, and its value; YAML 1.1 reads most of JSON, but no tabs and no emoji."""
    if not text.lstrip().startswith("{"):
        return False, None
    try:
        return True, json.loads(text)
    except (ValueError, RecursionError):
        return False, None


def _refuse_bombs(text: str, source: str) -> None:
    """Aliases can make a small file huge and deep nesting makes it slow to read; a task has no use for either."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else None
        if isinstance(event, yaml.AliasEvent):
            raise TaskError(f"{source}, line {line}: YAML aliases are not allowed; write the value out", line=line)
        tag = getattr(event, "tag", None)
        if tag:
            raise TaskError(f"{source}, line {line}: YAML tags ({tag}) are not allowed; write a plain value", line=line)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_TASK_DEPTH:
            raise TaskError(f"{source}, line {line}: nested more than {MAX_TASK_DEPTH} deep", line=line)


def _walk(node: yaml.Node, path: tuple[Hashable, ...], lines: dict[tuple[Hashable, ...], int], source: str) -> None:
    """Note the line of every key and item; refuse keys that stand twice, and merges, which could hide some."""
    line = node.start_mark.line + 1
    lines.setdefault(path, line)
    if isinstance(node, yaml.MappingNode):
        for key, child in node.value:
            key_line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                raise TaskError(f"{source}, line {key_line}: a key must be a plain word", line=key_line)
            if (*path, key.value) in lines:
                raise TaskError(f"{source}, line {key_line}: key {key.value!r} stands twice", line=key_line)
            lines[(*path, key.value)] = key_line
            _walk(child, (*path, key.value), lines, source)
    elif isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            _walk(child, (*path, index), lines, source)


def _problem(
    loc: tuple[int | str, ...], message: str, lines: dict[tuple[Hashable, ...], int]
) -> tuple[int | None, str]:
    place = ".".join(str(part) for part in loc) or "task"
    known = next((lines[loc[:n]] for n in range(len(loc), -1, -1) if loc[:n] in lines), None)
    return known, f"{place}: {message.removeprefix('Value error, ')}"


def _message(error: ErrorDetails) -> str:
    is_word = isinstance(error["input"], bool) and error["type"] != "bool_type"
    hint = " (YAML reads YES, NO, ON and OFF as true and false: put quotes around the word)" if is_word else ""
    return error["msg"] + hint


def _refuse_repeats(section: str, key: str, names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise _misfit(f"{name!r} stands twice", section, index, key)


def _misfit(message: str, *place: int | str) -> PydanticCustomError:
    """A problem between the parts of a task, with the place of the part that should change."""
    return PydanticCustomError("misfit", "{message}", {"message": message, "place": place})
