"""The list of cases: what it takes, and that every other form is refused with the file's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from determinism.gate.cases import DEFAULT_BUDGET_CHARS, read_cases
from projection.errors import EventError, NotFoundError, RequestError, TaskError
from service.runtime import DEFAULT_BUDGET_CHARS as BUDGET_OF_DECIDE
from tests.determinism.gate.folder import write_cases
from tests.projection.cases import EVENTS, task


@pytest.fixture
def goldens(tmp_path: Path) -> Path:
    return write_cases(tmp_path)


def listed(goldens: Path, text: str) -> Path:
    (goldens / "cases.yaml").write_text(text, encoding="utf-8")
    return goldens


def test_cases_are_read_in_their_order_with_paths_from_the_list(goldens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    small, tight = read_cases(goldens)
    assert (small.name, tight.name) == ("small", "tight")
    assert [event.event.text for event in small.events] == [event.text for event in EVENTS]
    assert small.task == task()
    assert (small.budget_chars, tight.budget_chars) == (DEFAULT_BUDGET_CHARS, 900)
    assert small.skip is None


def test_the_budget_is_that_of_decide() -> None:
    assert DEFAULT_BUDGET_CHARS == BUDGET_OF_DECIDE


def test_an_empty_list_has_no_cases(goldens: Path) -> None:
    assert read_cases(listed(goldens, "cases: []")) == ()


ONE = "{name: a, events: ../small.jsonl, task: ../task.yaml"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "valid dictionary"),
        ("cases:", "valid list"),
        ("cases: [1]", r"cases\.0"),
        (f"cases: [{ONE}}}]\nmore: 1", "more: Extra inputs"),
        (f"cases: [{ONE}, budget: 3}}]", r"cases\.0\.budget: Extra inputs"),
        (f"cases: [{ONE}, budget_chars: '900'}}]", "budget_chars"),
        (f"cases: [{ONE}, budget_chars: 0}}]", "budget_chars"),
        (f"cases: [{ONE}, skip: ''}}]", "skip"),
        (r'cases: [{name: a, events: "a\0b", task: ../task.yaml}]', "case 'a': .* is no path"),
        (f"cases: [{ONE}, name: b}}]", "'name' stands twice"),
        (f"cases: [{ONE}}}, {ONE}}}]", "case 'a' stands twice"),
        ("cases: [{name: a, events: ../small.jsonl}]", r"task: Field required"),
        ("cases: [{name: ../a, events: ../small.jsonl, task: ../task.yaml}]", "cannot be called"),
        ("cases: &x [*x]", "aliases are not allowed"),
        ("cases: !!python/object:os.system {}", "YAML"),
        ("cases: [", "YAML"),
        ("\x00", "YAML"),
        ("[" * 5_000, "YAML"),
    ],
)
def test_another_form_is_refused_and_says_where(goldens: Path, text: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        read_cases(listed(goldens, text))


def test_a_folder_without_a_list_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"cases\.yaml: no such file.*docs/gate\.md"):
        read_cases(tmp_path)


def test_a_file_that_a_case_names_and_is_not_there_is_named(goldens: Path, tmp_path: Path) -> None:
    (tmp_path / "small.jsonl").unlink()
    with pytest.raises(NotFoundError, match=r"small\.jsonl: no such file"):
        read_cases(goldens)


def test_wrong_events_and_a_wrong_task_are_refused_with_their_line(goldens: Path, tmp_path: Path) -> None:
    events = (tmp_path / "small.jsonl").read_text(encoding="utf-8")
    (tmp_path / "small.jsonl").write_text(events + "{\n", encoding="utf-8")
    with pytest.raises(EventError) as wrong_event:
        read_cases(goldens)
    assert wrong_event.value.fields["line"] == 4
    (tmp_path / "small.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(RequestError):
        read_cases(goldens)
    (tmp_path / "small.jsonl").write_text(events, encoding="utf-8")
    (tmp_path / "task.yaml").write_text("question: why", encoding="utf-8")
    with pytest.raises(TaskError):
        read_cases(goldens)


def test_a_folder_where_a_file_should_be_is_wrong_use(goldens: Path, tmp_path: Path) -> None:
    (tmp_path / "task.yaml").unlink()
    (tmp_path / "task.yaml").mkdir()
    with pytest.raises(RequestError, match="cannot be read"):
        read_cases(goldens)
