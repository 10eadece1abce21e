"""The independent verifier against ours: on a whole log, on damaged ones, and on records forged by who owns the file.

The verifier knows only `docs/format.md`, so what it and ours agree on is what the page says.
"""

from __future__ import annotations

import ast
import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from inference.scripted_engine import ScriptedEngine, ScriptedTokenizer
from projection import log
from projection.anchors import find_anchors
from projection.candidates import field_anchors
from projection.canonical import canonical_bytes
from projection.case import replay_record
from projection.entry import Stream
from projection.events import Event, LoggedEvent
from projection.quotes import find_quotes
from projection.replay import ReplayTools
from projection.store_sqlite import SqliteStore
from projection.task import TaskField
from service.cli import app
from tests import format_1, independent_verifier
from tests.forgery import (
    AUDIT,
    CASE,
    Edit,
    RecordEdit,
    change,
    chop,
    delete,
    drop,
    erase,
    forge,
    in_decision,
    in_turn,
    in_view,
    insert_at_end,
    opened_by_its_owner,
    put,
    rechain,
    set_header,
    swap_payloads,
)
from tests.independent_verifier import Broken
from tests.projection.cases import odd_texts

FIELDS = format_1.task().fields
RECORDS = [record["record_id"] for record in format_1.read_vectors()["format-1.db"]["records"]]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    copy = tmp_path / "copy.db"
    shutil.copyfile(format_1.DATABASE, copy)
    return copy


DAMAGE: dict[str, Edit] = {
    "nothing": lambda db: None,
    "a payload that was erased": erase(2),
    "a byte of a payload": change("payload", "CAST(replace(CAST(payload AS TEXT), '9', '8') AS BLOB)", 1),
    "a byte of a header": change("header", "CAST(replace(CAST(header AS TEXT), 'fnol', 'fnoi') AS BLOB)", 1),
    "a hash": change("entry_hash", "zeroblob(32)", 4),
    "a salt": change("salt", "zeroblob(32)", 4),
    "a salt that is cut": change("salt", "substr(salt, 1, 31)", 2),
    "a deleted entry in the middle": delete(3),
    "the first entry deleted": delete(1),
    "a header that is spaced out": set_header(2, lambda header: json.dumps(header, sort_keys=True).encode()),
    "a header with a member more": set_header(2, lambda header: canonical_bytes({**header, "more": 1})),
    "a header of another version": set_header(2, lambda header: canonical_bytes({**header, "v": 2})),
    "a header that is no JSON": set_header(2, lambda header: b"\xff{"),
    "a header that is an array": set_header(2, lambda header: b"[]"),
    "a header of another position": in_turn(
        set_header(2, lambda header: canonical_bytes({**header, "position": 3})), rechain
    ),
    "a header of another tenant": in_turn(
        set_header(2, lambda header: canonical_bytes({**header, "tenant_id": "globex"})), rechain
    ),
    "two payloads swapped": swap_payloads,
    "two entries swapped": in_turn(
        change("position", "99", 2), change("position", "2", 3), change("position", "3", 99)
    ),
    "an entry moved to another case": change("case_id", "'CLM-2'", 3),
    "an entry filed under another event id": change("event_id", "'other'", 3),
    "an entry more at the end": insert_at_end,
    "an entry at a later position": change("position", "9", 5),
    "a changed payload, hashed again by the forger": in_turn(
        change("payload", "CAST('Dwelling limit $999,000.' AS BLOB)", 2), rechain
    ),
    "entries missing from the end": in_turn(delete(4), delete(5)),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_both_find_the_same_position_of_a_damaged_log(database: Path, what: str) -> None:
    with opened_by_its_owner(database) as db:
        DAMAGE[what](db)
    theirs = independent_verifier.verify_log(database)
    with SqliteStore.open_read_only(database) as store:
        ours = {stream: log.verify(store.entries(stream), stream) for stream in store.streams()}
    assert {(s.tenant_id, s.case_id): (v.num_entries, v.first_bad_position) for s, v in ours.items()} == {
        stream: (len(chain.entries), chain.first_bad_position) for stream, chain in theirs.items()
    }
    invisible = ("nothing", "a payload that was erased", "a changed payload, hashed again by the forger",
                 "entries missing from the end")  # fmt: skip
    assert any(chain.first_bad_position for chain in theirs.values()) == (what not in invisible)


@pytest.mark.parametrize("what", DAMAGE)
def test_both_find_the_same_of_a_damaged_log_against_a_head_kept_elsewhere(database: Path, what: str) -> None:
    kept = independent_verifier.verify_log(database)[CASE].head()
    with opened_by_its_owner(database) as db:
        DAMAGE[what](db)
    chain = independent_verifier.verify_log(database)[CASE]
    done = CliRunner().invoke(
        app, ["log", "verify", "--db", str(database), "--case", CASE[1], "--expected-head", f"{kept[0]}:{kept[1]}"]
    )
    assert done.exit_code == (0 if chain.holds_head(*kept) else 1)
    assert chain.holds_head(*kept) == (what in ("nothing", "a payload that was erased"))


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TRIGGER entry_no_delete",
        "DROP INDEX record_hash",
        "CREATE TABLE note (text)",
        "PRAGMA user_version = 2",
        "PRAGMA application_id = 7",
    ],
)
def test_both_refuse_a_file_that_is_no_log_any_more(database: Path, damage: str) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(damage)
        connection.commit()
    assert CliRunner().invoke(app, ["log", "verify", "--db", str(database)]).exit_code != 0
    with pytest.raises(Broken):
        independent_verifier.verify_log(database)


def test_both_agree_on_files_with_one_flipped_bit(database: Path) -> None:
    whole = database.read_bytes()
    found = 0
    for offset in range(0, len(whole), 509):
        database.write_bytes(whole[:offset] + bytes([whole[offset] ^ 0x10]) + whole[offset + 1 :])
        ours = CliRunner().invoke(app, ["log", "verify", "--db", str(database)]).exit_code == 0
        try:
            chains = independent_verifier.verify_log(database).values()
            theirs = all(chain.first_bad_position is None for chain in chains)
        except Broken:
            theirs = False
        assert ours == theirs, offset
        found += not ours
    assert found > 100


# Records


def verdicts(database: Path, record_id: str) -> tuple[bool, bool]:
    """Whether R0 passes, by ours and by the independent verifier."""
    tools = ReplayTools(ScriptedTokenizer, ScriptedEngine)
    with SqliteStore.open_read_only(database) as store:
        ours = replay_record(store, record_id, "R0", tools).verdict == "PASS"
    try:
        independent_verifier.verify_record(database, record_id)
    except Broken:
        return ours, False
    return ours, True


HONEST: dict[str, RecordEdit] = {
    "nothing": lambda record: None,
    "another true value": in_view("roof in years: 14 [5]", "roof in years: 9 [1]"),
    "unknown": in_view("roof in years: 14 [5]", "roof in years: unknown"),
    "another sentence of the event": in_view("[2] Dwelling limit $386,000.", "[2] The deductible is 2.0% of the limit"),
    "other words without a number": in_view("- [3] The o, u\n", "- [3] The roof is old\n"),
    "other words with a number of the event": in_view("- [3] The o, u\n", "- [3] The cost is $27,350.00 and more\n"),
    "no line under REASONING": in_view("- [3] The o, u\n", ""),
    "times that nobody measured": put("wall_s", [1e-7, 123456789.5]),
    "log-probabilities of every size": put("content.projection.logprobs", [-1e-7, -0.1, -12.345678901234567, 0, 1e21]),
    "an engine with other members": put("engine", {"kind": "made up", "€": [None, 0.5]}),
    "a rationale without a number": in_decision("That n exceeds $1.", "That is so.", rationale="That is so."),
    "an empty rationale": in_decision("That n exceeds $1.", "", rationale=""),
    "a reason more": in_decision(
        "Reason: G01 [L14]\n", "Reason: G01 [L14]\nReason: G05 [L1] [L20]\n",
        reasons=[{"code": "G01", "lines": [14]}, {"code": "G05", "lines": [1, 20]}],
    ),
}  # fmt: skip
FORGED: dict[str, RecordEdit] = {
    "a citation of no event": in_view("roof in years: 14 [5]", "roof in years: 14 [6]"),
    "a citation of another event": in_view("roof in years: 14 [5]", "roof in years: 14 [1]"),
    "a citation that begins with zero": in_view("roof in years: 14 [5]", "roof in years: 14 [05]"),
    "a value that is part of another": in_view("roof in years: 14 [5]", "roof in years: 4 [5]"),
    "a value of another type": in_view("roof in years: 14 [5]", "roof in years: $31,460.00 [5]"),
    "a value that breaks the pattern": in_view("CLM-2026-00417 [1]", "2026-02-27 [1]"),
    "a value that stands nowhere": in_view("repair estimate: $27,350.00", "repair estimate: $27,350.01"),
    "a slot of another field": in_view("- adjuster: ", "- adviser: "),
    "a slot left out": in_view("- adjuster: Ada Núñez [3]\n", ""),
    "a fact that is no sentence of the event": in_view("[2] Dwelling limit $386,000.", "[2] The limit is $386,000."),
    "a fact of another event": in_view("[2] Dwelling limit $386,000.", "[3] Dwelling limit $386,000."),
    "a number of another event": in_view("- [3] The o, u\n", "- [3] The cost is $31,460.00\n"),
    "a number that touches a word": in_view("- [3] The o, u\n", "- [3] The cost$1 is\n"),
    "a numeral that is no digit": in_view("- [3] The o, u\n", "- [3] The half is ½ of it\n"),
    "an Arabic digit": in_view("- [3] The o, u\n", "- [3] The cost is ٣ of it\n"),
    "a line without a citation": in_view("- [3] The o, u\n", "- The cost is high\n"),
    "a provision of no task": in_view("[2] Condition B: ", "[2] Condition C: "),
    "a heading twice": in_view("REASONING\n", "REASONING\nREASONING\n"),
    "headings in another order": in_view("REASONING\n", "COMPLIANCE\n"),
    "a heading that is missing": in_view("COMPLIANCE\n", ""),
    "a view that does not end its line": lambda record: chop(record, "projection"),
    "a decision that does not end its line": lambda record: chop(record, "decision_call"),
    "a longer view than was asked for": put("content.budget.asked_chars", 900),
    "another number of characters": lambda record: None,
    "an outcome of no task": in_decision("PAY_IN_PART", "PAY", outcome="PAY"),
    "a decision that is another than its text": put("content.decision.outcome", "DENY"),
    "a reason of no task": in_decision("G01", "G99", reasons=[{"code": "G99", "lines": [14]}]),
    "a reason without a line": in_decision("G01 [L14]", "G01", reasons=[{"code": "G01", "lines": []}]),
    "a reason that cites no line of the view": in_decision("[L14]", "[L99]", reasons=[{"code": "G01", "lines": [99]}]),
    "no reason where one is required": in_decision("Reason: G01 [L14]\n", "", reasons=[]),
    "one reason twice": in_decision(
        "Reason: G01 [L14]\n", "Reason: G01 [L14]\n" * 2, reasons=[{"code": "G01", "lines": [14]}] * 2
    ),
    "reasons out of order": in_decision(
        "Reason: G01 [L14]\n", "Reason: G02 [L1]\nReason: G01 [L14]\n",
        reasons=[{"code": "G02", "lines": [1]}, {"code": "G01", "lines": [14]}],
    ),
    "a rationale with a number of its own": in_decision("$1.", "$2.", rationale="That n exceeds $2."),
    "a decision of another form": in_decision("Rationale: ", "Because: "),
    "events that were not read": put("content.events_digest", "0" * 64),
    "another log head": put("log_head.entry_hash", "0" * 64),
    "a log head at another position": put("log_head.position", 4),
    "a log head beyond the log": put("log_head.position", 6),
    "another tenant": put("tenant_id", "globex"),
    "a case that is not there": put("case_id", "CLM-2"),
    "the audit stream as its case": put("case_id", "audit"),
    "a record of another version": put("v", 2),
    "a completion that did not end": put("content.projection.finish_reason", "length"),
    "a member more": put("content.note", "trust me"),
    "a member less": drop("content.projection.margins"),
    "a number for a string": put("sealed_at", 20260401),
    "a string for a number": put("content.num_events", "5"),
    "null for a token": put("content.decision_call.token_ids", [1, None]),
}  # fmt: skip
STALE = ("task_digest", "engine_identity", "view_digest", "content_digest")


@pytest.mark.parametrize("what", HONEST)
def test_both_pass_a_record_that_keeps_the_rules(database: Path, what: str) -> None:
    assert verdicts(database, forge(database, HONEST[what])) == (True, True)


@pytest.mark.parametrize("what", FORGED)
def test_neither_passes_a_forged_record_whose_digests_all_fit(database: Path, what: str) -> None:
    if what == "another number of characters":
        record_id = forge(database, put("content.budget.used_chars", 1), keep="used_chars")
    else:
        record_id = forge(database, FORGED[what])
    assert verdicts(database, record_id) == (False, False)


@pytest.mark.parametrize("digest", STALE)
def test_neither_passes_a_record_with_a_digest_of_something_else(database: Path, digest: str) -> None:
    def edit(record: dict[str, Any]) -> None:
        in_view("- [3] The o, u\n", "- [3] The roof is old\n")(record)
        put("engine.script", "dpm/script/v2")(record)
        put("content.task.policy", "None.")(record)

    assert verdicts(database, forge(database, edit)) == (True, True)
    shutil.copyfile(format_1.DATABASE, database)
    assert verdicts(database, forge(database, edit, keep=digest)) == (False, False)


@pytest.mark.parametrize("stream", [CASE, AUDIT])
def test_neither_passes_a_record_whose_chains_do_not_hold(database: Path, stream: tuple[str, str]) -> None:
    with opened_by_its_owner(database) as db:
        change("salt", "zeroblob(32)", 1, stream)(db)
    assert verdicts(database, RECORDS[1]) == (False, False)


def test_neither_passes_a_record_that_was_erased(database: Path) -> None:
    with opened_by_its_owner(database) as db:
        erase(2, AUDIT)(db)
    assert verdicts(database, RECORDS[0]) == (True, True)
    assert verdicts(database, RECORDS[1]) == (False, False)


def test_a_record_in_another_form_than_the_canonical_one_passes_neither(database: Path) -> None:
    with opened_by_its_owner(database) as db:
        (payload,) = db.execute("SELECT payload FROM entry WHERE case_id = 'audit' AND position = 2").fetchone()
        db.execute("UPDATE entry SET payload = ? WHERE case_id = 'audit' AND position = 2", (payload + b"\n",))
        rechain(db, AUDIT)
        (entry_hash,) = db.execute("SELECT entry_hash FROM entry WHERE case_id = 'audit' AND position = 2").fetchone()
    assert verdicts(database, bytes(entry_hash).hex()) == (False, False)


# The rules for texts, on any text

texts = odd_texts | st.text() | st.sampled_from([event.text for event in (*format_1.FIRST, *format_1.LATER)])


@given(texts)
def test_both_see_the_same_anchors_in_any_text(text: str) -> None:
    ours = [(anchor.value, anchor.kind, anchor.start, anchor.end) for anchor in find_anchors(text)]
    assert [(m[0], m.lastgroup, *m.span()) for m in independent_verifier.anchors(text)] == ours


@given(texts)
def test_both_see_the_same_quotes_in_any_text(text: str) -> None:
    assert independent_verifier.quotes(text) == set(find_quotes(text))


@given(texts, st.sampled_from(FIELDS))
def test_both_see_the_same_values_of_a_field_in_any_text(text: str, field: TaskField) -> None:
    event = LoggedEvent(1, Event("e1", "note", "test", None, text))
    ours = {anchor.value for anchor in field_anchors(field, event)}
    assert independent_verifier.field_values(field.model_dump(mode="json"), text) == ours


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_both_print_a_number_alike(number: float) -> None:
    assert independent_verifier.canonical(number).encode() == canonical_bytes(number)


# Independence


def test_the_verifier_imports_nothing_but_the_standard_library() -> None:
    tree = ast.parse(Path(independent_verifier.__file__).read_text(encoding="utf-8"))
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {module.partition(".")[0] for module in modules} <= sys.stdlib_module_names


def test_the_verifier_is_a_program_of_one_file(tmp_path: Path, database: Path) -> None:
    program = tmp_path / "verifier.py"
    shutil.copyfile(str(independent_verifier.__file__), program)
    command = [sys.executable, "-I", str(program), str(database)]
    done = subprocess.run([*command, *RECORDS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count("R0 PASS"), done.stderr) == (0, 2, "")
    with opened_by_its_owner(database) as db:
        change("payload", "CAST('x' AS BLOB)", 2)(db)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "position 2" in done.stdout) == (1, True)


def test_the_verifiers_streams_are_ours() -> None:
    with SqliteStore.open_read_only(format_1.DATABASE) as store:
        assert [Stream(*stream) for stream in independent_verifier.verify_log(format_1.DATABASE)] == store.streams()
