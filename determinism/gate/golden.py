"""A golden: what one case said on one engine when somebody approved it, and what it must say again.

Owns the value and its bytes. One file holds one golden: canonical JSON (RFC 8785) and a line feed, with a digest over
all of it, so that a file that was cut, edited or renamed is found. Log-probabilities and margins are hexadecimal, to
the bit. The engine's whole identity is kept, so that another engine can be told by the fields in which it differs; of
events and task only digests are kept, one for each event and each part of the task, so that the one that changed can
be named. (The prompt's token ids are kept too, and whoever has the tokenizer can read the case from them.)

Does not decide, compare or touch the disk: see `gate.run` and `gate.store`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from determinism.surface import Surface
from projection.canonical import canonical_bytes, value_digest
from projection.engine import EngineIdentity
from projection.errors import RequestError, VerificationError
from projection.events import LoggedEvent, events_digest
from projection.projector import Call
from projection.record import template_digest, view_digest
from projection.task import Task
from projection.view_grammar import Profile

GOLDEN_FORMAT: Final = "dpm/golden/v1"
MAX_GOLDEN_BYTES = 64 << 20
CASE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
CaseName = Annotated[str, Field(pattern=f"^{CASE_NAME.pattern}$")]
CallName = Literal["projection", "decision"]


class GoldenKey(NamedTuple):
    """What there is one golden of."""

    case: str
    engine_identity: str


class _Value(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Inputs(_Value):
    """All that goes into a case's prompts and grammars, by digest.

    events: (num_events,), by position. task: by key of the specification. template: the words that are the project's.
    """

    events: tuple[Digest, ...]
    task: dict[str, Digest]
    budget_chars: int
    slot_candidates: int | None
    template: Digest

    @classmethod
    def of(cls, events: Sequence[LoggedEvent], task: Task, budget_chars: int, profile: Profile) -> Self:
        return cls(
            events=tuple(events_digest([event]) for event in events),
            task={key: value_digest("dpm/task-part/v1", value) for key, value in task.model_dump(mode="json").items()},
            budget_chars=budget_chars,
            slot_candidates=profile.slot_candidates,
            template=template_digest(),
        )


class Question(_Value):
    """What one model call was asked."""

    prompt_token_ids: tuple[int, ...]
    grammar_digest: Digest
    max_tokens: int


class GoldenCall(_Value):
    """One model call: what went in, and every bit that came out."""

    asked: Question
    answer: Surface

    @classmethod
    def of(cls, call: Call) -> Self:
        asked = Question(
            prompt_token_ids=call.prompt_token_ids, grammar_digest=call.grammar.digest, max_tokens=call.max_tokens
        )
        return cls(asked=asked, answer=Surface.of(call.completion))


class Golden(_Value):
    """What a case must say again; `digest` is over everything else."""

    format: Literal["dpm/golden/v1"] = GOLDEN_FORMAT
    case: CaseName
    engine_identity: Digest
    engine: dict[str, Any]
    inputs: Inputs
    projection: GoldenCall
    view_digest: Digest
    decision: GoldenCall
    decision_digest: Digest
    digest: Digest

    @classmethod
    def build(
        cls, case: str, identity: EngineIdentity, inputs: Inputs, projection: GoldenCall, decision: GoldenCall
    ) -> Self:
        """The golden of a case that was just decided.

        Raises:
            RequestError: the name of the case cannot name a folder.
        """
        check_case_name(case)
        content: dict[str, Any] = {
            "format": GOLDEN_FORMAT,
            "case": case,
            "engine_identity": identity.digest,
            "engine": dict(identity.fields),
            "inputs": inputs.model_dump(mode="json"),
            "projection": projection.model_dump(mode="json"),
            "view_digest": view_digest(projection.answer.text),
            "decision": decision.model_dump(mode="json"),
            "decision_digest": _decision_digest(decision),
        }
        return cls.model_validate_json(canonical_bytes({**content, "digest": value_digest(GOLDEN_FORMAT, content)}))

    @model_validator(mode="after")
    def _digests_hold(self) -> Self:
        found = {
            "engine_identity": EngineIdentity(self.engine).digest,
            "view_digest": view_digest(self.projection.answer.text),
            "decision_digest": _decision_digest(self.decision),
            "digest": value_digest(GOLDEN_FORMAT, self.model_dump(mode="json", exclude={"digest"})),
        }
        for name, digest in found.items():
            if getattr(self, name) != digest:
                raise ValueError(f"its {name} is {getattr(self, name)}, and its content gives {digest}")
        return self

    @property
    def key(self) -> GoldenKey:
        return GoldenKey(self.case, self.engine_identity)

    @property
    def calls(self) -> dict[CallName, GoldenCall]:
        return {"projection": self.projection, "decision": self.decision}

    def to_bytes(self) -> bytes:
        """The bytes of the golden's file."""
        return canonical_bytes(self.model_dump(mode="json")) + b"\n"


def parse_golden(data: bytes) -> Golden:
    """Read a golden's file; its bytes are not trusted.

    Raises:
        VerificationError: it is no golden of this format, not in canonical form, or was changed.
    """
    try:
        golden = Golden.model_validate_json(data)
        is_canonical = golden.to_bytes().rstrip() == data.rstrip()  # a line's end may be changed on the way
    except ValidationError as exc:
        problem = exc.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, problem["loc"])) or "golden"
        raise VerificationError(f"{place}: {problem['msg'].removeprefix('Value error, ')}") from exc
    except RequestError as exc:
        raise VerificationError(exc.message) from exc
    if not is_canonical:
        raise VerificationError("it is not in canonical form: it was edited by hand")
    return golden


def check_case_name(name: str) -> None:
    """Refuse a name that could not be a folder of its own everywhere.

    Raises:
        RequestError: with the rule.
    """
    if CASE_NAME.fullmatch(name) is None:
        raise RequestError(
            f"a case cannot be called {name!r}: use up to 100 letters, digits, dots, dashes and underscores, the first "
            "a letter or a digit",
            case=name,
        )


def _decision_digest(decision: GoldenCall) -> str:
    return value_digest("dpm/decision-text/v1", decision.answer.text)
