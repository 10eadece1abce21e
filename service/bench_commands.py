"""`dpm bench generate`: cases whose truth is proved; the experiments are in `service.experiment_commands`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from benchmarks.longhorizon.dataset import write_dataset
from benchmarks.longhorizon.generator import SEED, check_request, generate_cases
from projection.prompt import visible
from service import bench_judge_commands, experiment_commands, options
from service.console import err, out, print_json

app = typer.Typer(no_args_is_help=True)
app.command("quality")(experiment_commands.quality)
app.command("cost")(experiment_commands.cost)
app.command("scaling")(experiment_commands.scaling)
app.command("report")(experiment_commands.report)
app.command("judge")(bench_judge_commands.judge)
app.command("rescore")(bench_judge_commands.rescore_rows)


@app.command("generate")
def generate(
    domain: Annotated[str, typer.Option("--domain", help="mortgage, claim or prior_auth.")],
    size: Annotated[str, typer.Option("--size", help="small, paper or long.")],
    out_dir: Annotated[Path, typer.Option("--out", help="A new or empty directory.")],
    count: Annotated[int, typer.Option("--count", help="How many cases.")] = 10,
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same bytes.", min=0, max=2**53 - 1)] = SEED,
    variant: Annotated[str, typer.Option("--variant", help="full, oracle or reordered.")] = "full",
    chars: Annotated[int | None, typer.Option("--chars", help="Characters of a long trajectory.")] = None,
    json: options.Json = False,
) -> None:
    """Write cases with ground truth, each proved; a directory that holds anything is refused."""
    check_request(domain, size, variant, count, chars)
    cases = generate_cases(domain, size, count=count, seed=seed, variant=variant, chars=chars)
    watched = track(cases, "generate", total=count, console=err, disable=not err.is_terminal)
    manifest = write_dataset(out_dir, watched, chars)
    if json:
        print_json({"directory": str(out_dir), **asdict(manifest)})
        return
    summary = f"{manifest.count} cases of {domain}, {size}, {variant}, seed {seed}, each proved: {out_dir}"
    out.print(visible(summary), markup=False)
