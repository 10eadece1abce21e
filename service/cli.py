"""The `dpm` command: commands are thin, and every error becomes one message and one exit code.

0 holds   1 drift or does not hold   2 wrong use or configuration   3 incomparable
4 engine or storage failed   5 nothing ran
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import typer
from rich.text import Text
from typer._click.exceptions import ClickException  # typer's own copy of click, which it does not show
from typer.rich_utils import rich_format_error

from projection.errors import ConfigurationError, DpmError, RequestError, VerificationError
from projection.prompt import visible
from service import (
    bench_commands,
    case_commands,
    compare_commands,
    determinism_commands,
    engine_commands,
    explain_commands,
    gate_commands,
    log_commands,
    tams_commands,
    weights_commands,
)
from service.console import err, print_json

app = typer.Typer(
    name="dpm",
    help="Decide a case from its event log on a pinned engine, and replay the decision byte for byte.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("decide")(case_commands.decide)
app.command("replay")(case_commands.replay)
app.command("demo")(case_commands.demo)
app.command("tams")(tams_commands.tams)
app.add_typer(case_commands.record_app, name="record", help="Sealed records.")
app.add_typer(log_commands.app, name="log", help="The event log.")
app.add_typer(weights_commands.app, name="weights", help="Pinned model weights.")
app.add_typer(engine_commands.app, name="engine", help="The engine that runs the model.")
determinism_commands.app.command("compare")(compare_commands.compare)
determinism_commands.app.command("explain")(explain_commands.explain)
determinism_commands.app.command("near-ties")(explain_commands.near_ties)
app.add_typer(determinism_commands.app, name="determinism", help="Proof that replays give the same bytes.")
determinism_commands.app.command("gate")(gate_commands.gate)
determinism_commands.app.command("approve")(gate_commands.approve)
app.add_typer(bench_commands.app, name="bench", help="LongHorizon-Bench: cases with proved truth.")


def exit_code(error: DpmError) -> int:
    """Who must act, as a number."""
    match error:
        case VerificationError():
            return 1
        case RequestError() | ConfigurationError():
            return 2
        case _:
            return 4


def main() -> None:
    """Run the command line; shows a traceback only for a defect of ours."""
    _speak_utf8()
    sys.exit(_run())


def _run() -> int:
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except DpmError as error:
        _report(type(error).__name__, error.message, error.fields)
        return exit_code(error)
    except ClickException as error:
        rich_format_error(error)
        _report_json("UsageError", error.format_message(), {})
        return error.exit_code
    except typer.Abort:
        return 130
    except OSError as error:
        _report("OSError", str(error), {})
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left to be written would fail again at the exit
        return 4
    except Exception:  # noqa: BLE001 - the last word: a defect must not look like a verdict
        traceback.print_exc()
        err.print("error: this is a defect of dpm; please report it with the lines above", style="red")
        return 4


def _speak_utf8() -> None:
    """Evidence is UTF-8 whatever the locale: a verdict must not be lost to a terminal's character set."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _report(name: str, message: str, fields: Mapping[str, Any]) -> None:
    err.print(Text(f"error: {visible(message)}", style="red"))
    _report_json(name, message, fields)


def _report_json(name: str, message: str, fields: Mapping[str, Any]) -> None:
    if "--json" in sys.argv:
        plain = {key: value for key, value in fields.items() if isinstance(value, (str, int, float, list, dict))}
        with suppress(OSError):
            print_json({"error": {"type": name, "message": message, "fields": plain}})


if __name__ == "__main__":
    main()
