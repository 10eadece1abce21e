"""The `dpm` command: commands are thin, and every error becomes one message and one exit code.

0 holds   1 drift or does not hold   2 wrong use or configuration   3 incomparable
4 engine or storage failed   5 nothing ran
"""

from __future__ import annotations

import io
import sys
import traceback

import typer
from rich.text import Text

from projection.errors import ConfigurationError, DpmError, RequestError, VerificationError
from projection.prompt import visible
from service import case_commands, engine_commands, log_commands, weights_commands
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
app.add_typer(case_commands.record_app, name="record", help="Sealed records.")
app.add_typer(log_commands.app, name="log", help="The event log.")
app.add_typer(weights_commands.app, name="weights", help="Pinned model weights.")
app.add_typer(engine_commands.app, name="engine", help="The engine that runs the model.")


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
    """Run the command line; shows a traceback only for a defect of ours. Typer itself answers wrong use and Ctrl-C."""
    _speak_utf8()
    try:
        app()
    except DpmError as error:
        _report(error)
        sys.exit(exit_code(error))
    except Exception:  # noqa: BLE001 - the last word: a defect must not look like a verdict
        traceback.print_exc()
        err.print("error: this is a defect of dpm; please report it with the lines above", style="red")
        sys.exit(4)


def _speak_utf8() -> None:
    """Evidence is UTF-8 whatever the locale: a verdict must not be lost to a terminal's character set."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _report(error: DpmError) -> None:
    err.print(Text(f"error: {visible(error.message)}", style="red"))
    if "--json" in sys.argv:
        fields = {
            name: value for name, value in error.fields.items() if isinstance(value, (str, int, float, list, dict))
        }
        print_json({"error": {"type": type(error).__name__, "message": error.message, "fields": fields}})


if __name__ == "__main__":
    main()
