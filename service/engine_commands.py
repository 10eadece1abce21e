"""`dpm engine show`."""

from __future__ import annotations

import typer

from inference import engines
from service import options
from service.console import out, print_json, step

app = typer.Typer(no_args_is_help=True)


@app.callback()
def engine() -> None:
    """The engine that runs the model."""


@app.command("show")
def show(engine: options.Engine = "vllm", config: options.Config = None, json: options.Json = False) -> None:
    """Start an engine and print its identity: everything that can change an output bit."""
    settings = engines.read_config(config)
    with step(f"starting engine {engine}"), engines.open_engine(engine, settings) as running:
        identity = running.identity
    if json:
        print_json({"engine_identity": identity.digest, "identity": dict(identity.fields)})
    else:
        out.print_json(data=dict(identity.fields))
        out.print(f"engine identity {identity.digest}", markup=False)
