"""The evidence for the certified CPU lane: the same bits under every setting and circumstance that should not matter.

`python -m benchmarks.lane [--model NAME_OR_DIR] [--cell NAME ...] [--quick]`

A cell is a setting of the engine (`benchmarks.lane_cells`). In each, prompts of 50 to 8,000 tokens are answered alone,
again with whatever the first time left in the cache, in batches among strangers, and read in one forward pass; token
ids and log-probabilities must be those of the reference cell, bit for bit. A cell says what really happened (requests
in one step, cached tokens, drafts, preemptions), and one in which the thing it is about did not happen has failed. The
controls must differ. Settings that the checker refuses are measured too. Results go to stdout as JSON, talk to stderr;
exit code 1 where a cell failed that is not refused.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.lane_cells import CELLS, MAX_TOKENS, STRANGER_LENGTHS, Cell, configure, quick
from inference import engines, vllm_runtime
from projection.canonical import value_digest
from projection.grammar import Chars, Grammar, seq

if TYPE_CHECKING:
    from inference.vllm_engine import VllmEngine
    from projection.engine import Completion

DIGITS = Grammar({"root": seq("- ", Chars("0123456789", 8, 40), "\n")})
FULL = 0.9  # of a batch in one step: with chunks the first may have ended when the last begin
Question = tuple[Sequence[int], int, Grammar | None]


def run_cell(cell: Cell, model: str) -> dict[str, Any]:
    """Start the engine of a cell and ask every question under every circumstance: what was said, and what happened."""
    from inference.vllm_engine import VllmEngine

    if cell.without == "sampling":
        from inference import invariant_sampling

        invariant_sampling.register = lambda: None
    weights_dir = engines.existing_weights(model)
    started = time.perf_counter()
    with VllmEngine.load(configure(cell, engines.read_config(), weights_dir), weights_dir, cell.name) as engine:
        questions = _questions(engine, cell.lengths)
        alone = [engine.generate(*question) for question in questions.values()]
        said = {"alone": alone, "again": [engine.generate(*question) for question in questions.values()]}
        num_in_one_step = {}
        for size in cell.batch_sizes:
            engine.reset_counters()
            said[f"in a batch of {size}"] = _in_a_batch(engine, list(questions.values()), size)
            num_in_one_step[size] = engine.counters().max_num_running
        bits = {name: [_bits(c.token_ids, c.logprobs) for c in told] for name, told in said.items()}
        bits["in one forward pass"] = [
            _score(engine, question, said) for question, said in zip(questions.values(), alone, strict=True)
        ]
        return {
            "cell": cell.name,
            "engine_identity": engine.identity.digest,
            "said": {name: dict(zip(questions, told, strict=True)) for name, told in bits.items()},
            "num_in_one_step": num_in_one_step,
            "counters": dataclasses.asdict(engine.counters()),
            "wall_s": round(time.perf_counter() - started, 1),
        }


def _questions(engine: VllmEngine, lengths: Sequence[int]) -> dict[str, Question]:
    """A prompt of each length, the second length once more under a grammar."""
    questions: dict[str, Question] = {f"{n} tokens": (_prompt(engine, n, n), MAX_TOKENS, None) for n in lengths}
    under_a_grammar = (_prompt(engine, lengths[1], lengths[1]), MAX_TOKENS, DIGITS)
    return {**questions, f"{lengths[1]} tokens under a grammar": under_a_grammar}


def _prompt(engine: VllmEngine, seed: int, num_tokens: int) -> list[int]:
    """A prompt of exactly that many tokens, of rows that repeat their words, so that there is something to look up."""
    rows = (
        f"Day {day}: borrower {(seed * 7 + day * 13) % 101} reports income of {(seed * 991 + day * 37) % 9973} dollars "
        f"and a debt ratio of {(seed + day * 29) % 60} percent.\n"
        for day in range(num_tokens // 8)
    )
    return engine.tokenizer.encode_text(f"Case {seed * 1009}\n" + "".join(rows))[:num_tokens]


def _in_a_batch(engine: VllmEngine, questions: Sequence[Question], size: int) -> list[Completion]:
    """Every question in a batch of that size: the first one first, the last one last, strangers between them."""
    told: list[Completion] = []
    for first in range(0, len(questions), max(1, size // 2)):
        asked = questions[first : first + max(1, size // 2)]
        strangers = [
            (_prompt(engine, 10_000 + number, STRANGER_LENGTHS[number % len(STRANGER_LENGTHS)]), MAX_TOKENS, None)
            for number in range(size - len(asked))
        ]
        batch = engine.generate_batch([*asked[:1], *strangers, *asked[1:]])
        told += [batch[0], *batch[1 + len(strangers) :]]
    return told


def _bits(token_ids: Sequence[int], logprobs: Sequence[float]) -> dict[str, Any]:
    return {"token_ids": list(token_ids), "logprobs": [logprob.hex() for logprob in logprobs]}


def _score(engine: VllmEngine, question: Question, completion: Completion) -> dict[str, Any]:
    """What one pass says of the recorded tokens. Under a grammar its log-probabilities are of another distribution."""
    prompt_token_ids, _, grammar = question
    positions = engine.score(prompt_token_ids, completion.token_ids, grammar).positions
    logprobs = completion.logprobs if grammar is not None else [position.logprob for position in positions]
    return _bits([position.best_token_id for position in positions], logprobs)


def judge(cell: Cell, found: dict[str, Any], reference: dict[str, Any]) -> dict[str, Any]:
    """A row of the evidence: how many answers were compared, how many differ, and why the cell fails, if it does."""
    expected = reference["said"]["alone"]
    pairs = [
        (f"{circumstance}: {question}", said == expected[question])
        for circumstance, told in found["said"].items()
        for question, said in told.items()
    ]
    differing = [place for place, is_same in pairs if not is_same]
    problems = [*_vacuous(cell, found)]
    if bool(differing) is not (cell.without is not None):
        problems.append(f"differs {differing[0]}" if differing else "does not differ, and should")
    return {
        "cell": cell.name,
        "reference": cell.reference,
        "engine_identity": found["engine_identity"],
        "answers_compared": len(pairs),
        "answers_that_differ": len(differing),
        "bits": value_digest("dpm/lane-bits/v1", found["said"]["alone"]),
        "num_in_one_step": found["num_in_one_step"],
        "counters": found["counters"],
        "wall_s": found["wall_s"],
        "is_refused": cell.is_refused,
        "verdict": "FAIL" if problems else "PASS",
        "problems": problems,
    }


def _vacuous(cell: Cell, found: dict[str, Any]) -> Iterator[str]:
    for name in cell.witnesses:
        if not found["counters"][name]:
            yield f"{name} is 0: what this cell is about did not happen"
    for size, num_running in found["num_in_one_step"].items():
        if num_running < FULL * int(size) and not cell.is_short_of_room:
            yield f"a batch of {size} had {num_running} requests in one step"


def measure(model: str, cells: Sequence[Cell], is_quick: bool = False) -> list[dict[str, Any]]:
    """Run cells, each process's in a process of its own, and judge them against their references."""
    found: dict[str, dict[str, Any]] = {}
    groups = [list(group) for _, group in groupby(sorted(cells, key=lambda cell: cell.process), lambda c: c.process)]
    for group in groups:
        started = time.perf_counter()
        found.update(_in_a_process(model, [cell.name for cell in group], is_quick))
        print(f"{len(found)} of {len(cells)} cells ({time.perf_counter() - started:.0f} s)", file=sys.stderr)
    return [judge(cell, found[cell.name], found[cell.reference]) for cell in cells]


def _in_a_process(model: str, names: Sequence[str], is_quick: bool) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        command = [sys.executable, "-m", "benchmarks.lane", "--model", model, "--found", str(path)]
        command += ["--quick"] if is_quick else []
        own = vllm_runtime.environment_for(engines.read_config())  # an engine of this process may have set them
        environment = {name: value for name, value in os.environ.items() if name not in own}
        subprocess.run([*command, *(f"--cell={name}" for name in names)], check=True, env=environment)
        return {found["cell"]: found for found in json.loads(path.read_text(encoding="utf-8"))}


def with_references(names: Sequence[str]) -> list[Cell]:
    """The named cells, and those that they are held against; all cells where none is named."""
    by_name = {cell.name: cell for cell in CELLS}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise SystemExit(f"no cell {unknown[0]!r}; there are: {', '.join(by_name)}")
    wanted = {*names, *(by_name[name].reference for name in names)} or by_name.keys()
    return [cell for cell in CELLS if cell.name in wanted]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=engines.read_config().model)
    parser.add_argument("--cell", action="append", default=[], dest="cells")
    parser.add_argument("--quick", action="store_true", help="short prompts and small batches in every cell")
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.found is not None:
        cells = [quick(cell) if arguments.quick else cell for cell in CELLS if cell.name in arguments.cells]
        arguments.found.write_text(json.dumps([run_cell(cell, arguments.model) for cell in cells]), encoding="utf-8")
        return
    rows = measure(arguments.model, with_references(arguments.cells), arguments.quick)
    command = shlex.join(["python", "-m", "benchmarks.lane", *sys.argv[1:]])
    print(json.dumps({"command": command, "model": arguments.model, "rows": rows}, indent=2))
    sys.exit(any(row["verdict"] == "FAIL" and not row["is_refused"] for row in rows))


if __name__ == "__main__":
    main()
