"""`dpm replay --all` and the doctor's commands: one document on stdout, the right exit code, no option dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from projection.engine import EngineIdentity
from projection.entry import Stream
from projection.record import AuditRecord, parse_record
from projection.store_sqlite import SqliteStore
from tests.determinism.replay.sealed_log import near_tied, not_best, of_another_engine, scratch_record, seal_many
from tests.projection.decided import fill_case, seal, with_changes, with_content
from tests.projection.sqlite_edits import edit
from tests.service.conftest import Dpm

ALL = ("replay", "--all", "--engine", "scripted")


@pytest.fixture
def sealed(tmp_path: Path) -> SqliteStore:
    """A log with four records that hold, in the command's folder."""
    store = SqliteStore.open(tmp_path / "dpm.sqlite")
    fill_case(store)
    seal_many(store, scratch_record(store), 3)
    return store


def test_a_log_that_holds_is_summed_up(dpm: Dpm, sealed: SqliteStore) -> None:
    found = dpm(*ALL, "--json")
    assert found.code == 0
    assert found.document["verdicts"] == {"PASS": 4}
    assert found.document["drift_rate_upper_95"] == pytest.approx(1 - 0.05 ** (1 / 4))
    told = dpm(*ALL)
    assert (told.code, "PASS                4" in told.stdout) == (0, True)
    assert "52.713%" in told.stdout


def test_the_exit_code_tells_drift_incomparable_and_nothing(dpm: Dpm, sealed: SqliteStore) -> None:
    record = scratch_of(sealed)
    seal(sealed, of_another_engine(record))
    incomparable = dpm(*ALL)
    assert incomparable.code == 3
    assert "recorded tokens are its best allowed ones too" in incomparable.stdout
    seal(sealed, not_best(record))
    drifted = dpm(*ALL)
    assert (drifted.code, "R2 max_tokens" in drifted.stdout) == (1, True)
    assert dpm(*ALL, "--tenant", "nobody").code == 5


def scratch_of(store: SqliteStore) -> AuditRecord:
    """The record that the log begins with."""
    return parse_record(next(iter(store.entries(Stream("acme", "audit")))).text)


def test_a_run_is_continued_from_its_folder_alone(dpm: Dpm, sealed: SqliteStore, tmp_path: Path) -> None:
    first = dpm(*ALL, "--results", "runs", "--sample", "2", "--seed", "3", "--json")
    again = dpm("replay", "--resume", "runs", "--engine", "scripted", "--json")
    assert (first.code, again.code) == (0, 0)
    assert first.document == again.document


def test_a_log_that_was_changed_between_two_parts_of_a_run_drifts(
    dpm: Dpm, sealed: SqliteStore, tmp_path: Path
) -> None:
    assert dpm(*ALL, "--results", "runs").code == 0
    edit(
        tmp_path / "dpm.sqlite",
        "UPDATE entry SET payload = CAST('1.5%' AS BLOB) WHERE case_id != 'audit' AND position = 2",
    )
    again = dpm("replay", "--resume", "runs", "--engine", "scripted", "--json")
    assert (again.code, again.document["verdicts"]) == (1, {"DRIFT": 4})
    assert again.document["listed"][0]["first_divergence"]["what"] == "case stream chain"


def test_a_file_that_lost_its_triggers_does_not_hold_though_every_record_does(
    dpm: Dpm, sealed: SqliteStore, tmp_path: Path
) -> None:
    edit(tmp_path / "dpm.sqlite")
    verified, found = dpm("log", "verify", "--json"), dpm(*ALL, "--json")
    assert (found.code, found.document["exit_code"], found.document["verdicts"]) == (1, 1, {"PASS": 4})
    assert found.document["file_problem"] == verified.document["reason"]
    told = dpm(*ALL)
    assert (told.code, "DRIFT" in told.stdout, "triggers" in told.stdout) == (1, True, True)


REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "a sample of one record": (("replay", "0123abcd", "--sample", "2"), "--sample: it goes with --all"),
    "a plan for a run that has one": (("replay", "--resume", "runs", "--level", "R3"), "--level: a run that continues"),
    "a record and all": (("replay", "0123abcd", "--all"), "not both"),
    "neither": (("replay",), "name a record"),
    "no such level": (("replay", "--all", "--level", "R9"), "there is no level 'R9'"),
    "engines that are none": (("replay", "--all", "--engines", "two"), "takes one number, or addresses"),
    "servers and a kind": ((*ALL, "--engines", "http://127.0.0.1:1"), "leave --engine and --ray out"),
    "a time that is none": ((*ALL, "--since", "yesterday"), "RFC 3339"),
    "no such folder": (("replay", "--resume", "nowhere"), "there are no results"),
    "neither record nor cell": (("determinism", "explain"), "name a record; or a cell"),
    "a cell's own engine": (
        ("determinism", "explain", "--results", "r", "--cell", "x", "--engine", "scripted"),
        "--engine: a cell's engine is in its results folder",
    ),
    "a cell's own log": (
        ("determinism", "explain", "--results", "r", "--cell", "x", "--db", "dpm.sqlite"),
        "--db: a cell's engine is in its results folder",
    ),
    "a cell without results": (("determinism", "explain", "--cell", "x"), "name a record; or a cell"),
}


@pytest.mark.parametrize(("arguments", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_meant_is_refused(dpm: Dpm, sealed: SqliteStore, arguments: tuple[str, ...], said: str) -> None:
    found = dpm(*arguments)
    assert (found.code, found.stdout) == (2, "")
    assert said in found.stderr


def test_one_record_of_another_engine_comes_with_evidence(dpm: Dpm, sealed: SqliteStore) -> None:
    record_id = seal(sealed, of_another_engine(scratch_of(sealed)))
    found = dpm("replay", record_id, "--engine", "scripted", "--json")
    assert (found.code, found.document["verdict"]) == (3, "INCOMPARABLE")
    evidence = found.document["cross_identity"]
    assert evidence["num_agreeing"] == evidence["num_positions"] > 0
    told = dpm("replay", record_id, "--engine", "scripted")
    assert (told.code, "evidence and not a pass" in told.stdout) == (3, True)


def test_one_record_of_this_engine_has_no_such_evidence(
    dpm: Dpm,
    sealed: SqliteStore,
) -> None:
    record_id = seal(sealed, scratch_of(sealed))
    assert dpm("replay", record_id, "--json").document["cross_identity"] is None


def test_near_ties_are_listed_for_one_record_and_for_all(dpm: Dpm, sealed: SqliteStore) -> None:
    tied = seal(sealed, near_tied(scratch_of(sealed)))
    for found in (dpm("determinism", "near-ties", "--json"), dpm("determinism", "near-ties", tied, "--json")):
        assert found.code == 0
        (row,) = found.document["rows"]
        assert (row["record_id"], row["tie"]["index"], row["tie"]["margin_ulp"]) == (tied, 5, 1)
        assert (row["tie"]["before"], row["tie"]["text"]) == ("FACTS", "\n")
    assert r"'FACTS' then '\n'" in dpm("determinism", "near-ties").stdout


def test_explaining_what_replays_says_so(dpm: Dpm, sealed: SqliteStore) -> None:
    found = dpm("determinism", "explain", seal(sealed, scratch_of(sealed)))
    assert (found.code, "nothing to explain" in found.stdout) == (0, True)


def test_explaining_a_difference_shows_it_and_what_was_ruled_out(dpm: Dpm, sealed: SqliteStore) -> None:
    record_id = seal(sealed, near_tied(scratch_of(sealed)))
    told = dpm("determinism", "explain", record_id)
    assert told.code == 1
    assert "first other bit at token 5" in told.stdout
    assert r"recorded  '\n' (10), log-probability 0.0, margin 1.4013e-45 = 1 ULP" in told.stdout
    assert "cause not found" in told.stdout
    assert "ruled out: grammar\n" in told.stdout
    assert "could not be tried: batch neighbours: this engine does not say what ran together" in told.stdout
    document = dpm("determinism", "explain", record_id, "--json").document
    assert (document["verdict"], document["causes"]) == ("DRIFT", [])
    assert document["divergences"][0]["first"]["index"] == 5


def test_a_record_never_chooses_an_address(dpm: Dpm, sealed: SqliteStore) -> None:
    record = scratch_of(sealed)
    engine = record.engine | {"kind": "http://127.0.0.1:1"}
    forged = with_content(with_changes(record, engine=engine), engine_identity=EngineIdentity(engine).digest)
    record_id = seal(sealed, forged)
    explained = dpm("determinism", "explain", record_id)
    assert (explained.code, "name one of yours with --engine" in explained.stderr) == (2, True)
    assert dpm("determinism", "near-ties", record_id).code == 0
