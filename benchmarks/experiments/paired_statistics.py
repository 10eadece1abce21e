"""Statistics of two architectures on the same cases: exact where exactness is possible, and said so where it is not.

Scores are fractions (right answers of asked ones), so differences are rational numbers and sums of them can be compared
without rounding: a tie counts as a tie. Nothing here knows what was scored.

    p-value   exact two-sided sign-flip test of the paired differences, every assignment of signs counted
    Holm      step-down correction over a stated family, printed beside the raw p-value
    interval  percentile bootstrap of the mean difference, cases resampled in pairs, fixed seed
    Cohen h   2 asin(sqrt(p1)) - 2 asin(sqrt(p2)) of the two mean scores
    McNemar   exact test of the discordant pairs, for axes that are right or wrong
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from projection.errors import RequestError

MAX_DISTINCT_SUMS = 2**20  # what the exact test keeps in memory; 20 pairs never need more
NUM_RESAMPLES = 10_000
SEED = 20260420  # the paper's
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """Architecture A against B on one axis, over the same cases.

    p_value: None where the exact test is out of reach (many pairs without a common denominator).
    p_floor: the least p-value that this many pairs can give. num_nonzero: pairs that differ; only they carry evidence.
    mcnemar_p: None unless every score is 0 or 1.
    """

    num_pairs: int
    num_nonzero: int
    mean_a: float
    mean_b: float
    delta: float
    low: float
    high: float
    p_value: float | None
    p_floor: float
    cohen_h: float
    mcnemar_p: float | None


def compare_paired(scores_a: Sequence[Fraction], scores_b: Sequence[Fraction]) -> PairedComparison:
    """Compare two lists of scores in [0, 1] whose items with the same index belong to the same case.

    Raises:
        RequestError: no pairs, lists of unequal length, or a score outside [0, 1].
    """
    if not scores_a or len(scores_a) != len(scores_b):
        raise RequestError(f"paired statistics need pairs; got {len(scores_a)} and {len(scores_b)} scores")
    outside = next((score for score in (*scores_a, *scores_b) if not 0 <= score <= 1), None)
    if outside is not None:
        raise RequestError(f"a score of {outside} is not in [0, 1]", score=str(outside))
    deltas = [a - b for a, b in zip(scores_a, scores_b, strict=True)]
    mean_a, mean_b = _mean(scores_a), _mean(scores_b)
    low, high = bootstrap_interval(deltas)
    p_value = sign_flip_p_value(deltas)
    is_binary = all(score in (0, 1) for score in (*scores_a, *scores_b))
    return PairedComparison(
        num_pairs=len(deltas),
        num_nonzero=sum(delta != 0 for delta in deltas),
        mean_a=float(mean_a),
        mean_b=float(mean_b),
        delta=float(_mean(deltas)),
        low=low,
        high=high,
        p_value=None if p_value is None else float(p_value),
        p_floor=float(p_value_floor(len(deltas))),
        cohen_h=cohen_h(float(mean_a), float(mean_b)),
        mcnemar_p=float(mcnemar_p_value(sum(d > 0 for d in deltas), sum(d < 0 for d in deltas))) if is_binary else None,
    )


def sign_flip_p_value(deltas: Sequence[Fraction]) -> Fraction | None:
    """The share of sign assignments whose sum is at least as far from zero as the observed one.

    All 2^n assignments are counted, gathered by their sum, so 20 pairs are always possible, and more where differences
    share a denominator. None when over `MAX_DISTINCT_SUMS` sums would have to be kept.
    """
    scale = math.lcm(*(delta.denominator for delta in deltas))
    whole = [int(delta * scale) for delta in deltas if delta]
    counts: dict[int, int] = {0: 1}
    for size in whole:
        grown: dict[int, int] = defaultdict(int)
        for total, count in counts.items():
            grown[total + size] += count
            grown[total - size] += count
        if len(grown) > MAX_DISTINCT_SUMS:
            return None
        counts = grown
    observed = abs(sum(whole))
    extreme = sum(count for total, count in counts.items() if abs(total) >= observed)
    return Fraction(extreme, 2 ** len(whole))


def p_value_floor(num_pairs: int) -> Fraction:
    """The least two-sided p-value that the sign-flip test of `num_pairs` pairs can give."""
    return Fraction(2, 2**num_pairs)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the order given: the family is the whole list."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def bootstrap_interval(deltas: Sequence[Fraction]) -> tuple[float, float]:
    """The 95% percentile bootstrap interval of the mean difference.

    Where all differences are equal the interval is that one point: then the sample says nothing about spread, and the
    number of pairs is what a reader must look at.
    """
    if len(set(deltas)) == 1:
        return float(deltas[0]), float(deltas[0])
    scale = math.lcm(*(delta.denominator for delta in deltas))
    whole = [int(delta * scale) for delta in deltas]
    choices = random.Random(SEED).choices
    sums = sorted(sum(choices(whole, k=len(whole))) for _ in range(NUM_RESAMPLES))
    tail = (1 - CONFIDENCE) / 2
    low, high = sums[math.floor(tail * NUM_RESAMPLES)], sums[math.ceil((1 - tail) * NUM_RESAMPLES) - 1]
    return float(Fraction(low, scale * len(whole))), float(Fraction(high, scale * len(whole)))


def cohen_h(proportion_a: float, proportion_b: float) -> float:
    """Cohen's h of two proportions; 0.2 is called small, 0.5 medium, 0.8 large."""
    return 2 * math.asin(math.sqrt(proportion_a)) - 2 * math.asin(math.sqrt(proportion_b))


def mcnemar_p_value(num_only_a: int, num_only_b: int) -> Fraction:
    """The exact two-sided McNemar test: cases that only A got right against cases that only B got right."""
    num_discordant = num_only_a + num_only_b
    tail = sum(math.comb(num_discordant, k) for k in range(min(num_only_a, num_only_b) + 1))
    return min(Fraction(1), Fraction(2 * tail, 2**num_discordant))


def _mean(values: Sequence[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)
