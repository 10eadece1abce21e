"""What an engine identity holds, and what it must never hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.identity import (
    environment_fields,
    library_versions,
    processor_fields,
    source_digests,
    weights_fields,
)
from inference.manifest import Manifest, PinnedFile
from inference.vllm_identity import read_gpus
from projection.canonical import canonical_bytes, sha256_hex
from projection.errors import ConfigurationError


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "VLLM_CPU_ATTN_SPLIT_KV", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA"])
def test_a_variable_that_can_change_a_bit_is_in_it(name: str) -> None:
    assert environment_fields({name: "1"}) == {name: "1"}


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "HOME",
        "VLLM_API_KEY",
        "VLLM_LOGGING_LEVEL",
        "VLLM_CACHE_ROOT",
        "VLLM_CONFIG_ROOT",
        "VLLM_HOST_IP",
        "VLLM_PORT",
        "VLLM_NO_USAGE_STATS",
        "VLLM_DIST_IDENT",
        "ONEDNN_VERBOSE",
        "HF_TOKEN",
        "LD_PRELOAD",
    ],
)
def test_secrets_places_and_talk_are_not_in_it(name: str) -> None:
    value = "" if name == "LD_PRELOAD" else "x"
    assert environment_fields({name: value}) == {}


def test_a_name_that_only_looks_silent_is_in_it() -> None:
    names = ["VLLM_MAX_TOKENS_PER_EXPERT", "VLLM_LOGITS_DTYPE", "VLLM_SUPPORT_X"]
    assert list(environment_fields(dict.fromkeys(names, "1"))) == sorted(names)


def test_a_path_shows_as_its_digest_and_a_preloaded_library_by_its_name() -> None:
    fields = environment_fields({"VLLM_X": "/home/someone/x", "LD_PRELOAD": "/opt/a/libiomp5.so:/b/libtcmalloc.so.4"})
    assert fields == {
        "LD_PRELOAD": "libiomp5.so:libtcmalloc.so.4",
        "VLLM_X": f"sha256:{sha256_hex(b'/home/someone/x')}",
    }


def test_the_order_of_the_environment_does_not_count() -> None:
    one, two = {"OMP_A": "1", "MKL_B": "2"}, {"MKL_B": "2", "OMP_A": "1"}
    assert canonical_bytes(environment_fields(one)) == canonical_bytes(environment_fields(two))


def test_every_file_but_the_tensors_is_named_and_the_tensors_count_through_the_manifest() -> None:
    def manifest(digit: str) -> Manifest:
        names = ("chat_template.jinja", "model.safetensors", "tokenizer.json")
        return Manifest(
            source="test",
            files=tuple(PinnedFile(name=n, sha256=digit * 64, size=1, xxh3_128="0" * 32) for n in names),
        )

    fields = weights_fields(manifest("a"))
    assert fields["files"] == {"chat_template.jinja": "a" * 64, "tokenizer.json": "a" * 64}
    assert fields["manifest_digest"] != weights_fields(manifest("b"))["manifest_digest"]


def test_a_library_is_named_as_it_is_installed() -> None:
    assert list(library_versions(["no-such-library|pytest", "pydantic"])) == ["pydantic", "pytest"]
    with pytest.raises(ConfigurationError, match="no-such-library or none-such"):
        library_versions(["no-such-library|none-such"])


def test_the_processor_is_a_canonical_value_and_the_same_each_time() -> None:
    fields = processor_fields()
    assert canonical_bytes(fields) == canonical_bytes(processor_fields())
    assert set(fields["instruction_sets"]) <= set(Path("/proc/cpuinfo").read_text().split())
    assert "avx2" in fields["instruction_sets"] or fields["machine"] != "x86_64"


@pytest.mark.parametrize(
    ("listed", "why"),
    [("echo 'NVIDIA H200, 9.0, 570.1'; echo 'NVIDIA L4, 8.9, 570.1'", "several kinds \\(NVIDIA H200, 9.0.*; NVIDIA L4"),
     ("echo 'no devices' >&2; exit 6", "no GPU that nvidia-smi can see")],
)  # fmt: skip
def test_gpus_that_an_identity_could_not_tell_apart_are_refused(
    listed: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{listed}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=why):
        read_gpus()


def test_a_plugin_is_its_source(tmp_path: Path) -> None:
    for name in ("b.py", "a.py"):
        (tmp_path / name).write_text(name)
    assert source_digests(list(tmp_path.iterdir())) == {"a.py": sha256_hex(b"a.py"), "b.py": sha256_hex(b"b.py")}
