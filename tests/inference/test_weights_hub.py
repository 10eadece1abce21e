"""Pulling a model from a hub: by its full revision only, without code and pickles, and once."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.weights import MANIFEST_NAME, pull_hub, verify
from projection.errors import RequestError
from tests.inference.model_directory import FILES, REVISION, contents

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "spec",
    [
        "hub:owner/name@main",
        "hub:owner/name@v1.0",
        "hub:owner/name@",
        f"hub:owner/name@{REVISION[:-1]}",
        f"hub:owner/name@{REVISION}0",
        f"hub:owner/name@{REVISION.upper()}",
        f"hub:owner/name@{REVISION}\n",
        f"hub:owner/name@refs/{REVISION}",
    ],
)
def test_a_revision_that_is_not_forty_hex_digits_is_refused(spec: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="40 lower-case hex"):
        pull_hub(spec, tmp_path / "weights" / "x")
    assert not (tmp_path / "weights").exists()


@pytest.mark.parametrize(
    "spec",
    ["", "owner/name", f"owner/name@{REVISION}", f"hub:@{REVISION}", f"hub:../x@{REVISION}", f"hub:a/b/c@{REVISION}"],
)
def test_a_malformed_hub_spec_is_refused(spec: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="is not of the form"):
        pull_hub(spec, tmp_path / "weights" / "x")


HUB_FILES = {
    **FILES,
    "model.safetensors": FILES["model.safetensors"],
    "modeling_evil.py": b"raise SystemExit('remote code ran')",
    "pytorch_model.bin": b"\x80\x04.",
    "README.md": b"# model",
}


class HubHandler(http.server.BaseHTTPRequestHandler):
    """The three answers of a model hub that a download needs, on the loopback interface."""

    files = HUB_FILES

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, with_body: bool) -> None:
        prefix = f"/owner/name/resolve/{REVISION}/"
        info = json.dumps(
            {"id": "owner/name", "sha": REVISION, "siblings": [{"rfilename": f} for f in self.files]}
        ).encode()
        tree = json.dumps(
            [
                {"type": "file", "path": f, "size": len(d), "oid": hashlib.sha1(d).hexdigest()}
                for f, d in self.files.items()
            ]
        ).encode()
        path = self.path.split("?")[0]
        if path == f"/api/models/owner/name/revision/{REVISION}":
            body = info
        elif path.startswith(f"/api/models/owner/name/tree/{REVISION}"):
            body = tree
        elif path.startswith(prefix) and path.removeprefix(prefix) in self.files:
            body = self.files[path.removeprefix(prefix)]
        else:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", REVISION)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class HubWithoutWeights(HubHandler):
    files = {name: data for name, data in HUB_FILES.items() if not name.endswith(".safetensors")}  # noqa: RUF012


@pytest.fixture
def hub(request: pytest.FixtureRequest) -> Iterator[str]:
    handler = getattr(request, "param", HubHandler)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


OFFLINE = ""
PULL = """
import sys
from pathlib import Path
from inference.weights import pull_hub
from projection.errors import DpmError
try:
    print(pull_hub(sys.argv[1], Path(sys.argv[2])).digest)
except DpmError as exc:
    sys.exit(f"{type(exc).__name__}: {exc}")
"""


def start_pull(endpoint: str, dest: Path, spec: str = f"hub:owner/name@{REVISION}") -> subprocess.Popen[str]:
    """In a process of its own: the library reads its endpoint from the environment when it is imported."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_TELEMETRY": "1"}
    environment |= {"HF_HUB_OFFLINE": "1"} if endpoint == OFFLINE else {}
    command = [sys.executable, "-c", PULL, spec, str(dest)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)


def run_pull(endpoint: str, dest: Path, spec: str = f"hub:owner/name@{REVISION}") -> tuple[int, str, str]:
    process = start_pull(endpoint, dest, spec)
    out, err = process.communicate()
    return process.returncode, out, err


def test_a_hub_revision_is_pulled_without_code_and_without_pickles(hub: str, tmp_path: Path) -> None:
    dest = tmp_path / "weights" / "name"
    code, out, err = run_pull(hub, dest)
    assert (code, err.splitlines()[-1:] if code else []) == (0, [])
    assert contents(dest).keys() == {*FILES, MANIFEST_NAME}
    manifest = verify(dest)
    assert (manifest.digest, manifest.source) == (out.strip(), f"hub:owner/name@{REVISION}")
    assert [path.name for path in dest.parent.iterdir() if path.name.startswith(".")] == []


def test_a_pulled_revision_is_left_alone_without_the_network(hub: str, tmp_path: Path) -> None:
    dest = tmp_path / "weights" / "name"
    assert run_pull(hub, dest)[0] == 0
    before = {path: path.stat().st_mtime_ns for path in dest.iterdir()}
    assert run_pull(OFFLINE, dest)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in dest.iterdir()} == before


def test_two_pulls_at_once_both_end_with_the_same_directory(hub: str, tmp_path: Path) -> None:
    dest = tmp_path / "weights" / "name"
    processes = [start_pull(hub, dest) for _ in range(2)]
    digests = {process.communicate()[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert digests == {verify(dest).digest}


@pytest.mark.parametrize("hub", [HubWithoutWeights], indirect=True)
def test_a_repository_without_safetensors_is_refused_and_leaves_nothing(hub: str, tmp_path: Path) -> None:
    dest = tmp_path / "weights" / "name"
    code, _, err = run_pull(hub, dest)
    assert code == 1
    assert err.splitlines()[-1].startswith("WeightsError") and "safetensors" in err
    assert list(dest.parent.iterdir()) == []


def test_an_unknown_revision_and_an_unreachable_hub_say_what_to_do(hub: str, tmp_path: Path) -> None:
    dest = tmp_path / "weights" / "name"
    for endpoint, spec in [(hub, f"hub:owner/name@{'0' * 40}"), (OFFLINE, f"hub:owner/name@{REVISION}")]:
        code, _, err = run_pull(endpoint, dest, spec)
        assert code == 1
        assert "EngineError" in err and "Check the network" in err
        assert list(dest.parent.iterdir()) == []
