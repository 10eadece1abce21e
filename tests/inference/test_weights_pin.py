"""Pinning: the manifest lists every file, its digest depends on nothing else, and what is no model is refused."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
import xxhash

from inference.weights import MANIFEST_NAME, load_manifest, pin
from projection.errors import WeightsError
from tests.inference.model_directory import FILES, contents, write_model


def test_the_manifest_lists_every_file_with_its_size_and_both_digests(model: Path) -> None:
    (model / "extra").mkdir()
    (model / "extra" / ".hidden").write_bytes(b"x")
    manifest = pin(model)
    found = {file.name: (file.size, file.sha256, file.xxh3_128) for file in manifest.files}
    expected = {**FILES, "extra/.hidden": b"x"}
    assert found == {
        name: (len(data), hashlib.sha256(data).hexdigest(), xxhash.xxh3_128_hexdigest(data))
        for name, data in expected.items()
    }
    assert load_manifest(model) == manifest


def test_the_manifest_format_does_not_change(pinned: Path) -> None:
    assert load_manifest(pinned).digest == "2fe57ee39ba54d1578f2755577721282533ba7c8a963e85982798a86cb4d196f"
    stated = json.loads((pinned / MANIFEST_NAME).read_bytes())
    body = json.dumps(stated["files"], sort_keys=True, separators=(",", ":")).encode()
    assert stated["digest"] == hashlib.sha256(b"dpm/weights-manifest/v1\0" + body).hexdigest()
    assert (stated["format"], stated["source"]) == ("dpm/weights-manifest/v1", "local")


def test_the_digest_does_not_depend_on_the_place_or_the_source(pinned: Path, tmp_path: Path) -> None:
    other = pin(write_model(tmp_path / "elsewhere"), source="from a friend")
    assert other.digest == load_manifest(pinned).digest


def test_pinning_leaves_nothing_but_the_manifest_behind(pinned: Path) -> None:
    assert contents(pinned).keys() == {*FILES, MANIFEST_NAME}


def test_pinning_again_verifies_and_keeps_the_manifest(pinned: Path) -> None:
    before = (pinned / MANIFEST_NAME).read_bytes()
    assert pin(pinned, source="another") == load_manifest(pinned)
    (pinned / "config.json").write_bytes(b"{}")
    with pytest.raises(WeightsError, match=r"changed: config\.json"):
        pin(pinned)
    assert (pinned / MANIFEST_NAME).read_bytes() == before


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_directory_that_is_no_model_is_not_pinned(model: Path, name: str) -> None:
    (model / name).unlink()
    with pytest.raises(WeightsError, match="is not a model directory"):
        pin(model)
    assert not (model / MANIFEST_NAME).exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "a.pt", "b.PTH", "c.ckpt", "sub/d.pkl"])
def test_pickled_weights_are_refused_by_name(model: Path, name: str) -> None:
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).write_bytes(b"")
    with pytest.raises(WeightsError, match=name):
        pin(model)


def test_a_name_that_is_not_unicode_is_refused(model: Path) -> None:
    Path(os.fsdecode(os.fsencode(model) + b"/\xff.json")).write_bytes(b"")
    with pytest.raises(WeightsError, match="cannot be pinned"):
        pin(model)


def test_something_that_is_no_file_is_refused(model: Path) -> None:
    os.mkfifo(model / "pipe")
    with pytest.raises(WeightsError, match="not a regular file"):
        pin(model)


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="is not a directory"):
        pin(tmp_path / "nowhere")
