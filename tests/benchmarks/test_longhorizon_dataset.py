"""Data sets on disk: written whole, held to their digests, proved again from their files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.longhorizon.case import Case, CaseError, ObligationError, parse_truth, truth_bytes
from benchmarks.longhorizon.dataset import FILES, case_files, read_case, read_dataset, verify_case, write_dataset
from benchmarks.longhorizon.generator import generate_case, generate_cases


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    directory = tmp_path / "out" / "claims"
    write_dataset(directory, generate_cases("claim", "small", count=2))
    return directory


def test_a_data_set_is_read_as_it_was_written_and_proved_from_its_files(dataset: Path) -> None:
    cases = read_dataset(dataset)
    assert list(cases) == list(generate_cases("claim", "small", count=2))
    for case in cases:
        assert verify_case(dataset / case.case_id) == case
    assert sorted(path.name for path in (dataset / cases[0].case_id).iterdir()) == sorted(FILES)


def test_the_truth_and_its_file_are_exact_inverses() -> None:
    truth = generate_case("prior_auth", "paper", 1, variant="reordered").truth
    assert parse_truth(truth_bytes(truth), "truth.json") == truth


def test_a_directory_that_holds_anything_is_refused_and_left_alone(dataset: Path) -> None:
    before = {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file()}
    with pytest.raises(CaseError, match="is not empty"):
        write_dataset(dataset, generate_cases("claim", "small", count=1))
    assert {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file()} == before


def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert write_dataset(tmp_path / "empty", [generate_case("claim", "small", 0)]).count == 1


def test_a_run_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def cases() -> Iterator[Case]:
        yield generate_case("claim", "small", 0)
        raise CaseError("the second case cannot be had")

    with pytest.raises(CaseError, match="second case"):
        write_dataset(tmp_path / "out", cases())
    assert list(tmp_path.iterdir()) == []


def test_a_changed_missing_or_added_file_is_found(dataset: Path) -> None:
    events = dataset / "claim-small-0000" / "events.jsonl"
    data = events.read_bytes()
    events.write_bytes(data.replace(b"2026", b"2027", 1))
    with pytest.raises(CaseError, match=r"events\.jsonl was changed"):
        read_dataset(dataset)
    events.unlink()
    with pytest.raises(CaseError, match=r"differ in: claim-small-0000/events\.jsonl"):
        read_dataset(dataset)
    events.write_bytes(data)
    (dataset / "claim-small-0000" / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(CaseError, match=r"differ in: claim-small-0000/notes\.txt"):
        read_dataset(dataset)


def test_a_manifest_that_is_none_is_told_in_one_line(dataset: Path) -> None:
    (dataset / "manifest.json").write_text("{}")
    with pytest.raises(CaseError, match=r"manifest of this version \(schema: Field required\)") as caught:
        read_dataset(dataset)
    assert "\n" not in caught.value.message


def test_a_case_that_is_edited_consistently_still_breaks_its_obligation(dataset: Path) -> None:
    """Truth and event agree, and the rules do not: nothing but the rules could find it."""
    directory = dataset / "claim-small-0001"
    case = read_case(directory)
    other = "PAY_IN_PART" if case.truth.outcome != "PAY_IN_PART" else "PAY_IN_FULL"
    truth = (directory / "truth.json").read_text(encoding="utf-8")
    changed = truth.replace(f'"outcome": "{case.truth.outcome}"', f'"outcome": "{other}"')
    (directory / "truth.json").write_text(changed, encoding="utf-8")
    with pytest.raises(ObligationError) as caught:
        verify_case(directory)
    assert caught.value.fields["obligation"] == "target"


def test_proofs_that_were_not_counted_so_are_found(dataset: Path) -> None:
    path = dataset / "claim-small-0000" / "truth.json"
    document = json.loads(path.read_bytes())
    document["proofs"]["distractors"] += 1
    path.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    with pytest.raises(ObligationError) as caught:
        verify_case(path.parent)
    assert caught.value.fields["obligation"] == "proofs"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"schema": "dpm/longhorizon-truth/v1"', '"schema": "dpm/longhorizon-truth/v9"', "schema"),
        ('"outcome":', '"verdict": 1, "outcome":', "members or a layout"),
        ('"margin": "', '"margin": "very ', "not a truth file"),
        ("{", "[", "not a truth file"),
    ],
)
def test_what_is_no_truth_file_is_refused(dataset: Path, old: str, new: str, says: str) -> None:
    path = dataset / "claim-small-0000" / "truth.json"
    path.write_text(path.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    with pytest.raises(CaseError, match=says):
        read_case(path.parent)


def test_events_files_are_cloud_events_with_the_case_as_subject() -> None:
    case = generate_case("mortgage", "small", 0)
    lines = [json.loads(line) for line in case_files(case)["events.jsonl"].splitlines()]
    assert {line["specversion"] for line in lines} == {"1.0"}
    assert {line["subject"] for line in lines} == {"mortgage-small-0000"}
    assert any(link["kind"] == "supersedes" for line in lines for link in line.get("links", []))
