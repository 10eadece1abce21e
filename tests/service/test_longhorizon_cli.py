"""`dpm bench generate`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.longhorizon.dataset import read_dataset
from tests.service.conftest import Dpm


def test_the_command_writes_a_data_set_and_says_so(dpm: Dpm, tmp_path: Path) -> None:
    asked = ("bench", "generate", "--domain", "prior_auth", "--size", "small", "--count", 2, "--out", "out", "--json")
    done = dpm(*asked)
    assert done.code == 0, done.stderr
    assert done.document["count"] == 2
    assert len(read_dataset(tmp_path / "out")) == 2
    again = dpm(*asked)
    assert again.code == 2
    assert "is not empty" in again.error["message"]


@pytest.mark.parametrize(
    ("domain", "size", "says"), [("tax", "small", "unknown domain 'tax'"), ("claim", "tiny", "unknown size 'tiny'")]
)
def test_the_command_refuses_an_unknown_domain_or_size(
    dpm: Dpm, tmp_path: Path, domain: str, size: str, says: str
) -> None:
    done = dpm("bench", "generate", "--domain", domain, "--size", size, "--out", "out", "--json")
    assert done.code == 2
    assert done.error["type"] == "CaseError"
    assert says in done.error["message"]
    assert not (tmp_path / "out").exists()
