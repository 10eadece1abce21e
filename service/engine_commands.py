"""`dpm engine show` and `dpm engine check`; `serve` and `enroll` are in `service.serve_commands`."""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.text import Text

from inference import checker, engines
from inference.config import EngineConfig
from inference.effective import collect
from inference.enrolment import load_enrolment
from inference.rule import Violation
from inference.server import server_identity
from projection.errors import ConfigurationError, WeightsError
from service import options, serve_commands
from service.console import VERDICT_STYLES, out, print_json, step

app = typer.Typer(no_args_is_help=True)
app.command("serve")(serve_commands.serve)
app.command("enroll")(serve_commands.enroll)


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


@app.command("check")
def check(config: options.Config = None, json: options.Json = False) -> None:
    """List everything in a configuration that would break determinism, without starting an engine."""
    settings = engines.read_config(config)
    with step("reading the configuration as vLLM would"):
        effective = collect(settings, engines.weights_dir(settings.model), _enrolled_max_num_seqs(settings))
    violations, to_be_proved = checker.check(effective), checker.to_be_proved(effective)
    verdict = "ERROR" if violations else "PASS"
    if json:
        document = {
            "config": settings.model_dump(mode="json"),
            "verdict": verdict,
            "violations": [asdict(violation) for violation in violations],
            "to_be_proved": list(to_be_proved),
        }
        print_json(document)
    else:
        for violation in violations:
            _print_violation(violation)
        for sentence in to_be_proved:
            out.print(Text(f"to be proved: {sentence}", style="dim"))
        counted = f"{len(violations)} violation{'s' if len(violations) != 1 else ''}"
        out.print(Text.assemble("verdict ", (verdict, VERDICT_STYLES[verdict]), f"  {counted}"))
    raise typer.Exit(2 if violations else 0)


def _enrolled_max_num_seqs(settings: EngineConfig) -> int | None:
    """The batch that this machine's enrolment of the configuration was compared in; None where there is none."""
    directory = engines.weights_dir(settings.model)
    try:
        identity = server_identity(settings, directory)
        load_enrolment(engines.enrolment_path(identity.digest), identity.digest)
    except (ConfigurationError, WeightsError):
        return None
    return int(identity.fields["flags"]["max_num_seqs"])


def _print_violation(violation: Violation) -> None:
    out.print(Text.assemble((violation.rule, "bold red"), f"  {violation.found}"))
    out.print(Text(f"  why  {violation.reason}"))
    out.print(Text(f"  do   {violation.remedy}"))
    if violation.reference is not None:
        out.print(Text(f"  see  {violation.reference}"))
