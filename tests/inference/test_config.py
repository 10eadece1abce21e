"""The engine configuration: the shipped file, and every way a file can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from inference.config import EngineConfig, load_config
from projection.errors import ConfigurationError

ROOT = Path(__file__).parents[2]
CPU = ROOT / "gpu_configs" / "cpu.yaml"
TEXT = CPU.read_text(encoding="utf-8")


def refused(tmp_path: Path, text: str) -> ConfigurationError:
    path = tmp_path / "engine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_config(path)
    assert str(path) in caught.value.message
    return caught.value


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.split("\n"), 1) if part in line)


def edited(old: str, new: str) -> str:
    """The shipped file with one value replaced, its comments kept."""
    assert TEXT.count(old) == 1
    return TEXT.replace(old, new)


def test_the_shipped_configuration_is_the_deterministic_one() -> None:
    config = load_config(CPU)
    assert (config.dtype, config.max_model_len, config.num_threads, config.seed) == ("float32", 8192, 1, 0)
    assert (config.attention.invariant, config.attention.split_kv) == (True, False)
    assert config.projection.slot_candidates == 2


def test_every_value_of_the_shipped_configuration_gives_its_reason() -> None:
    values = [line for line in TEXT.splitlines() if not line.startswith("#") and ": " in line]
    assert len(values) >= 10
    assert all("  # " in line for line in values)


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        load_config(CPU).seed = 1  # type: ignore[misc]  # that is the point


def test_all_anchors_may_be_offered(tmp_path: Path) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text(edited("slot_candidates: 2", "slot_candidates: null"), encoding="utf-8")
    assert load_config(path).projection.slot_candidates is None


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("seed: 0", "sede: 0", "sede"),
        ("seed: 0", "seed: 0\ntemperature: 0", "temperature"),
        ("split_kv: false", "split_kv: false\n  flash: true", "attention.flash"),
        ("slot_candidates: 2", "slot_candidates: 2\n  k: 3", "projection.k"),
    ],
)
def test_an_unknown_key_is_named_with_its_line(tmp_path: Path, old: str, new: str, key: str) -> None:
    text = edited(old, new)
    error = refused(tmp_path, text)
    assert error.fields["key"] == key
    assert error.fields["line"] == line_of(text, key.rpartition(".")[2] + ":")
    assert f"unknown key '{key}'" in error.message


@pytest.mark.parametrize(
    "key", sorted(name for name, field in EngineConfig.model_fields.items() if field.is_required())
)
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    value = yaml.safe_load(TEXT)
    del value[key]
    error = refused(tmp_path, yaml.safe_dump(value))
    assert f"missing key '{key}'" in error.message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("dtype: float32", "dtype: bfloat16"),
        ("dtype: float32", "dtype: 32"),
        ("max_model_len: 8192", "max_model_len: 0"),
        ("max_model_len: 8192", "max_model_len: 8192.0"),
        ("max_model_len: 8192", 'max_model_len: "8192"'),
        ("max_num_seqs: 32", "max_num_seqs: -1"),
        ("num_threads: 1", "num_threads: yes"),
        ("kv_cache_gib: 2", "kv_cache_gib: 0"),
        ("kv_cache_gib: 2", "kv_cache_gib: .inf"),
        ("kv_cache_gib: 2", 'kv_cache_gib: "2"'),
        ("kv_cache_gib: 2", "kv_cache_gib: true"),
        ("seed: 0", "seed: -1"),
        ("seed: 0", "seed: null"),
        ("invariant: true", "invariant: 1"),
        ("split_kv: false", 'split_kv: "no"'),
        ("slot_candidates: 2", "slot_candidates: 0"),
        ("slot_candidates: 2", "slot_candidates: true"),
        ("model: smollm2-135m-instruct", 'model: ""'),
    ],
)
def test_a_wrong_value_is_named_with_its_line(tmp_path: Path, old: str, new: str) -> None:
    text = edited(old, new)
    error = refused(tmp_path, text)
    assert str(error.fields["key"]).rpartition(".")[2] == new.partition(":")[0]
    assert error.fields["line"] == line_of(text, new)


def test_invariant_attention_with_split_kv_is_a_contradiction(tmp_path: Path) -> None:
    text = edited("split_kv: false", "split_kv: true")
    error = refused(tmp_path, text)
    assert "split_kv: false" in error.message
    assert error.fields["line"] == line_of(text, "attention:")


def test_a_key_that_stands_twice_is_named_with_its_second_line(tmp_path: Path) -> None:
    error = refused(tmp_path, TEXT + "seed: 1\n")
    assert (error.fields["key"], error.fields["line"]) == ("seed", TEXT.count("\n") + 1)
    nested = edited("split_kv: false", "split_kv: false\n  invariant: false")
    assert refused(tmp_path, nested).fields["key"] == "invariant"


@pytest.mark.parametrize(
    "text", ["", "null", "7", "- model", "attention: [", "a: b: c", "\x00", "&a [*a]", "!!python/object:os.x {}"]
)
def test_what_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    refused(tmp_path, text)


def test_a_section_that_is_no_mapping_is_refused_with_its_line(tmp_path: Path) -> None:
    value = yaml.safe_load(TEXT)
    value["attention"] = "on"
    text = yaml.safe_dump(value)
    assert refused(tmp_path, text).fields["line"] == line_of(text, "attention:")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"absent\.yaml"):
        load_config(tmp_path / "absent.yaml")
    with pytest.raises(ConfigurationError):
        load_config(tmp_path)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "engine.yaml"
    path.write_bytes(b"model: \xff\xfe\n")
    with pytest.raises(ConfigurationError):
        load_config(path)


LONG = ROOT / "gpu_configs" / "cpu-16k.yaml"
ROPE = "rope_parameters: {rope_type: yarn, rope_theta: 100000.0, factor: 2.0, original_max_position_embeddings: 8192}"


def test_the_long_configuration_is_the_shipped_one_with_stretched_positions_and_one_candidate() -> None:
    long, shipped = load_config(LONG).model_dump(), load_config(CPU).model_dump()
    assert {key for key in long if long[key] != shipped[key]} == {
        "max_model_len",
        "rope_parameters",
        "kv_cache_gib",
        "projection",
    }
    rope = load_config(LONG).rope_parameters
    assert rope is not None
    assert rope.factor * rope.original_max_position_embeddings == long["max_model_len"]


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("yarn", "linear", "rope_type"),
        ("factor: 2.0", "factor: 1.0", "factor"),
        ("factor: 2.0", "factor: .nan", "factor"),
        ("rope_theta: 100000.0", "rope_theta: 0", "rope_theta"),
        ("8192", "0", "original_max_position_embeddings"),
        (", factor: 2.0", "", "factor"),
        ("factor", "strech: 1, factor", "strech"),
    ],
)
def test_a_wrong_stretch_of_positions_is_refused(tmp_path: Path, old: str, new: str, key: str) -> None:
    assert old in ROPE
    error = refused(tmp_path, f"{TEXT}\n{ROPE.replace(old, new)}\n")
    assert key in error.message
