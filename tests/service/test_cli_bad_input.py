"""Events, tasks and sizes that cannot be: refused with their place, and nothing of the batch is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inference.scripted_engine import ScriptedEngine
from projection.events import MAX_EVENT_CHARS
from tests.projection.cases import TASK_YAML
from tests.projection.hostile import HOSTILE_TEXTS
from tests.service.conftest import DECIDE, SMALL_EVENTS, Dpm, log_state, write_events

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
