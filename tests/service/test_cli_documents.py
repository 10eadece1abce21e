"""What the commands print: one JSON document with the keys of the contract, or text for people."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from inference.scripted_engine import ScriptedEngine
from projection.prompt import visible
from projection.task import parse_task
from tests.projection.cases import TASK_YAML
from tests.projection.hostile import HOSTILE_TEXTS
from tests.service.conftest import DECIDE, SMALL_EVENTS, Dpm, write_events


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
