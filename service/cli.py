"""The `dpm` command: commands are thin, and every error becomes one message and one exit code.

0 holds   1 drift or does not hold   2 wrong use or configuration   3 incomparable
4 engine or storage failed   5 nothing ran
"""

from __future__ import annotations

import os
import sys

import typer

from projection.errors import ConfigurationError, DpmError, EngineError, RequestError, VerificationError
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
        case EngineError():
            return 4
        case _:
            return 4


def main() -> None:
    """Run the command line; never shows a traceback for an error that is ours."""
    try:
        app()
    except DpmError as error:
        _report(error)
        sys.exit(exit_code(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(4)
    except KeyboardInterrupt:
        err.print("stopped; nothing was half-written")
        sys.exit(130)


def _report(error: DpmError) -> None:
    err.print(f"error: {error.message}", style="red", markup=False)
    if "--json" in sys.argv:
        fields = {
            name: value for name, value in error.fields.items() if isinstance(value, (str, int, float, list, dict))
        }
        print_json({"error": {"type": type(error).__name__, "message": error.message, "fields": fields}})


if __name__ == "__main__":
    main()
