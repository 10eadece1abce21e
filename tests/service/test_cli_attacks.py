"""What an attacker once got past the command line, each kept from coming back."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from projection.engine import EngineIdentity
from projection.record import AuditRecord
from projection.store_sqlite import SqliteStore
from tests.projection.decided import seal, with_changes, with_content
from tests.service.conftest import Dpm


def test_a_row_filed_under_no_tenant_is_found(dpm: Dpm, decided: Path) -> None:
    columns = "event_id, header, entry_hash, salt, payload"
    with closing(sqlite3.connect(decided)) as database, database:
        first = "SELECT min(entry_id) FROM entry"
        database.execute(
            f"INSERT INTO entry (entry_id, tenant_id, case_id, position, {columns}) "
            f"SELECT 9999, '', '', 1, {columns} FROM entry WHERE entry_id = ({first})"
        )
    found = dpm("log", "verify", "--db", decided, "--json")
    assert (found.code, found.document["verdict"]) == (1, "DRIFT")


def test_a_record_never_chooses_the_address_that_confirms_it(dpm: Dpm, decided: Path, record_id: str) -> None:
    with SqliteStore.open(decided) as store:
        shown = dpm("record", "show", record_id, "--db", decided).document
        record = AuditRecord.model_validate({k: v for k, v in shown.items() if k != "record_id"})
        engine = record.engine | {"kind": "http://127.0.0.1:9"}
        record = with_content(record, engine_identity=EngineIdentity(engine).digest)
        forged = seal(store, with_changes(record, engine=engine))
    refused = dpm("replay", forged, "--db", decided, "--level", "R3", "--json")
    assert refused.code == 2
    assert "name one of yours with --engine" in refused.error["message"]


@pytest.mark.parametrize("text", ["seed: !!bool maybe", "model: 2026-99-99", "a: &a {b: *a}", "[" * 3000])
def test_a_configuration_that_is_no_yaml_is_wrong_use(dpm: Dpm, case: Path, text: str) -> None:
    Path("odd.yaml").write_text(text, encoding="utf-8")
    refused = dpm("engine", "show", "--engine", "scripted", "--config", "odd.yaml", "--json")
    assert (refused.code, refused.error["type"]) == (2, "ConfigurationError")


@pytest.mark.parametrize("text", ["policy: !!bool zz", "policy: !!timestamp zz"])
def test_a_task_with_tags_is_wrong_use(dpm: Dpm, case: Path, text: str) -> None:
    Path("odd.yaml").write_text(text, encoding="utf-8")
    refused = dpm("decide", "events.jsonl", "--task", "odd.yaml", "--engine", "scripted", "--json")
    assert (refused.code, refused.error["type"]) == (2, "TaskError")


def test_an_endless_file_is_refused_at_the_limit(dpm: Dpm, case: Path) -> None:
    refused = dpm("decide", "events.jsonl", "--task", "/dev/zero", "--engine", "scripted", "--json")
    assert refused.code == 2


def test_a_pipe_in_the_place_of_a_manifest_is_refused(dpm: Dpm, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "dpm-manifest.json")
    refused = dpm("weights", "verify", tmp_path, "--json")
    assert refused.code == 1
    assert "no regular file" in refused.error["message"]


def test_no_escape_sequence_of_an_input_reaches_the_terminal(dpm: Dpm, case: Path) -> None:
    Path("odd.yaml").write_text('"\\e[31mX": 1\n', encoding="utf-8")
    refused = dpm("decide", "events.jsonl", "--task", "odd.yaml", "--engine", "scripted")
    assert "\x1b" not in refused.stderr
    assert "<U+001B>" in refused.stderr
