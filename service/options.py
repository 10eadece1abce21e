"""The options that commands share, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.runtime import DEFAULT_BUDGET_CHARS, DEFAULT_DB, DEFAULT_TENANT

MAX_BUDGET_CHARS = 10_000_000

Db = Annotated[Path, typer.Option("--db", help="The log: one SQLite file.")]
Tenant = Annotated[str, typer.Option("--tenant", help="Whose log it is.")]
AnyTenant = Annotated[str | None, typer.Option("--tenant", help="Only this tenant's streams.")]
Case = Annotated[
    str | None, typer.Option("--case", help="The case; by default the events' CloudEvents subject, or the file's name.")
]
AnyCase = Annotated[str | None, typer.Option("--case", help="Only this case's stream.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Engine = Annotated[
    str, typer.Option("--engine", help="vllm, transformers, a server's http:// address, or scripted (no model).")
]
Config = Annotated[Path | None, typer.Option("--config", help="Engine configuration; by default gpu_configs/cpu.yaml.")]
ExpectedIdentity = Annotated[
    str | None, typer.Option("--expect-identity", help="Refuse an engine of another identity than this digest.")
]
Budget = Annotated[
    int, typer.Option("--budget", help="Characters of the memory view, at most.", min=1, max=MAX_BUDGET_CHARS)
]
TaskFile = Annotated[Path, typer.Option("--task", help="Task specification, YAML or JSON.")]
EventsFile = Annotated[
    Path, typer.Argument(help="CloudEvents 1.0, or objects with type, time and text; JSON Lines or an array.")
]
RecordId = Annotated[str, typer.Argument(help="A record's id, or an unambiguous beginning of it.")]


def given_options(context: typer.Context) -> dict[str, str]:
    """What the command line itself gives: the name of each parameter, and its option as it is written."""
    given = {}
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            given[name] = parameter.opts[0]
    return given


__all__ = ["DEFAULT_BUDGET_CHARS", "DEFAULT_DB", "DEFAULT_TENANT"]
