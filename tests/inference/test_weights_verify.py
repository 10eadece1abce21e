"""Verifying and checking a pinned directory: each changed, missing or added file is named, with both digests."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash

from inference.weights import Manifest, check, load_manifest, pin, verify
from projection.errors import WeightsError
from tests.inference.model_directory import FILES

Recompute = Callable[[Path], Manifest]
either_digest = pytest.mark.parametrize("recompute", [check, verify])


@either_digest
def test_an_unchanged_directory_holds(pinned: Path, recompute: Recompute) -> None:
    assert recompute(pinned) == load_manifest(pinned)


@either_digest
@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_is_named_with_both_digests(pinned: Path, recompute: Recompute, name: str) -> None:
    before, after = FILES[name], bytes([*FILES[name][:-1], 0x7E])
    (pinned / name).write_bytes(after)
    digest = hashlib.sha256 if recompute is verify else xxhash.xxh3_128
    with pytest.raises(WeightsError, match=f"changed: {name}") as caught:
        recompute(pinned)
    expected, found = digest(before).hexdigest(), digest(after).hexdigest()
    assert caught.value.fields["differences"] == [{"name": name, "expected": expected, "found": found}]
    assert expected in caught.value.message
    assert found in caught.value.message


@either_digest
def test_every_missing_and_added_file_is_named(pinned: Path, recompute: Recompute) -> None:
    (pinned / "chat_template.jinja").rename(pinned / "chat_template.jinja2")
    (pinned / "generation_config.json").unlink()
    with pytest.raises(WeightsError) as caught:
        recompute(pinned)
    lines = [line.strip().split(": expected")[0] for line in caught.value.message.splitlines()]
    assert lines[1:4] == [
        "missing: chat_template.jinja",
        "added: chat_template.jinja2",
        "missing: generation_config.json",
    ]


@either_digest
def test_an_added_empty_file_in_a_folder_is_seen(pinned: Path, recompute: Recompute) -> None:
    (pinned / "a" / "b").mkdir(parents=True)
    (pinned / "a" / "b" / ".c").touch()
    with pytest.raises(WeightsError, match=r"added: a/b/\.c"):
        recompute(pinned)


@either_digest
def test_swapped_contents_are_seen(pinned: Path, recompute: Recompute) -> None:
    (pinned / "config.json").write_bytes(FILES["tokenizer.json"])
    (pinned / "tokenizer.json").write_bytes(FILES["config.json"])
    with pytest.raises(WeightsError, match=r"changed: config\.json(.|\n)*changed: tokenizer\.json"):
        recompute(pinned)


@either_digest
def test_a_directory_without_a_manifest_is_refused(model: Path, recompute: Recompute) -> None:
    with pytest.raises(WeightsError, match="is not pinned"):
        recompute(model)


@either_digest
def test_a_link_out_of_the_directory_is_refused_even_to_equal_bytes(
    pinned: Path, tmp_path: Path, recompute: Recompute
) -> None:
    shutil.move(pinned / "config.json", tmp_path / "config.json")
    (pinned / "config.json").symlink_to(tmp_path / "config.json")
    with pytest.raises(WeightsError, match="symbolic link out of the directory"):
        recompute(pinned)


@either_digest
def test_a_linked_folder_and_a_dangling_link_are_refused(pinned: Path, tmp_path: Path, recompute: Recompute) -> None:
    (pinned / "folder").symlink_to(tmp_path)
    with pytest.raises(WeightsError, match="symbolic link out of the directory"):
        recompute(pinned)
    (pinned / "folder").unlink()
    (pinned / "dangling").symlink_to(tmp_path / "nothing")
    with pytest.raises(WeightsError, match="leads nowhere"):
        recompute(pinned)


def test_a_link_inside_the_directory_is_a_file_like_any_other(model: Path) -> None:
    (model / "alias.json").symlink_to("config.json")
    pin(model)
    check(model)
    (model / "config.json").write_bytes(b"{}")
    with pytest.raises(WeightsError, match=r"changed: alias\.json(.|\n)*changed: config\.json"):
        check(model)
