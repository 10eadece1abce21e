"""The folder of goldens: one file for each case and engine identity, and the log of who approved them.

    goldens/cases.yaml                          the cases, written by the user (see `gate.cases`)
    goldens/CASE/ENGINE_IDENTITY.json           one golden
    goldens/approvals.jsonl                     one line for each golden that was written, changed or removed

Promises: `approve` is the only thing that writes here. It adds to the approvals log first, then replaces each golden
whole and durably: a kill leaves no half file under a golden's name, and at most goldens that are not yet the approved
ones. A golden that the log's last line for it does not name (edited, copied, interrupted) is a fault, as is one that
cannot be read or is gone. Every key that comes from here names a case that there can be, so it can be printed, and be
part of a path. One writer at a time. Whoever can rewrite both golden and log can forge both: review them as code.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from determinism.gate.golden import CASE_NAME, MAX_GOLDEN_BYTES, CaseName, Digest, Golden, GoldenKey, parse_golden
from projection.canonical import canonical_bytes
from projection.errors import NotFoundError, RequestError, StorageError, VerificationError

APPROVALS_NAME = "approvals.jsonl"
GOLDEN_NAME = re.compile(r"[0-9a-f]{64}")
MAX_REASON_CHARS = 2_000
MAX_BY_CHARS = 256


class Approval(BaseModel):
    """One line of the approvals log. old_digest: None for a new golden; new_digest: None for one that was removed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    v: Literal[1] = 1
    case: CaseName
    engine_identity: Digest
    old_digest: Digest | None
    new_digest: Digest | None
    reason: Annotated[str, Field(min_length=1, max_length=MAX_REASON_CHARS)]
    by: Annotated[str, Field(min_length=1, max_length=MAX_BY_CHARS)]
    at: str

    @property
    def key(self) -> GoldenKey:
        return GoldenKey(self.case, self.engine_identity)


@dataclass(frozen=True, slots=True)
class Goldens:
    """What a folder holds: goldens that are whole and approved, and what is wrong with the others."""

    approved: Mapping[GoldenKey, Golden]
    faults: Mapping[GoldenKey, str]

    def of_case(self, name: str) -> list[Golden]:
        """Its goldens on every engine."""
        return [golden for key, golden in sorted(self.approved.items()) if key.case == name]

    def faults_of(self, name: str) -> list[str]:
        return [fault for key, fault in sorted(self.faults.items()) if key.case == name]

    @property
    def case_names(self) -> list[str]:
        """Every case that has a golden, or a fault where one should be."""
        return sorted({key.case for key in (*self.approved, *self.faults)})


def golden_path(directory: Path, key: GoldenKey) -> Path:
    """Where a golden lies."""
    return directory / key.case / f"{key.engine_identity}.json"


def read_goldens(directory: Path) -> Goldens:
    """Read every golden of the folder, and hold each against the approvals log.

    Raises:
        NotFoundError: no such folder.
        StorageError: it cannot be read; or the approvals log is damaged, so nothing is proved; or a folder of goldens
            has a name that no case can have.
    """
    if not directory.is_dir():
        raise NotFoundError(f"{directory}: no such folder of goldens", path=str(directory))
    last = {approval.key: approval.new_digest for approval in read_approvals(directory)}
    live = {key: digest for key, digest in last.items() if digest is not None}
    approved: dict[GoldenKey, Golden] = {}
    faults: dict[GoldenKey, str] = {}
    with _storage_errors(directory):
        files = [path for path in sorted(directory.glob("*/*.json")) if GOLDEN_NAME.fullmatch(path.stem)]
        found = {GoldenKey(_case_of(path), path.stem): path for path in files}
        for key, path in found.items():
            try:
                approved[key] = _read_approved(path, key, live.get(key))
            except VerificationError as exc:
                faults[key] = f"{path}: {exc.message}"
    for key in live.keys() - found.keys():
        faults[key] = f"{golden_path(directory, key)} was approved and is gone: put it back, or approve the case again"
    return Goldens(approved, faults)


def _case_of(path: Path) -> str:
    """The name of the folder that a golden lies in; what is on the disk is not trusted."""
    name = path.parent.name
    if CASE_NAME.fullmatch(name) is None:
        raise StorageError(
            f"{str(path)!r}: no case can be called {name!r}, so nobody approved this golden: remove its folder",
            path=str(path),
        )
    return name


def _read_approved(path: Path, key: GoldenKey, approved_digest: str | None) -> Golden:
    golden = parse_golden(_read_bytes(path))
    if golden.key != key:
        raise VerificationError(
            f"it is the golden of case {golden.case!r} on engine {golden.engine_identity}: it was renamed or moved"
        )
    if golden.digest != approved_digest:
        was = f"approved was {approved_digest}" if approved_digest else "nobody approved it"
        raise VerificationError(
            f"its digest is {golden.digest}, and {was}: it was changed by hand, or an approval was interrupted. "
            "Approve the case again, or put the approved file back"
        )
    return golden


def _read_bytes(path: Path) -> bytes:
    """The bytes of a golden's file; a device, a pipe or a link to one would never end."""
    try:
        if not path.is_file():
            raise VerificationError("it is no file: put the approved golden back")
        with path.open("rb") as file:
            data = file.read(MAX_GOLDEN_BYTES + 1)
    except OSError as exc:
        raise VerificationError(f"it cannot be read: {exc.strerror}") from exc
    if len(data) > MAX_GOLDEN_BYTES:
        raise VerificationError(f"it has over {MAX_GOLDEN_BYTES} bytes: it is no golden")
    return data


def read_approvals(directory: Path) -> tuple[Approval, ...]:
    """The approvals log, oldest line first; empty where there is none.

    Raises:
        StorageError: it cannot be read, or a line is no approval.
    """
    path = directory / APPROVALS_NAME
    with _storage_errors(path):
        if os.path.lexists(path) and not path.is_file():
            raise StorageError(f"{path} is no file: put the approvals log back as it was", file=str(path))
        lines = path.read_bytes().splitlines() if path.exists() else []
    approvals = []
    for number, line in enumerate(lines, start=1):
        try:
            approvals.append(Approval.model_validate_json(line))
        except ValidationError as exc:
            problem = exc.errors(include_url=False, include_input=False)[0]["msg"]
            raise StorageError(
                f"{path}, line {number}: no approval of format 1 ({problem}). Lines are only ever added: put the log "
                "back as it was",
                file=str(path),
                line=number,
            ) from exc
    return tuple(approvals)


def approve(
    directory: Path, observed: Sequence[Golden], *, reason: str, by: str, now: str, remove: Sequence[GoldenKey] = ()
) -> tuple[Approval, ...]:
    """Make these the goldens of their cases on their engine, and remove others; returns what was recorded.

    What is approved already, bit for bit, is neither written nor recorded. now: the current time, RFC 3339.

    Raises:
        RequestError: as `check_approver`; or one case with two goldens.
        StorageError: the approvals log is damaged, or the folder cannot be written.
    """
    check_approver(reason, by)
    wanted = {golden.key: golden for golden in observed}
    if len(wanted) != len({golden.digest for golden in observed}):
        raise RequestError("one case was observed with different answers: nothing was approved. It drifts")
    with _sole_writer(directory):
        last = {approval.key: approval.new_digest for approval in read_approvals(directory)}
        changes: dict[GoldenKey, str | None] = {
            key: golden.digest
            for key, golden in wanted.items()
            if last.get(key) != golden.digest or not _holds(golden_path(directory, key), golden)
        }
        changes.update(dict.fromkeys(remove))
        approvals = tuple(
            Approval(
                case=key.case, engine_identity=key.engine_identity, old_digest=last.get(key), new_digest=new_digest,
                reason=reason.strip(), by=by.strip(), at=now,
            )
            for key, new_digest in changes.items()
        )  # fmt: skip
        _record(directory / APPROVALS_NAME, approvals)
        for key, new_digest in changes.items():
            _write(golden_path(directory, key), wanted[key] if new_digest else None)
    return approvals


def check_approver(reason: str, by: str) -> None:
    """Refuse an approval that would say nothing.

    Raises:
        RequestError: the reason or the name is empty, too long, or no text.
    """
    for what, text, max_chars in (("reason", reason, MAX_REASON_CHARS), ("name", by, MAX_BY_CHARS)):
        if not 0 < len(text.strip()) <= max_chars:
            raise RequestError(f"an approval needs a {what} of 1 to {max_chars} characters, and gets {len(text)}")
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            raise RequestError(f"the {what} of an approval is not UTF-8: {text!r}") from exc


def _record(path: Path, approvals: Sequence[Approval]) -> None:
    """Add lines to the log; those that are there stay byte for byte."""
    if approvals:
        old = path.read_bytes() if path.exists() else b""
        whole = old if old.endswith(b"\n") or not old else old + b"\n"
        _replace(path, whole + b"".join(canonical_bytes(entry.model_dump(mode="json")) + b"\n" for entry in approvals))


def _write(path: Path, golden: Golden | None) -> None:
    if golden is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(exist_ok=True)
    _replace(path, golden.to_bytes())


def _holds(path: Path, golden: Golden) -> bool:
    return path.is_file() and path.read_bytes() == golden.to_bytes()


@contextmanager
def _sole_writer(directory: Path) -> Iterator[None]:
    """Wait for the folder's lock, which a process that is killed gives back."""
    with _storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _replace(path: Path, data: bytes) -> None:
    """Write a file durably: either all of it is there under its name, or what was there before."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as sink:
            sink.write(data)
            sink.flush()
            os.fsync(sink.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise StorageError(f"{path} cannot be used: {exc.strerror}", path=str(path)) from exc
