"""`dpm determinism run`: the determinism suite."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from determinism.cell import Cell
from determinism.report.files import report_document, write
from determinism.report.summary import Report
from determinism.suite.pace import Pace
from determinism.suite.plan import LaneName, Wish, make_plans
from determinism.suite.results import finished_cells, open_results
from determinism.suite.run import Watch
from determinism.suite.run import run as hold
from determinism.verdict import NOTHING_RAN
from inference import engines
from projection.errors import RequestError
from projection.prompt import visible
from service import options
from service.console import VERDICT_STYLES, err, out, print_json, say

app = typer.Typer(no_args_is_help=True)
STYLES = {**VERDICT_STYLES, "SKIPPED": "yellow"}
MEANINGS = {0: "PASS", 1: "DRIFT", 3: "INCOMPARABLE", 4: "ERROR", 5: "nothing ran"}

SAY_EVERY_S = 60

Names = list[str] | None
Say = Callable[[Cell], None]


@app.callback()
def determinism() -> None:
    """Prove that replays give the same bytes, and see what breaks them."""


@app.command("run")
def run(
    engine: options.Engine = "vllm",
    config: options.Config = None,
    check: Annotated[Names, typer.Option("--check", help="Only this check; may be given several times.")] = None,
    workload: Annotated[Names, typer.Option("--workload", help="Only this workload; as --check.")] = None,
    lane: Annotated[
        Names, typer.Option("--lane", help="configured (the engine itself) or tiny (a small random model); as --check.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Every check and control once, in minutes.")] = False,
    power: Annotated[
        int | None,
        typer.Option(
            "--power", help="At least so many comparisons of each check on each lane; 300 bound drift to 1%.", min=1
        ),
    ] = None,
    results: Annotated[
        Path | None, typer.Option("--out", help="The results folder; one that is there is continued.", file_okay=False)
    ] = None,
    json: options.Json = False,
) -> None:
    """Ask the same questions under circumstances that should not matter, and compare every bit of the answers."""
    if quick and power is not None:
        raise RequestError("--quick and --power exclude each other")
    wish = Wish(
        engine, tuple(check or ()), tuple(workload or ()), cast(tuple[LaneName, ...], tuple(lane or ())), quick, power
    )
    settings = engines.read_config(config)
    folder = results or engines.home() / "determinism" / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}"
    plans = make_plans(wish, settings, folder / "scratch")
    if not plans:
        say("nothing was chosen: no lane holds such a check")
        raise typer.Exit(NOTHING_RAN)
    parameters = wish.parameters(settings, plans)
    planned = {key for plan in plans for key in plan.cell_keys()}
    with open_results(folder, parameters) as journal:
        pace = Pace(plans, finished_cells(journal, planned))
        with _progress(pace, parameters["num_cells"]) as (watch, tell):
            for cell in hold(plans, journal, watch):
                tell(cell)
    found = write(folder)
    if json:
        print_json({**report_document(found), "results": str(folder)})
    else:
        _print(found, folder)
    raise typer.Exit(found.exit_code)


@contextmanager
def _progress(pace: Pace, num_cells: int) -> Iterator[tuple[Watch, Say]]:
    """Each turn in the bar, or now and then in a log; each finished cell; and the time left at the pace so far."""
    if pace.num_cells:
        say(f"continuing: {pace.num_cells} of {num_cells} cells are there and are kept")
    started = last_said = time.monotonic()

    def left() -> str:
        left_s = pace.left_s(time.monotonic() - started)
        if left_s is None:
            return ""
        return f"about {left_s / 60:.0f} min left" if left_s > 90 else f"about {left_s:.0f} s left"

    with Progress(*_COLUMNS, console=err, disable=not err.is_terminal) as bar:
        task = bar.add_task("", total=pace.num_wanted, completed=pace.num_done, left="")

        def watch(engine: str, check: str, num_comparisons: int) -> None:
            nonlocal last_said
            said = pace.compare(engine, check, num_comparisons)
            bar.update(task, completed=pace.num_done, description=said, left=left())
            if bar.disable and time.monotonic() - last_said > SAY_EVERY_S:
                last_said = time.monotonic()
                say(f"{said}, {left()}")

        def tell(cell: Cell) -> None:
            pace.finish(cell)
            bar.update(task, completed=pace.num_done, left=left())
            say(f"{pace.num_cells} of {num_cells}, {left() or 'nothing compared yet'}: {_sentence(cell)}")

        yield watch, tell


_COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
    TextColumn("{task.fields[left]}"),
)


def _sentence(cell: Cell) -> str:
    what = f"{cell.check} on {cell.workload}, {cell.engine}"
    fault = f", with {cell.control}: it must fail" if cell.control else ""
    reason = f" ({cell.reason})" if cell.reason and cell.verdict != "DRIFT" else ""
    return f"{cell.verdict} {what}{fault}, {cell.wall_s:.1f} s{reason}"


def _print(found: Report, folder: Path) -> None:
    cells = [reported.cell for reported in found.cells]
    for name in found.engines:
        out.print(Text(visible(name), style="bold"))
        of_engine = [cell for cell in cells if cell.engine == name]
        for check in dict.fromkeys(cell.check for cell in of_engine):
            _print_check(check, [cell for cell in of_engine if cell.check == check])
    for cell in cells:
        if not cell.holds and cell.verdict != "SKIPPED":
            out.print(Text.assemble((cell.verdict, STYLES.get(cell.verdict, "")), f"  {visible(_failure(cell))}"))
    num_skipped = sum(cell.verdict == "SKIPPED" for cell in cells)
    if num_skipped:
        out.print(
            Text(f"{num_skipped} of {len(cells)} cells were skipped: the report gives the reasons", style="yellow")
        )
    meaning = MEANINGS[found.exit_code]
    out.print(
        Text.assemble("verdict ", (meaning, STYLES.get(meaning, "bold yellow")), f"  report {folder}/report.html")
    )


def _print_check(name: str, cells: Sequence[Cell]) -> None:
    """One line: the verdicts of a check, what was compared, and how many of its controls failed as they must."""
    plain = [cell for cell in cells if cell.control is None]
    controls = [cell for cell in cells if cell.control is not None and cell.verdict != "SKIPPED"]
    counted = Counter(cell.verdict for cell in plain)
    verdicts = [(f"{verdict} {num}  ", STYLES.get(verdict, "")) for verdict, num in counted.items()]
    compared = f"{sum(cell.num_comparisons for cell in plain)} comparisons"
    failed = f"; {sum(cell.holds for cell in controls)} of {len(controls)} controls failed as they must"
    out.print(Text.assemble(f"  {name:<18} ", *verdicts, (compared + (failed if controls else ""), "dim")))


def _failure(cell: Cell) -> str:
    return f"{cell.check} on {cell.workload}" + (f" with {cell.control}" if cell.control else "") + f": {cell.reason}"
