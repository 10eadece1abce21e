"""`dpm bench judge` and `rescore` as a person types them: what they print, and how they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reporting.journal import FILE_NAME
from tests.service.conftest import Dpm

ANSWERS = ("--results", "q", "--cases", "small")
SCRIPTED = ("--engine", "scripted", "--json")


@pytest.fixture
def scored(dpm: Dpm) -> Dpm:
    """Two cases, answered by two architectures."""
    assert dpm("bench", "generate", "--domain", "claim", "--size", "small", "--count", 2, "--out", "small").code == 0
    names = ("--architectures", "dpm,retrieval", "--ratios", "5")
    assert dpm("bench", "quality", "--cases", "small", "--out", "q", *names, *SCRIPTED).code == 0
    return dpm


def test_a_judge_is_heard_replayed_and_reported(scored: Dpm) -> None:
    heard = scored("bench", "judge", *ANSWERS, "--out", "j", *SCRIPTED)
    assert heard.code == 0, heard.stderr
    lines = [(line["architecture"], line["num_judged"]) for line in heard.document["lines"]]
    assert lines == [("control", 2), ("dpm", 2), ("retrieval", 2)]
    again = scored("bench", "judge", *ANSWERS, "--out", "j", "--replay", *SCRIPTED)
    assert (again.code, again.document["verdict"], again.document["num_same"]) == (0, "PASS", 6)
    assert scored("bench", "report", "--results", "q", "--results", "j", "--out", "r", "--json").code == 0


def test_a_judgement_that_was_changed_by_hand_is_drift(scored: Dpm) -> None:
    assert scored("bench", "judge", *ANSWERS, "--out", "j", *SCRIPTED).code == 0
    path = Path("j") / FILE_NAME
    text = path.read_text()
    assert "2: no" in text
    path.write_text(text.replace("2: no", "2: yes"))
    changed = scored("bench", "judge", *ANSWERS, "--out", "j", "--replay", *SCRIPTED)
    assert (changed.code, changed.document["verdict"]) == (1, "DRIFT")


def test_rows_are_scored_again_and_nothing_else_is_taken(scored: Dpm) -> None:
    found = scored("bench", "rescore", *ANSWERS, "--out", "again", "--json")
    assert found.code == 0, found.stderr
    assert set(found.document["num_changed"].values()) == {0}
    assert scored("bench", "rescore", *ANSWERS, "--out", "q", "--json").code == 2
    assert scored("bench", "rescore", "--results", "small", "--cases", "small", "--out", "x", "--json").code == 2


def test_a_score_that_was_changed_by_hand_is_one_and_a_score_that_is_new_is_not(scored: Dpm) -> None:
    path = Path("q") / FILE_NAME
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    del lines[1]["row"]["scores"]["frp_memo"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    added = scored("bench", "rescore", *ANSWERS, "--out", "added", "--json")
    assert (added.code, added.document["num_added"]["frp_memo"]) == (0, 1)
    score = lines[1]["row"]["scores"]["eda"]
    lines[1]["row"]["scores"]["eda"] = "0" if score == "1" else "1"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    changed = scored("bench", "rescore", *ANSWERS, "--out", "changed", "--json")
    assert (changed.code, changed.document["num_changed"]["eda"]) == (1, 1)


@pytest.mark.parametrize("damage", [{"rcs_judge": True}, {"rcs": 1e999}, {"ratio": "1/0"}, {"call": {}}, {"call": 5}])
def test_a_judgement_that_nobody_writes_is_named(scored: Dpm, damage: dict[str, object]) -> None:
    assert scored("bench", "judge", *ANSWERS, "--out", "j", *SCRIPTED).code == 0
    path = Path("j") / FILE_NAME
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["row"].update(damage)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    replayed = scored("bench", "judge", *ANSWERS, "--out", "j", "--replay", *SCRIPTED)
    reported = scored("bench", "report", "--results", "j", "--out", "r")
    assert (replayed.code, reported.code) == (2, 2)
    assert all(f"judgement {lines[1]['key']!r}" in " ".join(said.stderr.split()) for said in (replayed, reported))
