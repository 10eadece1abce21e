"""The command line on the scripted engine: the contract of its documents, its exit codes, and every bad input."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from inference.scripted_engine import ScriptedEngine
from projection.case import decide_case
from projection.entry import Stream
from projection.events import MAX_EVENT_CHARS
from projection.prompt import visible
from projection.store_sqlite import SqliteStore
from projection.task import parse_task
from projection.view_grammar import Profile
from service.cli import app
from tests.projection.cases import EVENTS, TASK_YAML
from tests.projection.hostile import HOSTILE_TEXTS
from tests.projection.test_sqlite_durability import EDITS, edit
from tests.projection.trajectories import NOW, counted_salt, make_events
from tests.service.conftest import Dpm, write_events
from tests.test_imports import HEAVY

ROOT = Path(__file__).parents[2]
DECIDE = ("decide", "events.jsonl", "--task", "task.yaml", "--engine", "scripted", "--json")
SMALL_EVENTS = [logged.event for logged in EVENTS]


def log_state(db: Path) -> list[tuple[str, int, str]]:
    """Stream, position and hash of every entry; nothing where there is no file."""
    if not db.exists():
        return []
    with SqliteStore.open_read_only(db) as store:
        return [(str(stream), e.position, e.entry_hash) for stream in store.streams() for e in store.entries(stream)]


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines(keepends=True)


# The contract


def test_decide_prints_one_document_with_the_keys_of_the_contract(dpm: Dpm, case: Path) -> None:
    result = dpm(*DECIDE)
    document = result.document
    assert result.code == 0
    assert document.keys() >= {
        "record_id", "content_digest", "engine_identity", "log_head", "view", "decision", "calls"
    }  # fmt: skip
    assert document["view"].keys() >= {"text", "num_chars", "facts", "omissions"}
    assert all(fact.keys() >= {"name", "value", "position"} for fact in document["view"]["facts"])
    assert [fact["name"] for fact in document["view"]["facts"]] == ["income", "dti", "closing", "ratio"]
    assert document["decision"].keys() >= {"outcome", "reasons"}
    assert len(document["calls"]) == 2
    assert all(
        call.keys() >= {"num_prompt_tokens", "num_completion_tokens", "finish_reason", "min_margin", "wall_s"}
        for call in document["calls"]
    )
    assert document["view"]["num_chars"] == len(document["view"]["text"]) <= 1338
    assert document["engine_identity"] == ScriptedEngine().identity.digest
    assert "case LN-7: 3 events" in result.stderr


def test_a_fact_that_is_unknown_has_neither_value_nor_position(dpm: Dpm, case: Path) -> None:
    for fact in dpm(*DECIDE).document["view"]["facts"]:
        assert (fact["value"] is None) == (fact["position"] is None)
    write_events(case / "events.jsonl", [replace(SMALL_EVENTS[0], text="Nothing to see.")])
    facts = dpm(*DECIDE, "--case", "empty").document["view"]["facts"]
    assert [(fact["value"], fact["position"]) for fact in facts] == [(None, None)] * 4


def test_replay_prints_one_document_with_the_keys_of_the_contract(dpm: Dpm, case: Path) -> None:
    record_id = dpm(*DECIDE).document["record_id"]
    result = dpm("replay", record_id, "--json")
    assert result.code == 0
    assert result.document.keys() >= {"verdict", "levels", "first_divergence", "engine_identity"}
    assert result.document["verdict"] == "PASS"
    assert result.document["levels"] == {"R0": "PASS", "R1": "PASS", "R2": "PASS", "R3": "PASS"}
    assert result.document["first_divergence"] is None


@pytest.mark.parametrize("level", ["R0", "R1", "R2", "R3"])
def test_a_replay_stops_at_its_level(dpm: Dpm, decided: Path, record_id: str, level: str) -> None:
    levels = dpm("replay", record_id[:10], "--level", level, "--json").document["levels"]
    assert levels == {name: "PASS" if name <= level else None for name in ("R0", "R1", "R2", "R3")}


def test_append_verify_and_head_print_the_keys_of_the_contract(dpm: Dpm, case: Path) -> None:
    appended = dpm("log", "append", "events.jsonl", "--json")
    assert appended.code == 0
    assert appended.document.keys() >= {"tenant_id", "case_id", "num_appended", "num_entries", "head"}
    assert (appended.document["num_appended"], appended.document["num_entries"]) == (3, 3)
    verified = dpm("log", "verify", "--json")
    assert verified.code == 0
    assert verified.document.keys() >= {"verdict", "num_entries", "head", "first_bad_position"}
    assert (verified.document["verdict"], verified.document["num_entries"]) == ("PASS", 3)
    assert verified.document["first_bad_position"] is None
    assert dpm("log", "head", "--json").document["head"] == verified.document["head"] == appended.document["head"]
    again = dpm("log", "append", "events.jsonl", "--json").document
    assert (again["num_appended"], again["head"]) == (0, appended.document["head"])


def test_the_same_case_decided_twice_has_one_content_digest(dpm: Dpm, case: Path) -> None:
    one, two = dpm(*DECIDE).document, dpm(*DECIDE).document
    other = dpm(*DECIDE, "--db", "other.sqlite", "--tenant", "other", "--case", "X-1").document
    assert one["content_digest"] == two["content_digest"] == other["content_digest"]
    assert one["view"] == two["view"] == other["view"]
    assert len({one["record_id"], two["record_id"], other["record_id"]}) == 3
    assert one["log_head"] == two["log_head"] != other["log_head"]


def test_a_record_is_shown_whole(dpm: Dpm, decided: Path, record_id: str) -> None:
    shown = dpm("record", "show", record_id[:8]).document
    assert shown["record_id"] == record_id
    assert shown["content"]["projection"]["token_ids"][-1] == 259
    assert shown["engine"]["kind"] == "scripted"


def test_events_are_shown_as_they_were_logged(dpm: Dpm, case: Path) -> None:
    dpm("log", "append", "events.jsonl")
    shown = dpm("log", "show", "--case", "LN-7", "--json").document
    assert [event["text"] for event in shown["events"]] == [event.text for event in SMALL_EVENTS]
    assert [event["position"] for event in shown["events"]] == [1, 2, 3]


def test_the_scripted_engine_shows_that_it_is_no_model(dpm: Dpm) -> None:
    shown = dpm("engine", "show", "--engine", "scripted", "--json").document
    assert shown["identity"]["is_a_model"] is False
    assert shown["engine_identity"] == ScriptedEngine().identity.digest


def test_results_for_people_go_to_stdout_and_talk_to_stderr(dpm: Dpm, case: Path) -> None:
    decided = dpm(*DECIDE[:-1])
    assert decided.code == 0
    for part in ("FACTS", "Outcome: ", "content digest", "engine identity", "log head"):
        assert part in decided.stdout
    assert "starting engine" in decided.stderr
    assert "starting engine" not in decided.stdout
    record_id = next(line.split()[1] for line in decided.stdout.splitlines() if line.startswith("record"))
    replayed = dpm("replay", record_id)
    assert replayed.code == 0
    assert all(f"{level}  PASS" in replayed.stdout for level in ("R0", "R1", "R2", "R3"))
    assert f"record {record_id}" in replayed.stdout
    assert "PASS" in dpm("log", "verify").stdout


def test_what_cannot_be_seen_is_spelled_out_for_people(dpm: Dpm, case: Path) -> None:
    events = [replace(SMALL_EVENTS[0], event_id=f"e{n}", text=text) for n, text in enumerate(HOSTILE_TEXTS.values())]
    write_events(case / "events.jsonl", events)
    for result in (dpm(*DECIDE[:-1], "--budget", "4000"), dpm("log", "show", "--case", "LN-7")):
        assert result.code == 0
        assert result.stdout == visible(result.stdout)


def test_events_may_be_an_array_or_minimal_and_the_file_names_the_case(dpm: Dpm, case: Path) -> None:
    values = [{"type": "note", "time": None, "text": event.text} for event in SMALL_EVENTS]
    (case / "CASE-9.json").write_text(json.dumps(values, indent=2), encoding="utf-8")
    (case / "task.json").write_text(parse_task(TASK_YAML).model_dump_json(indent=2), encoding="utf-8")
    result = dpm("decide", "CASE-9.json", "--task", "task.json", "--engine", "scripted", "--json")
    assert (result.code, result.document["case_id"], result.document["log_position"]) == (0, "CASE-9", 3)


# Help


def every_command(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from every_command(inner, (*path, name))


COMMANDS = list(every_command(typer.main.get_command(app)))


def test_the_commands_are_those_of_the_contract() -> None:
    assert set(COMMANDS) >= {
        (), ("decide",), ("replay",), ("demo",), ("record", "show"), ("engine", "show"),
        *(("log", name) for name in ("append", "show", "verify", "head")),
        *(("weights", name) for name in ("pull", "pin", "verify")),
    }  # fmt: skip


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help(dpm: Dpm, path: tuple[str, ...]) -> None:
    result = dpm(*path, "--help")
    assert result.code == 0
    assert "Usage:" in result.stdout
    assert result.stderr == ""


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from service.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, *sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", program, "decide", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    code, *modules = done.stderr.split()
    assert code == "0"
    assert not (HEAVY | {"numpy"}) & set(modules)


def test_the_installed_command_is_this_one() -> None:
    command = [str(Path(sys.executable).with_name("dpm")), "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "decide" in done.stdout


# Wrong use


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["decide"], "Missing argument"),
        (["decide", "events.jsonl"], "--task"),
        (["fly"], "No such command"),
        (["log", "fly"], "No such command"),
        ([*DECIDE, "--budget", "0"], "--budget"),
        ([*DECIDE, "--budget", "many"], "--budget"),
        ([*DECIDE, "--temperature", "1"], "No such option"),
    ],
    ids=str,
)
def test_a_command_that_cannot_be_read_is_exit_2(dpm: Dpm, case: Path, args: list[str], why: str) -> None:
    result = dpm(*args)
    assert result.code == 2
    assert why in result.stderr
    if "--json" in args:
        assert why.removeprefix("--") in result.error["message"]
    else:
        assert result.stdout == ""
    assert log_state(case / "dpm.sqlite") == []


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["decide", "missing.jsonl", "--task", "task.yaml", "--json"], "missing.jsonl: no such file"),
        (["decide", ".", "--task", "task.yaml", "--json"], "cannot be read"),
        (["decide", "events.jsonl", "--task", "missing.yaml", "--json"], "missing.yaml: no such file"),
        ([*DECIDE, "--config", "missing.yaml"], "missing.yaml"),
        ([*DECIDE, "--tenant", ""], "tenant id"),
        ([*DECIDE, "--tenant", "a\nb"], "tenant id"),
        ([*DECIDE, "--case", "audit"], "audit"),
        (["log", "append", "events.jsonl", "--case", "audit", "--json"], "audit"),
        (["log", "verify", "--json"], "no log dpm.sqlite"),
        (["log", "show", "--json"], "no log dpm.sqlite"),
        (["log", "head", "--json"], "no log dpm.sqlite"),
        (["replay", "0123abcd", "--json"], "no log dpm.sqlite"),
    ],
    ids=str,
)
def test_a_request_that_cannot_be_met_is_exit_2_and_writes_nothing(
    dpm: Dpm, case: Path, args: list[str], why: str
) -> None:
    result = dpm(*args)
    assert result.code == 2
    assert why in result.error["message"]
    assert f"error: {result.error['message']}" in result.stderr
    assert log_state(case / "dpm.sqlite") == []


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["replay", "0123456789abcdef", "--json"], "no record has an id that starts with 0123456789abcdef"),
        (["replay", "LN-7", "--json"], "hex digits"),
        (["replay", "abc", "--json"], "hex digits"),
        (["log", "verify", "--case", "LN-9", "--json"], "no stream of tenant any, case LN-9"),
        (["log", "verify", "--expected-head", "head", "--json"], "64 hex digits"),
        (["log", "show", "--json"], "several streams"),
    ],
    ids=str,
)
def test_what_is_not_in_the_log_is_exit_2(dpm: Dpm, decided: Path, args: list[str], why: str) -> None:
    result = dpm(*args)
    assert result.code == 2
    assert why in result.error["message"]


def test_an_unknown_level_or_engine_is_exit_2(dpm: Dpm, decided: Path, record_id: str) -> None:
    assert "R0, R1, R2, R3" in dpm("replay", record_id, "--level", "R4", "--json").error["message"]
    result = dpm("replay", record_id, "--engine", "gpt", "--json")
    assert (result.code, result.error["type"]) == (2, "ConfigurationError")
    assert "vllm, transformers, scripted" in result.error["message"]


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_a_model_that_was_not_fetched_says_how_to_fetch_it(dpm: Dpm, case: Path, engine: str) -> None:
    result = dpm(*DECIDE[:4], "--engine", engine, "--json")
    assert (result.code, result.error["type"]) == (2, "NotFoundError")
    assert "dpm weights pull smollm2-135m-instruct" in result.error["message"]


def test_a_configuration_with_an_unknown_key_is_exit_2_with_its_line(dpm: Dpm, case: Path) -> None:
    text = (ROOT / "gpu_configs" / "cpu.yaml").read_text(encoding="utf-8")
    (case / "gpu.yaml").write_text(text + "temperature: 1.0\n", encoding="utf-8")
    result = dpm(*DECIDE, "--config", "gpu.yaml")
    assert (result.code, result.error["fields"]["line"]) == (2, text.count("\n") + 1)
    assert "temperature" in result.error["message"]
    assert log_state(case / "dpm.sqlite") == []


# Bad events: nothing of the batch is written


GOOD_LINE = '{"type": "note", "time": null, "text": "a line that is well formed"}\n'
BAD_EVENTS: dict[str, tuple[str, int, str]] = {
    "invalid JSON": (GOOD_LINE + '{"type": "note", \n', 2, "invalid JSON"),
    "an empty file": ("", 1, "no events"),
    "blank lines only": ("\n\n  \n", 1, "no events"),
    "no text": (GOOD_LINE * 2 + '{"type": "note"}\n', 3, "no text"),
    "an empty text": (GOOD_LINE + '{"type": "note", "text": " \\n "}\n', 2, "no text"),
    "an unknown key": (GOOD_LINE + '{"type": "note", "text": "x", "amount": 5}\n', 2, "would be lost"),
    "a number for a text": (GOOD_LINE + '{"type": "note", "text": 5}\n', 2, "must be a string"),
    "no object": (GOOD_LINE + '"text"\n', 2, "JSON object"),
    "a bad time": (GOOD_LINE + '{"type": "note", "text": "x", "time": "yesterday"}\n', 2, "RFC 3339"),
    "an unknown link": (
        GOOD_LINE + '{"type": "n", "text": "x", "links": [{"kind": "likes", "event_id": "a"}]}\n', 2, "link kind"
    ),
    "a duplicate id with other content": (
        '{"id": "a", "type": "n", "text": "x"}\n' + GOOD_LINE + '{"id": "a", "type": "n", "text": "y"}\n', 3, "line 1"
    ),
    "half a surrogate pair": (GOOD_LINE + '{"type": "note", "text": "\\ud800"}\n', 2, "surrogate"),
    "an event of 10 MB": (
        GOOD_LINE + '{"type": "note", "text": "' + "x" * 10_000_000 + '"}\n', 2, f"at most {MAX_EVENT_CHARS}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("command", ["log append", "decide"])
@pytest.mark.parametrize(("text", "line", "why"), BAD_EVENTS.values(), ids=BAD_EVENTS.keys())
def test_a_bad_event_is_refused_with_its_line_and_nothing_is_written(
    dpm: Dpm, case: Path, command: str, text: str, line: int, why: str
) -> None:
    (case / "bad.jsonl").write_text(text, encoding="utf-8")
    args = (
        ["log", "append", "bad.jsonl", "--json"] if command == "log append" else [DECIDE[0], "bad.jsonl", *DECIDE[2:]]
    )
    result = dpm(*args)
    assert (result.code, result.error["type"], result.error["fields"]["line"]) == (2, "EventError", line)
    assert why in result.error["message"]
    assert f"bad.jsonl, line {line}: " in result.error["message"]
    assert log_state(case / "dpm.sqlite") == []


def test_an_id_that_the_log_has_with_other_content_is_refused_with_its_line(dpm: Dpm, case: Path) -> None:
    dpm("log", "append", "events.jsonl")
    before = log_state(case / "dpm.sqlite")
    changed = [replace(SMALL_EVENTS[0], event_id="new"), replace(SMALL_EVENTS[1], text="Verified income $9.00.")]
    write_events(case / "more.jsonl", changed)
    result = dpm("log", "append", "more.jsonl", "--json")
    assert (result.code, result.error["fields"]["line"], result.error["fields"]["position"]) == (2, 2, 2)
    assert log_state(case / "dpm.sqlite") == before


def test_bytes_that_are_no_text_are_refused(dpm: Dpm, case: Path) -> None:
    (case / "bad.jsonl").write_bytes(GOOD_LINE.encode() + b"\xff\xfe\x00")
    result = dpm("log", "append", "bad.jsonl", "--json")
    assert (result.code, result.error["fields"]["line"]) == (2, 2)


@pytest.mark.parametrize("name", HOSTILE_TEXTS.keys())
def test_a_hostile_event_is_kept_decided_and_replayed(dpm: Dpm, case: Path, name: str) -> None:
    write_events(
        case / "events.jsonl", [*SMALL_EVENTS, replace(SMALL_EVENTS[0], event_id="h", text=HOSTILE_TEXTS[name])]
    )
    decided = dpm(*DECIDE)
    assert decided.code == 0
    assert dpm("replay", decided.document["record_id"], "--json").document["verdict"] == "PASS"
    shown = dpm("log", "show", "--case", "LN-7", "--json").document
    assert shown["events"][3]["text"] == HOSTILE_TEXTS[name]


def test_a_log_that_does_not_fit_says_how_much_it_needs(dpm: Dpm, case: Path) -> None:
    large = [replace(SMALL_EVENTS[0], event_id=f"e{n}", text=f"page {n} " + "x" * 200_000) for n in range(2)]
    write_events(case / "events.jsonl", large)
    result = dpm(*DECIDE)
    fields = result.error["fields"]
    assert (result.code, result.error["type"]) == (2, "PromptTooLongError")
    assert fields["num_tokens_needed"] > 400_000
    assert fields["num_tokens_available"] == ScriptedEngine().max_model_len
    assert [stream for stream, _, _ in log_state(case / "dpm.sqlite")] == ["default/LN-7"] * 2


def test_a_budget_below_the_mandatory_lines_says_the_least_that_works(dpm: Dpm, case: Path) -> None:
    result = dpm(*DECIDE, "--budget", "50")
    least = result.error["fields"]["min_budget_chars"]
    assert (result.code, result.error["type"]) == (2, "BudgetTooSmallError")
    assert str(least) in result.error["message"]
    assert dpm(*DECIDE, "--budget", least - 1).code == 2
    decided = dpm(*DECIDE, "--budget", least)
    assert decided.code == 0
    assert decided.document["view"]["num_chars"] <= least


BAD_TASKS: dict[str, tuple[bytes, bytes, str]] = {
    "an unknown type": (b"type: money", b"type: cash", "line 4: fields.0.type"),
    "two fields of one name": (b"{name: dti,", b"{name: income,", "line 5: fields.1.name: 'income' stands twice"),
    "no outcomes": (b"outcomes:", b"provision:", "outcomes: Field required"),
    "an unknown key": (b"policy:", b"polcy:", "polcy"),
    "a bad pattern": (b"\\d+\\.\\d+x", b"(", "line 7: fields.3.pattern"),
    "no YAML": (b"question: Decide", b"question: 'Decide", "not valid YAML"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "why"), BAD_TASKS.values(), ids=BAD_TASKS.keys())
def test_a_bad_task_is_refused_and_nothing_is_written(dpm: Dpm, case: Path, old: bytes, new: bytes, why: str) -> None:
    assert old in TASK_YAML
    (case / "task.yaml").write_bytes(TASK_YAML.replace(old, new, 1))
    result = dpm(*DECIDE)
    assert (result.code, result.error["type"]) == (2, "TaskError")
    assert why in result.error["message"]
    assert log_state(case / "dpm.sqlite") == []


# Damaged logs


@pytest.mark.parametrize("statements", EDITS.values(), ids=EDITS.keys())
def test_an_edited_file_does_not_hold_and_no_level_passes_on_it(
    dpm: Dpm, decided: Path, record_id: str, statements: list[str]
) -> None:
    edit(decided, *[f"{statement} AND case_id = 'LN-7'" if " WHERE " in statement else statement
                    for statement in statements])  # fmt: skip
    verified = dpm("log", "verify", "--tenant", "acme", "--case", "LN-7", "--json")
    assert (verified.code, verified.document["verdict"]) == (1, "DRIFT")
    assert verified.document["first_bad_position"] == 5
    replayed = dpm("replay", record_id, "--json")
    assert (replayed.code, replayed.document["verdict"]) == (1, "DRIFT")
    assert replayed.document["levels"] == {"R0": "DRIFT", "R1": None, "R2": None, "R3": None}
    assert replayed.document["first_divergence"]["index"] == 5
    assert replayed.document["first_divergence"]["what"] == "case stream chain"


def test_a_truncated_log_is_found_against_a_kept_head(dpm: Dpm, decided: Path, record_id: str) -> None:
    kept = dpm("log", "head", "--case", "LN-7", "--json").document["head"]
    edit(decided, "DELETE FROM entry WHERE case_id = 'LN-7' AND position > 10")
    for head in (kept, kept.upper(), f"12:{kept}"):
        verified = dpm("log", "verify", "--case", "LN-7", "--expected-head", head, "--json")
        assert (verified.code, verified.document["first_bad_position"]) == (1, 11)
    assert dpm("replay", record_id, "--level", "R0", "--json").document["first_divergence"]["index"] == 11


def test_a_flipped_byte_of_the_record_is_found(dpm: Dpm, decided: Path, record_id: str) -> None:
    edit(decided, "UPDATE entry SET payload = CAST(replace(CAST(payload AS TEXT), 'acme', 'acne') AS BLOB)"
                  " WHERE case_id = 'audit'")  # fmt: skip
    replayed = dpm("replay", record_id, "--json")
    assert (replayed.code, replayed.document["first_divergence"]["what"]) == (1, "audit stream chain")
    assert dpm("log", "verify", "--case", "audit", "--json").document["first_bad_position"] == 1


def test_a_damaged_page_is_drift_and_not_a_crash(dpm: Dpm, decided: Path, record_id: str) -> None:
    data = bytearray(decided.read_bytes())
    data[5000 : len(data) - 5000 : 97] = b"\x7f" * len(range(5000, len(data) - 5000, 97))
    decided.write_bytes(data)
    verified = dpm("log", "verify", "--json")
    assert verified.code == 1
    assert dpm("replay", record_id, "--level", "R0", "--json").code != 0


@pytest.mark.parametrize("content", [b"not a database", b"SQLite format 3\x00" + bytes(100)])
def test_a_file_that_is_no_log_is_exit_4_when_used_and_exit_1_when_verified(
    dpm: Dpm, case: Path, content: bytes
) -> None:
    (case / "dpm.sqlite").write_bytes(content)
    used = dpm("log", "append", "events.jsonl", "--json")
    assert (used.code, used.error["type"]) == (4, "StorageError")
    verified = dpm("log", "verify", "--json")
    assert (verified.code, verified.error["type"]) == (1, "VerificationError")
    assert (case / "dpm.sqlite").read_bytes() == content


@pytest.mark.parametrize("db", ["missing/dpm.sqlite", ".", "/proc/dpm.sqlite"])
def test_a_log_that_cannot_be_written_is_exit_4(dpm: Dpm, case: Path, db: str) -> None:
    result = dpm(*DECIDE, "--db", db)
    assert (result.code, result.error["type"]) == (4, "StorageError")


def test_a_full_disk_is_exit_4_and_keeps_what_was_there(dpm: Dpm, decided: Path, record_id: str) -> None:
    before = log_state(decided)
    write_events(decided.parent / "large.jsonl", make_events(4000, first=100))
    limit = decided.stat().st_size + 100_000
    command = [sys.executable, "-m", "service.cli", "log", "append", str(decided.parent / "large.jsonl"), "--tenant",
               "acme", "--db", str(decided), "--json"]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    assert json.loads(done.stdout)["error"]["type"] == "StorageError"
    assert log_state(decided) == before
    assert dpm("replay", record_id, "--json").document["verdict"] == "PASS"


def test_two_processes_that_append_at_once_get_each_event_in_once(dpm: Dpm, tmp_path: Path) -> None:
    events = make_events(600)
    parts = [write_events(tmp_path / "one.jsonl", events[:400]), write_events(tmp_path / "two.jsonl", events[200:])]
    command = [sys.executable, "-m", "service.cli", "log", "append"]
    db = tmp_path / "dpm.sqlite"
    processes = [
        subprocess.Popen([*command, str(part), "--db", str(db)], cwd=ROOT, stdout=subprocess.DEVNULL) for part in parts
    ]
    assert [process.wait() for process in processes] == [0, 0]
    verified = dpm("log", "verify", "--json").document
    assert (verified["verdict"], verified["num_entries"]) == ("PASS", 600)
    shown = dpm("log", "show", "--json").document["events"]
    assert sorted(event["event_id"] for event in shown) == sorted(event.event_id for event in events)


# Another engine


def test_a_replay_on_another_engine_is_incomparable_and_names_the_field(dpm: Dpm, case: Path) -> None:
    dpm("log", "append", "events.jsonl")
    with SqliteStore.open(case / "dpm.sqlite") as store:
        sealed = decide_case(
            store, Stream("default", "LN-7"), ScriptedEngine(max_model_len=100_000), parse_task(TASK_YAML), 1338,
            Profile(2), now=lambda: NOW, salt=counted_salt(),
        )  # fmt: skip
    result = dpm("replay", sealed.record_id, "--json")
    assert (result.code, result.document["verdict"]) == (3, "INCOMPARABLE")
    assert result.document["levels"] == {"R0": "PASS", "R1": "PASS", "R2": "INCOMPARABLE", "R3": None}
    assert "flags.max_model_len" in result.document["first_divergence"]["detail"]
    assert "flags.max_model_len" in dpm("replay", sealed.record_id).stdout
    assert dpm("replay", sealed.record_id, "--level", "R1", "--json").code == 0


def test_a_drift_is_exit_1_and_names_the_first_point(dpm: Dpm, case: Path) -> None:
    class Flipped(ScriptedEngine):
        """Says one letter otherwise, under the identity of the scripted engine."""

        def script(self, *args: Any) -> tuple[int, ...]:
            script = list(super().script(*args))
            rationale = bytes(script[:-1]).find(b"Rationale: ")
            if rationale >= 0:
                script[rationale + len("Rationale: ")] ^= 0x20  # a capital letter becomes a small one
            return tuple(script)

    dpm("log", "append", "events.jsonl")
    with SqliteStore.open(case / "dpm.sqlite") as store:
        sealed = decide_case(
            store, Stream("default", "LN-7"), Flipped(), parse_task(TASK_YAML), 1338, Profile(2),
            now=lambda: NOW, salt=counted_salt(),
        )  # fmt: skip
    result = dpm("replay", sealed.record_id, "--json")
    assert (result.code, result.document["verdict"]) == (1, "DRIFT")
    found = result.document["first_divergence"]
    assert (found["level"], found["what"], found["call"]) == ("R2", "token_ids", "decision")
    assert "first divergence: R2 token_ids of the decision call at" in dpm("replay", sealed.record_id).stdout


def test_a_log_may_be_moved_and_replayed_where_it_is(dpm: Dpm, decided: Path, record_id: str, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "log of May.db"
    moved.parent.mkdir()
    shutil.move(decided, moved)
    assert dpm("replay", record_id, "--db", moved, "--json").document["verdict"] == "PASS"
