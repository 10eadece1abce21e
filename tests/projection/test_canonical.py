"""Canonical bytes: RFC 8785's own vectors, and properties over generated JSON values."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from projection.canonical import (
    MAX_SAFE_INTEGER,
    canonical_bytes,
    canonical_string,
    sha256_hex,
    tagged_digest,
    value_digest,
)
from projection.errors import RequestError

STRINGS = st.text(st.characters(exclude_categories=["Cs"]))
SAFE_INTEGERS = st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
PLAIN_SCALARS = st.none() | st.booleans() | SAFE_INTEGERS | STRINGS
# Between 2**53 and 1e21 a float is written as an integer of its shortest digits, which Python then reads as an int.
FLOATS = st.floats(allow_nan=False, allow_infinity=False).filter(
    lambda number: not MAX_SAFE_INTEGER < abs(number) < 1e21
)
SCALARS = PLAIN_SCALARS | FLOATS


def json_values(scalars: st.SearchStrategy[Any], keys: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=20)


JSON_VALUES = json_values(SCALARS, STRINGS)

# RFC 8785, appendix B: IEEE 754 bits and their JSON form
NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items())
def test_a_number_has_the_form_of_rfc_8785_appendix_b(bits: str, text: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_bytes(number) == text.encode()


def test_the_example_of_rfc_8785_section_3_2_2_has_the_bytes_of_section_3_2_4() -> None:
    given_text = r"""{
        "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
        "literals": [null, true, false]
    }"""
    wanted = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        r'"string":"€$\u000f\nA' + "'" + r'B\"\\\\\"/"}'
    )
    assert canonical_bytes(json.loads(given_text)) == wanted.encode()


def test_keys_are_sorted_by_utf_16_code_units_as_in_rfc_8785_section_3_2_3() -> None:
    value = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    keys = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    assert list(json.loads(canonical_bytes(value))) == keys


@given(JSON_VALUES)
def test_reading_canonical_bytes_gives_the_value_back(value: Any) -> None:
    assert json.loads(canonical_bytes(value)) == value


@given(JSON_VALUES)
def test_canonical_bytes_of_what_was_read_are_the_same_bytes(value: Any) -> None:
    data = canonical_bytes(value)
    assert canonical_bytes(json.loads(data)) == data


@given(STRINGS)
def test_a_string_by_itself_has_the_form_it_has_inside_a_value(text: str) -> None:
    assert canonical_string(text).encode() == rfc8785.dumps(text)


@given(st.dictionaries(STRINGS, JSON_VALUES), st.randoms(use_true_random=False))
def test_the_order_in_which_keys_were_written_does_not_matter(value: dict[str, Any], shuffle: random.Random) -> None:
    items = list(value.items())
    shuffle.shuffle(items)
    assert canonical_bytes(dict(items)) == canonical_bytes(value)


@given(JSON_VALUES, JSON_VALUES)
def test_equal_bytes_mean_equal_values(first: Any, second: Any) -> None:
    if canonical_bytes(first) == canonical_bytes(second):
        assert first == second


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        MAX_SAFE_INTEGER + 1,
        -MAX_SAFE_INTEGER - 1,
        "\ud800",
        {"\udfff": 1},
        {1: "a key that is no string"},
        b"bytes",
        {"inside": [object()]},
        nested(100_000),
    ],
    ids=lambda value: repr(value)[:20] if not isinstance(value, list) else "nested too deep",
)
def test_a_value_without_a_canonical_form_is_refused(value: Any) -> None:
    with pytest.raises(RequestError):
        canonical_bytes(value)


def test_a_digest_is_sha_256_over_tag_zero_byte_and_parts() -> None:
    assert tagged_digest("tag", b"one", b"two") == sha256_hex(b"tag\0onetwo")
    assert value_digest("tag", {"b": 1, "a": 2}) == sha256_hex(b'tag\0{"a":2,"b":1}')


def test_bytes_of_one_kind_never_have_the_digest_of_another_kind() -> None:
    assert value_digest("dpm/a", "x") != value_digest("dpm/b", "x")
