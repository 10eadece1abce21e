"""The manifest of a pinned model directory: every file's size and digests, under one digest of their own.

Owns the format of `dpm-manifest.json`, reading and writing it, and hashing a directory's files. Promises that a
manifest that was read is well formed, canonical and consistent with its own digest, and that a scan sees every file of
the directory and nothing outside it. Does not compare the two: see `weights`.

The file is the RFC 8785 form of {"digest", "files", "format", "source"}; `digest` is the SHA-256 of the domain tag
`dpm/weights-manifest/v1`, a zero byte and the RFC 8785 form of `files`, which is sorted by name (Unicode code points).
`source` says where the bytes came from and is not part of the digest.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import xxhash
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from projection.canonical import MAX_SAFE_INTEGER, canonical_bytes, value_digest
from projection.errors import RequestError, WeightsError

MANIFEST_NAME = "dpm-manifest.json"
MANIFEST_TAG = "dpm/weights-manifest/v1"
MAX_MANIFEST_BYTES = 8 << 20
CHUNK_BYTES = 1 << 20

DigestName = Literal["sha256", "xxh3_128"]


def _require_plain_name(name: str) -> str:
    """A relative path with forward slashes, in its shortest form, that stays inside the directory."""
    parts = name.split("/")
    if not name or name == MANIFEST_NAME or "\\" in name or "\0" in name or {"", ".", ".."} & set(parts):
        raise ValueError(f"{name!r} does not name a file inside the directory")
    return name


class PinnedFile(BaseModel):
    """One file: its name relative to the directory, its size and its two digests."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Annotated[str, AfterValidator(_require_plain_name)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=0, le=MAX_SAFE_INTEGER)]
    xxh3_128: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class Manifest(BaseModel):
    """Every file of a pinned directory but the manifest itself, sorted by name."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal["dpm/weights-manifest/v1"] = "dpm/weights-manifest/v1"
    source: str
    files: tuple[PinnedFile, ...]

    @property
    def digest(self) -> str:
        """64 hex digits over the files: equal digests promise equal directories, wherever they came from."""
        return value_digest(MANIFEST_TAG, [file.model_dump() for file in self.files])

    def to_bytes(self) -> bytes:
        """The canonical bytes of `dpm-manifest.json`."""
        return canonical_bytes({**self.model_dump(mode="json"), "digest": self.digest})


class _ManifestFile(Manifest):
    digest_stated: Annotated[str, Field(alias="digest", pattern=r"^[0-9a-f]{64}$")]


def load_manifest(directory: Path) -> Manifest:
    """Read the directory's manifest, without looking at the files it lists.

    Raises:
        WeightsError: there is none, or it is not a canonical manifest whose digest holds.
    """
    path = directory / MANIFEST_NAME
    data = _read_manifest_bytes(path)
    try:
        stated = _ManifestFile.model_validate_json(data)
    except ValidationError as exc:
        raise WeightsError(f"{path} is not a manifest: {exc}", path=str(path)) from exc
    manifest = Manifest(source=stated.source, files=stated.files)
    if manifest.digest != stated.digest_stated:
        raise WeightsError(
            f"{path} does not match its own digest: it states {stated.digest_stated}, its files give {manifest.digest}",
            path=str(path),
            expected=stated.digest_stated,
            found=manifest.digest,
        )
    names = [file.name for file in manifest.files]
    if names != sorted(set(names)) or data != manifest.to_bytes():
        raise WeightsError(f"{path} is not in canonical form: it was edited by hand", path=str(path))
    return manifest


def _read_manifest_bytes(path: Path) -> bytes:
    try:
        if path.is_symlink():
            raise WeightsError(f"{path} is a symbolic link; a manifest is a file", path=str(path))
        if not stat.S_ISREG(path.stat().st_mode):
            raise WeightsError(f"{path} is no regular file", path=str(path))
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise WeightsError(f"{path} is over {MAX_MANIFEST_BYTES} bytes: it is not a manifest", path=str(path))
        return path.read_bytes()
    except FileNotFoundError as exc:
        raise WeightsError(
            f"{path.parent} is not pinned: it has no {MANIFEST_NAME}. "
            "Run 'dpm weights pull' for a known model, or 'dpm weights pin' for a directory of your own",
            path=str(path),
        ) from exc
    except OSError as exc:
        raise WeightsError(f"{path} cannot be read: {exc}", path=str(path)) from exc


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write `dpm-manifest.json` durably: either the whole file is there under its name, or nothing is."""
    handle, temporary = tempfile.mkstemp(prefix=f".{MANIFEST_NAME}.", dir=directory)
    try:
        with os.fdopen(handle, "wb") as sink:
            sink.write(manifest.to_bytes())
            sink.flush()
            os.fsync(sink.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, directory / MANIFEST_NAME)
    except OSError:
        os.unlink(temporary)
        raise
    _fsync_directory(directory)


def _fsync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def list_files(directory: Path) -> dict[str, Path]:
    """Every file of the directory but its manifest, by its relative name with forward slashes, sorted.

    Raises:
        WeightsError: not a directory, a link that leaves it or leads to a directory, a name that is not Unicode,
            or something that is neither file nor directory.
    """
    if not directory.is_dir():
        raise WeightsError(f"{directory} is not a directory", path=str(directory))
    root = directory.resolve(strict=True)
    files = {_relative_name(path, directory): _regular_file(path, root) for path in _walk(directory)}
    files.pop(MANIFEST_NAME, None)
    return dict(sorted(files.items()))


def _walk(directory: Path) -> Iterator[Path]:
    def refuse(exc: OSError) -> None:
        raise WeightsError(f"{exc.filename} cannot be read: {exc}", path=str(exc.filename)) from exc

    for folder, subfolders, names in os.walk(directory, onerror=refuse):
        links = [name for name in subfolders if os.path.islink(os.path.join(folder, name))]
        yield from (Path(folder, name) for name in [*names, *links])


def _relative_name(path: Path, directory: Path) -> str:
    name = PurePosixPath(path.relative_to(directory)).as_posix()
    try:
        name.encode("utf-8")
        if name != MANIFEST_NAME:
            _require_plain_name(name)
    except ValueError as exc:
        raise WeightsError(f"{path!r} has a name that cannot be pinned: {exc}", path=repr(path)) from exc
    return name


def _regular_file(path: Path, root: Path) -> Path:
    try:
        target = path.resolve(strict=True)
        mode = target.stat().st_mode
    except (OSError, RuntimeError) as exc:
        raise WeightsError(f"{path} leads nowhere: {exc}", path=str(path)) from exc
    if not target.is_relative_to(root):
        raise WeightsError(
            f"{path} is a symbolic link out of the directory, to {target}: copy the files themselves (cp -rL)",
            path=str(path),
        )
    if not stat.S_ISREG(mode):
        raise WeightsError(f"{path} is not a regular file", path=str(path))
    return path


def scan(directory: Path, source: str) -> Manifest:
    """Hash every file of the directory with both digests.

    Raises:
        WeightsError: as `list_files`, or a file that cannot be read.
    """
    files = tuple(
        PinnedFile(
            name=name,
            size=path.stat().st_size,
            sha256=hash_file(path, "sha256"),
            xxh3_128=hash_file(path, "xxh3_128"),
        )
        for name, path in list_files(directory).items()
    )
    manifest = Manifest(source=source, files=files)
    try:
        manifest.to_bytes()
    except RequestError as exc:
        raise WeightsError(f"{directory} cannot be pinned: {exc}", path=str(directory)) from exc
    return manifest


def hash_file(path: Path, digest_name: DigestName) -> str:
    """The file's SHA-256 (evidence) or xxh3-128 (speed), as lower-case hex.

    Raises:
        WeightsError: the file cannot be read.
    """
    digest = hashlib.sha256() if digest_name == "sha256" else xxhash.xxh3_128()
    buffer = memoryview(bytearray(CHUNK_BYTES))
    try:
        with path.open("rb", buffering=0) as source:
            while num_bytes := source.readinto(buffer):
                digest.update(buffer[:num_bytes])
    except OSError as exc:
        raise WeightsError(f"{path} cannot be read: {exc}", path=str(path)) from exc
    return digest.hexdigest()
