"""The vectors on the format page, recomputed with our code and by the independent verifier; its other claims."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from projection.canonical import canonical_bytes
from projection.store_sqlite import APPLICATION_ID, SCHEMA, SCHEMA_VERSION
from tests import format_1, independent_verifier

ROOT = Path(__file__).parents[1]
VECTORS = format_1.read_vectors()
TAG = re.compile(r"dpm/[a-z-]+/v[0-9]+")


def fenced_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", format_1.PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("name", sorted(VECTORS))
def test_our_code_computes_the_vectors_of_the_page(name: str) -> None:
    assert format_1.vectors(format_1.DATABASE)[name] == VECTORS[name]


def test_the_page_has_every_kind_of_vector() -> None:
    assert VECTORS.keys() == format_1.vectors(format_1.DATABASE).keys()


def test_the_verifier_computes_the_vectors_of_the_page() -> None:
    tagged, tagged_json = independent_verifier.tagged, independent_verifier.tagged_json
    assert independent_verifier.canonical(VECTORS["canonical"]["value"]) == VECTORS["canonical"]["utf8"]
    assert tagged_json("dpm/events/v1", VECTORS["events"]["value"]) == VECTORS["events"]["digest"]
    assert tagged_json("dpm/task/v1", VECTORS["task"]["value"]) == VECTORS["task"]["digest"]
    identity, manifest = VECTORS["engine_identity"], VECTORS["manifest"]
    assert tagged_json("dpm/engine-identity/v1", identity["value"]) == identity["digest"]
    assert tagged_json("dpm/weights-manifest/v1", manifest["files"]) == manifest["digest"]
    for kind in ("view", "grammar"):
        assert tagged(f"dpm/{kind}/v1", VECTORS[kind]["utf8"].encode("utf-8")) == VECTORS[kind]["digest"]
    minimal = VECTORS["event_id"]
    assert minimal["event_id"] == "sha256:" + tagged_json("dpm/event-id/v1", minimal["value"])[:32]


@pytest.mark.parametrize("index", [0, 1])
def test_the_verifier_computes_the_entries_of_the_page(index: int) -> None:
    entry: dict[str, Any] = VECTORS["entries"][index]
    header = entry["header_utf8"].encode("utf-8")
    values = independent_verifier.read_canonical(header)
    commitment = independent_verifier.tagged(
        "dpm/payload/v1", bytes.fromhex(entry["salt"]) + entry["payload_utf8"].encode("utf-8")
    )
    assert values["payload_commitment"] == commitment
    assert entry["entry_hash"] == independent_verifier.tagged(
        "dpm/entry/v1", bytes.fromhex(entry["prev_hash"]) + header
    )


def test_the_verifier_finds_the_heads_and_records_of_the_page_in_the_log() -> None:
    said = VECTORS["format-1.db"]
    chains = independent_verifier.verify_log(format_1.DATABASE)
    heads = {stream: chain.head() for stream, chain in chains.items()}
    assert {"/".join(stream): f"{head[0]}:{head[1]}" for stream, head in heads.items()} == said["heads"]
    assert independent_verifier.joint_head(heads) == said["heads_digest"]
    for record in said["records"]:
        independent_verifier.verify_record(format_1.DATABASE, record["record_id"])


def test_the_page_lists_every_domain_tag_of_the_code_and_no_other() -> None:
    sources = [path for folder in ("projection", "inference") for path in (ROOT / folder).glob("*.py")]
    used = {tag for path in sources for tag in TAG.findall(path.read_text(encoding="utf-8"))}
    assert set(TAG.findall(format_1.PAGE.read_text(encoding="utf-8"))) == used


def test_the_page_gives_the_schema_of_the_code() -> None:
    (block,) = fenced_blocks("sql")
    assert {statement.strip().removesuffix(";") for statement in block.split("\n\n")} == set(SCHEMA)
    assert block == independent_verifier.SCHEMA
    with closing(sqlite3.connect(f"{format_1.DATABASE.as_uri()}?mode=ro", uri=True)) as database:
        facts = [database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    assert facts == [APPLICATION_ID, SCHEMA_VERSION] == [0x44504D31, 1]


def test_the_verifier_holds_the_patterns_of_the_page() -> None:
    anchors, sentence_end, part_end = fenced_blocks("regex")
    assert "\n" + anchors == independent_verifier.ANCHOR_PATTERNS
    assert independent_verifier.read_patterns(independent_verifier.QUOTE_PATTERNS) == (
        independent_verifier.read_patterns(sentence_end) | independent_verifier.read_patterns(part_end)
    )


def test_the_members_of_tasks_and_records_are_those_of_the_page() -> None:
    page = format_1.PAGE.read_text(encoding="utf-8")
    for kind, members in independent_verifier.MEMBERS.items():
        for name in members:
            said = name.removesuffix("?")
            assert f"`{said}`" in page or f'"{said}"' in page, (kind, name)


def test_canonical_numbers_agree_with_ours_on_the_vectors_of_rfc_8785() -> None:
    for number in (0.0, -0.0, 5e-324, -5e-324, 1.7976931348623157e308, 1e21, 1e23, 9.999999999999997e22, 1e-6, 1e-7):
        assert independent_verifier.canonical(number).encode() == canonical_bytes(number)
