"""Data sets on disk: DIR/manifest.json and DIR/CASE_ID/{events.jsonl, task.yaml, truth.json}.

A data set appears whole or not at all: it is written beside its place and renamed into it. A directory that holds
anything is refused. `verify_case` proves a case again from its three files; `read_dataset` holds every file to its
digest.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from benchmarks.longhorizon.case import (
    Case,
    CaseError,
    DomainName,
    ObligationError,
    Size,
    Truth,
    Variant,
    events_bytes,
    parse_case_events,
    parse_truth,
    truth_bytes,
)
from benchmarks.longhorizon.proofs import prove
from projection.canonical import sha256_hex
from projection.task import parse_task

MANIFEST_SCHEMA = "dpm/longhorizon-manifest/v1"
MANIFEST = "manifest.json"
FILES = ("events.jsonl", "task.yaml", "truth.json")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a data set is and the SHA-256 of each of its files. chars: asked for of a long trajectory, else null."""

    schema: str
    seed: int
    domain: DomainName
    size: Size
    variant: Variant
    chars: int | None
    count: int
    files: dict[str, str]


def case_files(case: Case) -> dict[str, bytes]:
    """The three files of a case."""
    contents = (events_bytes(case.events, case.case_id), case.task_text.encode(), truth_bytes(case.truth))
    return dict(zip(FILES, contents, strict=True))


def write_dataset(directory: Path, cases: Iterable[Case], chars: int | None = None) -> Manifest:
    """Write the cases of one domain, size and variant, and their manifest.

    Raises:
        CaseError: the directory holds something, cannot be written, or there are no cases.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise CaseError(f"{directory} is not empty: name a new directory, or remove it first", path=str(directory))
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as name:
            partial = Path(name) / "dataset"
            manifest = _write(partial, cases, chars)
            partial.rename(directory)
    except OSError as exc:
        raise CaseError(f"{directory} cannot be written: {exc.strerror}", path=str(directory)) from exc
    return manifest


def read_case(directory: Path) -> Case:
    """A case from its three files, not proved again.

    Raises:
        CaseError: a file is missing or is not what `write_dataset` writes. EventError, TaskError: with the line.
    """
    events_data, task_data, truth_data = (_read(directory / name) for name in FILES)
    truth = parse_truth(truth_data, str(directory / "truth.json"))
    events = parse_case_events(events_data, str(directory / "events.jsonl"))
    if events_bytes(events, truth.case_id) != events_data:
        raise CaseError(f"{directory / 'events.jsonl'} is not laid out as it was written", path=str(directory))
    task = parse_task(task_data, str(directory / "task.yaml"))
    return Case(truth.case_id, events, task, task_data.decode("utf-8-sig"), truth)


def verify_case(directory: Path) -> Case:
    """Prove a case again from its files alone.

    Raises:
        ObligationError: names the obligation that is broken. CaseError, EventError, TaskError: as `read_case`.
    """
    case = read_case(directory)
    proofs = prove(case)
    if proofs != case.truth.proofs:
        raise ObligationError(
            f"{case.case_id}: the proofs counted {proofs}, the truth says {case.truth.proofs}",
            obligation="proofs",
            case_id=case.case_id,
        )
    return case


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a data set.

    Raises:
        CaseError: there is none, or not of this schema.
    """
    path = directory / MANIFEST
    data = _read(path)
    try:
        manifest = TypeAdapter(Manifest).validate_json(data, strict=True)
    except ValidationError as exc:
        first = exc.errors()[0]
        problem = ": ".join([*map(str, first["loc"]), first["msg"]])
        raise CaseError(f"{path} is not a manifest of this version ({problem})", path=str(path)) from exc
    if manifest.schema != MANIFEST_SCHEMA:
        raise CaseError(f"{path} has schema {manifest.schema!r}; this version reads {MANIFEST_SCHEMA!r}")
    return manifest


def read_dataset(directory: Path) -> tuple[Case, ...]:
    """The cases of a data set in order, every file held to its digest.

    Raises:
        CaseError: a file is missing, added or changed. EventError, TaskError: with the line.
    """
    manifest = read_manifest(directory)
    found = {path.relative_to(directory).as_posix() for path in directory.glob("*/*")}
    if found != set(manifest.files):
        names = ", ".join(sorted(found ^ set(manifest.files)))
        raise CaseError(f"{directory} and its manifest differ in: {names}; generate it again", path=str(directory))
    for name, digest in manifest.files.items():
        if sha256_hex(_read(directory / name)) != digest:
            raise CaseError(f"{directory / name} was changed since it was generated", path=str(directory / name))
    return tuple(read_case(directory / name) for name in dict.fromkeys(name.split("/")[0] for name in manifest.files))


def _write(partial: Path, cases: Iterable[Case], chars: int | None) -> Manifest:
    digests: dict[str, str] = {}
    truths: list[Truth] = []
    for case in cases:
        (partial / case.case_id).mkdir(parents=True)
        for name, data in case_files(case).items():
            (partial / case.case_id / name).write_bytes(data)
            digests[f"{case.case_id}/{name}"] = sha256_hex(data)
        truths.append(case.truth)
    if not truths:
        raise CaseError("there are no cases to write")
    first = truths[0]
    manifest = Manifest(
        MANIFEST_SCHEMA, first.seed, first.domain, first.size, first.variant, chars, len(truths), digests
    )
    (partial / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1) + "\n", encoding="utf-8")
    return manifest


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise CaseError(f"{path} cannot be read: {exc.strerror}", path=str(path)) from exc
