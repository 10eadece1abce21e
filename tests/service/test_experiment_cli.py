"""`dpm bench quality, cost, scaling, report` and `dpm tams`, as a person types them, on the scripted engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.conftest import Dpm

SCRIPTED = ("--engine", "scripted", "--json")
TWO = ("--architectures", "dpm,retrieval")


@pytest.fixture
def small(dpm: Dpm) -> Path:
    """A data set of two small mortgage cases in the current folder."""
    made = dpm("bench", "generate", "--domain", "mortgage", "--size", "small", "--count", 2, "--out", "small")
    assert made.code == 0, made.stderr
    return Path("small")


def test_from_cases_to_a_report(dpm: Dpm, small: Path) -> None:
    scored = dpm("bench", "quality", "--cases", small, "--out", "q", "--ratios", "1000,5,2", *TWO, *SCRIPTED)
    assert scored.code == 0, scored.stderr
    assert (scored.document["num_rows"], scored.document["statuses"]) == (12, {"scored": 10, "refused": 2})
    assert scored.document["tables"][0]["columns"][:3] == ["architecture", "ratio", "budget"]
    assert "BudgetTooSmallError" in scored.stderr
    assert dpm("bench", "cost", "--cases", small, "--out", "c", "--ratios", 2, *TWO, *SCRIPTED).code == 0
    assert dpm("bench", "scaling", "--cases", small, "--out", "s", "--events", "2,4", *TWO, *SCRIPTED).code == 0
    told = dpm("bench", "report", "--results", "q", "--results", "c", "--results", "s", "--out", "r", "--json")
    assert told.code == 0, told.stderr
    assert all(Path(path).stat().st_size > 1_000 for path in told.document["written"])


def test_the_seconds_of_every_ratio_and_length_are_those_of_a_fresh_engine(dpm: Dpm, small: Path) -> None:
    by_ratio = dpm("bench", "cost", "--cases", small, "--out", "c", "--ratios", "5,2", *TWO, *SCRIPTED)
    assert by_ratio.stderr.count("starting engine scripted") == 2
    by_length = dpm("bench", "scaling", "--cases", small, "--out", "s", "--events", "4,2,6", *TWO, *SCRIPTED)
    assert by_length.stderr.count("starting engine scripted") == 3
    assert (by_length.document["num_rows"], by_length.stderr.count("scaling 4 events: 0.0% was done")) == (6, 1)


def test_a_table_for_people_is_whole_at_any_width(dpm: Dpm, small: Path) -> None:
    said = dpm(
        "bench", "quality", "--cases", small, "--count", 1, "--out", "q", "--ratios", "5", "--engine", "scripted"
    )
    assert said.code == 0
    lines = said.stdout.splitlines()
    assert lines[1].startswith("architecture ") and lines[1].endswith(" CRR")
    assert any(line.startswith("summarize_every_event") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--architectures", "dpm,mind_reading"), "no memory architecture 'mind_reading'"),
        (("--architectures", ","), "names nothing"),
        (("--ratios", "twenty"), "no list of ratios"),
        (("--ratios", "0"), "more than 0"),
        (("--ratios", "1/0"), "no list of ratios"),
        (("--ratios", "1e999"), "no list of ratios"),
        (("--ratios", "9" * 400), "no list of ratios"),
        (("--ratios", "0.000001"), "the most is 10,000,000"),
    ],
)
def test_wrong_use_is_two_and_says_what(dpm: Dpm, small: Path, arguments: tuple[str, str], message: str) -> None:
    refused = dpm("bench", "quality", "--cases", small, "--out", "q", *arguments, *SCRIPTED)
    assert refused.code == 2
    assert message in refused.stderr
    assert not Path("q").exists()


def test_a_changed_case_is_refused(dpm: Dpm, small: Path) -> None:
    truth = next(small.glob("*/truth.json"))
    truth.write_text(truth.read_text().replace('"outcome": "', '"outcome": "X'))
    refused = dpm("bench", "quality", "--cases", small, "--out", "q", *SCRIPTED)
    assert refused.code == 2
    assert "was changed since it was generated" in refused.stderr


def test_results_of_another_experiment_are_refused(dpm: Dpm, small: Path) -> None:
    assert dpm("bench", "cost", "--cases", small, "--out", "q", "--ratios", 2, *TWO, *SCRIPTED).code == 0
    refused = dpm("bench", "quality", "--cases", small, "--out", "q", *TWO, *SCRIPTED)
    assert refused.code == 2
    assert "dpm.bench.cost" in refused.stderr


def test_a_report_of_nothing_is_two(dpm: Dpm) -> None:
    assert dpm("bench", "report", "--results", "nowhere", "--out", "r").code == 2


@pytest.mark.parametrize("option", ["--usd-prompt", "--usd-completion"])
@pytest.mark.parametrize("price", ["inf", "nan", "-1"])
def test_a_price_is_a_number_that_can_be_paid(dpm: Dpm, option: str, price: str) -> None:
    refused = dpm("bench", "report", "--results", "q", "--out", "r", option, price)
    assert refused.code == 2
    assert option in refused.stderr


def test_tams_names_its_branch_its_evidence_and_its_caveats(dpm: Dpm, small: Path) -> None:
    lengths = ("--trajectory-chars", 20_000, "--budget-chars", 4_000)
    assert dpm("tams", *lengths, "--json").document["branch"] == "either"
    assert dpm("tams", *lengths, "--needs-audit", "--json").document["choice"] == "dpm"
    assert dpm("bench", "quality", "--cases", small, "--out", "q", *SCRIPTED).code == 0
    said = dpm("tams", *lengths, "--results", "q")
    assert said.code == 0
    assert "q (small cases): 2 cases" in said.stdout
    assert said.stdout.count("caveat") == 3


def test_tams_refuses_lengths_that_are_none(dpm: Dpm) -> None:
    assert dpm("tams", "--trajectory-chars", 0, "--budget-chars", 10).code == 2
