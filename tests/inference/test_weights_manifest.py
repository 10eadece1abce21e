"""The manifest itself: one that is malformed, edited, cut off or leads out of its directory is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inference.weights import MANIFEST_NAME, load_manifest, verify
from projection.errors import WeightsError


def edit(pinned: Path, change: Callable[[Any], None]) -> None:
    """Change the manifest and make its digest and form hold again, as a forger would."""
    stated = json.loads((pinned / MANIFEST_NAME).read_bytes())
    change(stated)
    body = json.dumps(stated["files"], sort_keys=True, separators=(",", ":")).encode()
    stated["digest"] = hashlib.sha256(b"dpm/weights-manifest/v1\0" + body).hexdigest()
    (pinned / MANIFEST_NAME).write_bytes(json.dumps(stated, sort_keys=True, separators=(",", ":")).encode())


@pytest.mark.parametrize(
    "name",
    [
        "../config.json",
        "a/../../b",
        "/etc/passwd",
        "",
        ".",
        "a//b",
        "a\\b",
        "a\0b",
        "./a",
        "a/",
        MANIFEST_NAME,
        "\ud800",
    ],
)
def test_a_manifest_that_names_a_file_outside_is_refused(pinned: Path, name: str) -> None:
    edit(pinned, lambda stated: stated["files"][0].update(name=name))
    with pytest.raises(WeightsError, match="is not a manifest"):
        verify(pinned)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sha256", "A" * 64),
        ("sha256", "0" * 63),
        ("xxh3_128", None),
        ("size", -1),
        ("size", True),
        ("size", "3"),
        ("x", 1),
    ],
)
def test_a_malformed_entry_is_refused(pinned: Path, key: str, value: object) -> None:
    edit(pinned, lambda stated: stated["files"][0].update({key: value}))
    with pytest.raises(WeightsError, match="is not a manifest"):
        verify(pinned)


def test_a_manifest_of_another_format_is_refused(pinned: Path) -> None:
    edit(pinned, lambda stated: stated.update(format="dpm/weights-manifest/v2"))
    with pytest.raises(WeightsError, match="is not a manifest"):
        verify(pinned)


@pytest.mark.parametrize("change", [list.reverse, lambda files: files.append(files[-1])])
def test_a_manifest_out_of_order_or_with_a_name_twice_is_refused(pinned: Path, change: Callable[[Any], None]) -> None:
    edit(pinned, lambda stated: change(stated["files"]))
    with pytest.raises(WeightsError, match="canonical"):
        verify(pinned)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_a_manifest_that_is_not_one_is_refused(pinned: Path, data: bytes) -> None:
    (pinned / MANIFEST_NAME).write_bytes(data)
    with pytest.raises(WeightsError, match="is not a manifest"):
        verify(pinned)


def test_a_manifest_that_was_formatted_by_hand_is_refused(pinned: Path) -> None:
    path = pinned / MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_bytes()), indent=2))
    with pytest.raises(WeightsError, match="canonical"):
        verify(pinned)


def test_an_edited_digest_is_refused_naming_both(pinned: Path) -> None:
    path, digest = pinned / MANIFEST_NAME, load_manifest(pinned).digest
    path.write_bytes(path.read_bytes().replace(digest.encode(), b"0" * 64))
    with pytest.raises(WeightsError, match=f"{'0' * 64}.*{digest}"):
        verify(pinned)


def test_a_truncated_manifest_is_refused_at_every_length(pinned: Path) -> None:
    path = pinned / MANIFEST_NAME
    data = path.read_bytes()
    for num_bytes in range(len(data)):
        path.write_bytes(data[:num_bytes])
        with pytest.raises(WeightsError):
            load_manifest(pinned)


def test_a_manifest_that_is_a_link_or_too_large_is_refused(pinned: Path, tmp_path: Path) -> None:
    path = pinned / MANIFEST_NAME
    shutil.move(path, tmp_path / "manifest")
    path.symlink_to(tmp_path / "manifest")
    with pytest.raises(WeightsError, match="symbolic link"):
        load_manifest(pinned)
    path.unlink()
    with path.open("wb") as sink:
        sink.truncate(1 << 30)
    with pytest.raises(WeightsError, match="is not a manifest"):
        load_manifest(pinned)
