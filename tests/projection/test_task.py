"""The task file: what it may say, and that an error names the line that has to change."""

from __future__ import annotations

import json

import pytest
import yaml

from projection.candidates import rank_candidates
from projection.errors import TaskError
from projection.task import MAX_TASK_BYTES, load_task, parse_task
from projection.view import verify_view
from tests.projection.cases import EVENTS, TASK_YAML, log_of, task

PLAIN = """\
question: Decide.
fields:
  - name: income
    type: money
    description: monthly income
  - name: ratio
    type: percent
    description: debt ratio
    pattern: '\\d+%'
outcomes:
  - name: PAY
    reasons: none
  - name: DENY
    reasons: required
reasons:
  - code: R01
    text: income insufficient
"""


def error_of(text: str | bytes) -> tuple[int | None, str]:
    """Line and message of the error that this task file meets."""
    with pytest.raises(TaskError) as caught:
        parse_task(text, "task.yaml")
    line = caught.value.fields["line"]
    assert line is None or isinstance(line, int)
    return line, caught.value.message


def test_a_task_is_read() -> None:
    read = parse_task(PLAIN)
    assert [(f.name, f.type, f.required, f.pattern) for f in read.fields] == [
        ("income", "money", True, None),
        ("ratio", "percent", True, r"\d+%"),
    ]
    assert [(o.name, o.reasons) for o in read.outcomes] == [("PAY", "none"), ("DENY", "required")]
    assert read.outcome("DENY") == read.outcomes[1]
    assert read.outcome("HOLD") is None


@pytest.mark.parametrize(
    ("old", "new", "line", "why"),
    [
        ("type: percent", "type: ratio", 7, "'money', 'percent', 'date'"),
        ("name: ratio", "name: income", 6, "'income' stands twice"),
        ("description: debt ratio", "description: monthly income", 8, "'monthly income' stands twice"),
        ("name: DENY", "name: PAY", 13, "'PAY' stands twice"),
        ("    pattern:", "    patern:", 9, "patern: Extra inputs"),
        ("    pattern:", "    pattern:\n      regex:", 9, "pattern: Input should be a valid string"),
        ("    pattern:", "    type:", 9, "key 'type' stands twice"),
        ("outcomes:\n", "outcomes: []\nother:\n", 10, "at least 1 item"),
        ("'\\d+%'", "'('", 9, "not a regular expression"),
        ("'\\d+%'", "'a)|(?:b'", 9, "not a regular expression"),
        ("'\\d+%'", "'(?x)a # b'", 9, "not a regular expression"),
        ("'\\d+%'", "''", 9, "at least 1 character"),
        ("question: Decide.", "question: ''", 1, "at least 1 character"),
        ("question: Decide.", "question: 7", 1, "valid string"),
        ("  - name: PAY\n", "  - name: pay\n", 11, "match pattern"),
        ("name: income", "name: Income", 3, "match pattern"),
        ("monthly income", "'income: monthly'", 5, "match pattern"),
        ("monthly income", "'income [1]'", 5, "match pattern"),
        ("code: R01", "code: 'R01 [L1]'", 16, "match pattern"),
        ("reasons: none", "reasons: never", 12, "'none', 'optional' or 'required'"),
        ("name: PAY", "name: NO", 11, "put quotes around the word"),
        ("reasons:\n  - code: R01\n    text: income insufficient\n", "", 14, "requires reasons"),
        ("question: Decide.", "question: &q Decide.\npolicy: *q", 2, "aliases are not allowed"),
        ("question: Decide.", "<<: {question: Decide.}", 1, "a key must be a plain word"),
        ("question: Decide.", "? [question]\n: Decide.", 1, "a key must be a plain word"),
        ("question: Decide.", "question: !!python/name:os.system Decide.", 1, "YAML tags"),
        ("question: Decide.", "question: 'Decide.", 9, "not valid YAML"),
        ("question: Decide.", "question: Decide.\n---", 2, "another document"),
    ],
)  # fmt: skip
def test_a_task_that_cannot_be_used_is_refused_with_its_line(old: str, new: str, line: int, why: str) -> None:
    assert old in PLAIN
    found, message = error_of(PLAIN.replace(old, new, 1))
    assert why in message
    assert found == line
    assert f"line {line}" in message


def test_a_missing_part_is_named_where_it_should_stand() -> None:
    assert error_of(PLAIN.replace("    type: percent\n", "")) == (6, "task.yaml, line 6: fields.1.type: Field required")
    assert error_of(PLAIN.partition("outcomes:")[0]) == (1, "task.yaml, line 1: outcomes: Field required")


def test_every_problem_is_reported_at_once() -> None:
    line, message = error_of(PLAIN.replace("type: money", "type: cash").replace("reasons: none", "reasons: never"))
    assert line == 4
    assert [row.split(": ")[0] for row in message.splitlines()] == ["task.yaml, line 4", "task.yaml, line 12"]


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "---\n", "- a list\n", "a word", "{"])
def test_what_is_no_task_at_all_is_refused(text: str) -> None:
    error_of(text)


@pytest.mark.parametrize("nested", ["[" * 100_000, '{"a":' * 50_000, "- " * 50_000, "? " * 50_000])
def test_a_task_that_nests_without_end_is_refused_at_once(nested: str) -> None:
    line, message = error_of(nested)
    assert line == 1
    assert "deep" in message


def test_bytes_that_are_not_utf_8_are_refused_with_their_line() -> None:
    assert error_of(PLAIN.encode() + b"# \xff") == (18, "task.yaml: not UTF-8 at byte 307")


def test_a_file_beyond_the_limit_is_refused() -> None:
    assert "bytes" in error_of(PLAIN + "#" * MAX_TASK_BYTES)[1]


def test_json_is_a_task_too() -> None:
    value = yaml.safe_load(PLAIN)
    for text in (json.dumps(value), json.dumps(value, indent=2), json.dumps(value, indent="\t")):
        assert parse_task(text).digest == parse_task(PLAIN).digest
    assert parse_task(json.dumps(value | {"policy": "\U0001f600 \t"})).policy == "\U0001f600 \t"


def test_lines_of_a_json_task_are_right() -> None:
    text = json.dumps(yaml.safe_load(PLAIN), indent="\t")
    for old, new in (('"percent"', '"cash"'), ('"name": "ratio"', '"name": "ratio",\n"name": "other"')):
        changed = text.replace(old, new)
        assert error_of(changed)[0] == 1 + changed[: changed.index(new.splitlines()[-1])].count("\n")


def test_the_layout_does_not_change_the_digest() -> None:
    value = yaml.safe_load(TASK_YAML)
    layouts: list[bytes | str] = [
        yaml.safe_dump(value, sort_keys=True),
        yaml.safe_dump(value, default_flow_style=True, width=40),
        json.dumps(value),
        "\ufeff# a comment\n".encode() + TASK_YAML,
        TASK_YAML.replace(b"\n", b"\r\n"),
        TASK_YAML.replace(b"description: monthly income}", b"description: monthly income, required: true}"),
    ]
    assert {parse_task(layout).digest for layout in layouts} == {task().digest}


def test_outcomes_may_be_plain_words() -> None:
    short = parse_task(PLAIN.replace("  - name: PAY\n    reasons: none\n", "  - PAY\n"))
    assert (short.outcomes[0].name, short.outcomes[0].reasons) == ("PAY", "optional")
    assert short.digest != parse_task(PLAIN).digest


@pytest.mark.parametrize(
    ("old", "new"),
    [("Decide.", "Decide!"), ("R01", "R02"), ("'\\d+%'", "'\\d%'"), ("reasons: none", "reasons: optional"),
     ("description: debt ratio", "description: debt ratio\n    required: false")],
)  # fmt: skip
def test_every_part_of_a_task_is_in_its_digest(old: str, new: str) -> None:
    assert parse_task(PLAIN.replace(old, new, 1)).digest != parse_task(PLAIN).digest


def test_a_task_reads_back_from_its_json_form() -> None:
    again = load_task(task().model_dump(mode="json"))
    assert again == task()
    assert again.digest == task().digest


def test_parties_are_in_the_digest_and_a_task_without_them_keeps_its_own() -> None:
    named = parse_task(PLAIN + "party_statements: [email]\n")
    assert named.digest != parse_task(PLAIN).digest
    assert named.model_dump(mode="json")["party_statements"] == ["email"]
    assert parse_task(PLAIN + "party_statements: []\n").digest == parse_task(PLAIN).digest
    assert "party_statements" not in parse_task(PLAIN).model_dump(mode="json")


@pytest.mark.parametrize("wrong", ["[email, email]", "['']", "email", '["a\\nb"]', "[1]"])
def test_wrong_party_statements_are_refused(wrong: str) -> None:
    with pytest.raises(TaskError, match="party_statements"):
        parse_task(PLAIN + f"party_statements: {wrong}\n")


CATASTROPHIC = PLAIN.replace("'\\d+%'", "'(?:a|aa)+$'")


def test_a_catastrophic_pattern_is_refused_with_the_event_it_fails_on() -> None:
    """It is a valid expression; what it does shows on a text only."""
    hostile = log_of("short", "a" * 5000 + "!")
    with pytest.raises(TaskError, match=r"over 1.0 s on event \[2\]") as caught:
        rank_candidates(hostile, parse_task(CATASTROPHIC), 2)
    assert caught.value.fields["position"] == 2


def test_a_pattern_cannot_reach_beyond_what_stands_alone() -> None:
    wide = parse_task(PLAIN.replace("'\\d+%'", r"'(?s).*|\d'"))
    candidates = rank_candidates(EVENTS, wide, None)["ratio"]
    assert all("\n" not in c.value and len(c.value) <= 80 and c.value.isprintable() for c in candidates)
    view = "FACTS\n- monthly income: unknown\n- debt ratio: unknown\nREASONING\nCOMPLIANCE\n"
    assert [fact.value for fact in verify_view(view, EVENTS, wide, 1000).facts] == [None, None]
