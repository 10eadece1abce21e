"""A golden's bytes: every bit is kept, and every file that was cut, edited or made up is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from determinism.gate.cases import GateCase
from determinism.gate.golden import Golden, GoldenCall, check_case_name, parse_golden
from determinism.gate.run import observe
from determinism.surface import Surface
from inference.scripted_engine import ScriptedEngine
from projection.canonical import canonical_bytes, value_digest
from projection.errors import RequestError, VerificationError
from tests.determinism.gate.folder import PROFILE, AlteredEngine
from tests.projection.cases import EVENTS, task

CASE = GateCase("small", tuple(EVENTS), task())


@pytest.fixture(scope="module")
def golden() -> Golden:
    return observe(ScriptedEngine(), CASE, PROFILE)


def resealed(golden: Golden, **changes: Any) -> bytes:
    """A forger's golden: other members, and a digest over all of it that fits."""
    content = {**json.loads(golden.to_bytes()), **changes}
    del content["digest"]
    return canonical_bytes({**content, "digest": value_digest("dpm/golden/v1", content)})


def test_a_golden_is_the_same_after_it_was_written_and_read(golden: Golden) -> None:
    assert parse_golden(golden.to_bytes()) == golden
    assert parse_golden(golden.to_bytes()).digest == golden.digest


def test_the_same_case_on_the_same_engine_gives_the_same_bytes(golden: Golden) -> None:
    assert observe(ScriptedEngine(), CASE, PROFILE).to_bytes() == golden.to_bytes()


def test_a_golden_holds_what_the_case_must_say_again(golden: Golden) -> None:
    value = json.loads(golden.to_bytes())
    assert value["engine_identity"] == ScriptedEngine().identity.digest
    assert value["engine"]["flags"] == {"max_model_len": 262144}
    assert value["inputs"]["budget_chars"] == 1338
    assert len(value["inputs"]["events"]) == len(EVENTS)
    for call in ("projection", "decision"):
        assert value[call]["asked"].keys() == {"prompt_token_ids", "grammar_digest", "max_tokens"}
        answer = value[call]["answer"]
        assert len(answer["token_ids"]) == len(answer["logprobs"]) == len(answer["margins"]) > 0
        assert set(answer["logprobs"]) == {"0x0.0p+0"}


@settings(deadline=None)
@given(values=st.lists(st.floats(width=64, allow_nan=False), min_size=1, max_size=20))
def test_every_bit_of_a_log_probability_is_kept(golden: Golden, values: list[float]) -> None:
    answer = Surface.build(range(len(values)), "text", logprobs=values)
    call = GoldenCall(asked=golden.decision.asked, answer=answer)
    again = parse_golden(Golden.build("small", ScriptedEngine().identity, golden.inputs, call, call).to_bytes())
    read = [float.fromhex(text).hex() for text in again.projection.answer.logprobs]
    assert read == [value.hex() for value in values]


def test_a_changed_event_task_or_engine_gives_another_digest(golden: Golden) -> None:
    others = [
        observe(ScriptedEngine(), replace(CASE, name="other"), PROFILE),
        observe(ScriptedEngine(), replace(CASE, events=CASE.events[:2]), PROFILE),
        observe(ScriptedEngine(), replace(CASE, budget_chars=900), PROFILE),
        observe(AlteredEngine({"a": 1}), CASE, PROFILE),
        observe(AlteredEngine(margins=lambda old: (1.0, *old[1:])), CASE, PROFILE),
    ]
    assert len({golden.digest, *(other.digest for other in others)}) == 6


def test_an_engine_that_nothing_pins_has_no_golden() -> None:
    with pytest.raises(RequestError, match="nothing pins what it says"):
        observe(AlteredEngine({"kind": "unpinned"}), CASE, PROFILE)


def test_every_changed_byte_of_a_file_is_found(golden: Golden) -> None:
    data = bytearray(golden.to_bytes().rstrip())
    for place in range(0, len(data), 97):
        data[place] ^= 1
        with pytest.raises(VerificationError):
            parse_golden(bytes(data))
        data[place] ^= 1
    assert parse_golden(bytes(data)) == golden


@pytest.mark.parametrize("length", [0, 1, 100, -2])
def test_a_file_that_was_cut_is_refused(golden: Golden, length: int) -> None:
    with pytest.raises(VerificationError):
        parse_golden(golden.to_bytes()[:length])


@pytest.mark.parametrize(
    "data", [b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"format": "dpm/golden/v2"}', b"<html>"]
)
def test_a_file_of_something_else_is_refused(data: bytes) -> None:
    with pytest.raises(VerificationError):
        parse_golden(data)


def test_a_golden_that_is_laid_out_by_hand_is_refused(golden: Golden) -> None:
    with pytest.raises(VerificationError, match="not in canonical form"):
        parse_golden(json.dumps(json.loads(golden.to_bytes()), indent=2).encode())


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n"])
def test_another_end_of_the_line_is_no_fault(golden: Golden, end: bytes) -> None:
    assert parse_golden(golden.to_bytes().rstrip() + end) == golden


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"view_digest": "0" * 64}, "view_digest"),
        ({"decision_digest": "0" * 64}, "decision_digest"),
        ({"engine": {"kind": "other"}}, "engine_identity"),
        ({"more": 1}, "more"),
        ({"case": "../up"}, "case"),
    ],
)
def test_digests_inside_must_fit_even_where_the_outer_one_does(
    golden: Golden, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(VerificationError, match=named):
        parse_golden(resealed(golden, **changes))


def test_a_token_changed_behind_its_own_digest_is_found(golden: Golden) -> None:
    projection = json.loads(golden.to_bytes())["projection"]
    projection["answer"]["token_ids"][0] += 1
    with pytest.raises(VerificationError, match="surface"):
        parse_golden(resealed(golden, projection=projection))


@pytest.mark.parametrize("name", ["a", "LN-7", "0.x_y", "a" * 100])
def test_a_name_that_can_be_a_folder_is_taken(name: str) -> None:
    check_case_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".git", "a/b", "/etc", "a\\b", "a b", "é", "a\n", "-x", "a" * 101, "x\x00"]
)
def test_a_name_that_could_lead_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="a case cannot be called"):
        check_case_name(name)
