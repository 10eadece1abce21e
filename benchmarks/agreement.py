"""Do two implementations say the same? vLLM and transformers on both examples: `python -m benchmarks.agreement`

Both engines run the same pinned weights in float32 under the same grammars. Each example's projection is made by each
engine from the same prompt; the decision of both is asked on vLLM's view, so that it has one prompt too. For each call
the token ids are compared; where they part, the first index and both margins there say how near a tie it was. Bits of
log-probabilities are not expected to agree: the kernels differ, and so do the identities.
Results go to stdout, talk to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.example_cases import NAMES, read_example
from inference import engines
from projection.decision import prepare_decision
from projection.engine import Engine
from projection.events import numbered
from projection.projector import Call, prepare_projection, run_call
from projection.replay import first_other
from projection.view import parse_view

BUDGET_CHARS = 1338
CALLS = ("projection", "decision")


def run_examples(engine: Engine, views: dict[str, str]) -> dict[tuple[str, str], Call]:
    """Both calls of every example. `views` holds the view each decision is asked on; a missing one is filled in."""
    profile = engines.profile_of(engines.read_config())
    calls = {}
    for name in NAMES:
        print(f"{engine.identity.fields['kind']}: {name}", file=sys.stderr)
        events, task = read_example(name)
        logged = numbered(events)
        prompt, grammar = prepare_projection(engine.tokenizer, logged, task, BUDGET_CHARS, profile)
        calls[name, "projection"] = run_call(engine, prompt, grammar, None)
        text = views.setdefault(name, calls[name, "projection"].completion.text)
        prompt, grammar = prepare_decision(engine.tokenizer, task, parse_view(text, task))
        calls[name, "decision"] = run_call(engine, prompt, grammar, None)
    return calls


def compare(one: Call, other: Call) -> dict[str, Any]:
    """Where the token ids of two completions first part; None where they do not."""
    a, b = one.completion, other.completion
    first = first_other(a.token_ids, b.token_ids)
    return {
        "num_prompt_tokens": len(one.prompt_token_ids),
        "num_completion_tokens": [len(a.token_ids), len(b.token_ids)],
        "is_same_prompt": one.prompt_token_ids == other.prompt_token_ids,
        "is_same_token_ids": first is None,
        "first_difference": first,
        "margins_there": None if first is None else [_at(a.margins, first), _at(b.margins, first)],
        "min_margin": [a.min_margin, b.min_margin],
    }


def _at(margins: Sequence[float | None], index: int) -> float | None:
    return margins[index] if index < len(margins) else None


@contextmanager
def _engine(name: str) -> Iterator[Engine]:
    with engines.open_engine(name, engines.read_config()) as engine:
        yield engine


def main() -> None:
    views: dict[str, str] = {}
    identities, calls = {}, {}
    for kind in ("vllm", "transformers"):
        with _engine(kind) as engine:
            identities[kind] = engine.identity.digest
            calls[kind] = run_examples(engine, views)
    rows = [
        {"example": name, "call": call, **compare(calls["vllm"][name, call], calls["transformers"][name, call])}
        for name in NAMES
        for call in CALLS
    ]
    document = {"command": "python -m benchmarks.agreement", "engine_identities": identities, "rows": rows}
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
