"""How hard the cases are for the ranking of `projection.candidates`: where the true value of a field comes.

    python -m benchmarks.longhorizon.ranking [--size paper] [--count 100] [--variant full]

Prints one JSON document. It asks no model; it measures the cases as much as the ranking, and is no target.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from benchmarks.longhorizon.case import DOMAINS, SIZES, VARIANTS, Case
from benchmarks.longhorizon.generator import SEED, generate_cases
from projection.candidates import rank_candidates


def rank_of_truth(case: Case) -> dict[str, int | None]:
    """The 1-based place of each field's true value among its candidates; None where it is no candidate."""
    ranked = rank_candidates(case.events, case.task, None)
    places = {}
    for field in case.truth.fields:
        values = [candidate.value for candidate in ranked[field.name]]
        places[field.name] = values.index(field.value) + 1 if field.value in values else None
    return places


def count_places(cases: Iterable[Case]) -> dict[str, Any]:
    """How many true values come first, among the first two and three, in all and by field."""
    total, first, second, third = 0, Counter[str](), Counter[str](), Counter[str]()
    fields = Counter[str]()
    for case in cases:
        for name, place in rank_of_truth(case).items():
            fields[name] += 1
            total += 1
            first[name] += place == 1
            second[name] += place is not None and place <= 2
            third[name] += place is not None and place <= 3
    return {
        "num_values": total,
        "first": first.total(),
        "first_two": second.total(),
        "first_three": third.total(),
        "by_field": {name: [first[name], second[name], third[name], fields[name]] for name in fields},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="paper", choices=[size for size in SIZES if size != "long"])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--variant", default="full", choices=VARIANTS)
    asked = parser.parse_args()
    domains = {
        domain: count_places(
            generate_cases(domain, asked.size, count=asked.count, seed=asked.seed, variant=asked.variant)
        )
        for domain in DOMAINS
    }
    print(json.dumps({**vars(asked), "domains": domains}, indent=1))


if __name__ == "__main__":
    main()
