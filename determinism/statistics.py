"""What a cell's replays say in numbers: distinct hashes, the bound on the drift rate, distances, the smallest margin.

A comparison is a replay held against the first one, so n replays are n - 1 trials. The rate of drift is bounded from
above by the exact one-sided Clopper-Pearson limit at 95%; no drift in n trials gives 1 - 0.05 ** (1 / n). The bound
supposes that trials are independent and equally likely to drift; it is no statement about circumstances that were not
tried. Distances are Levenshtein's over Unicode characters, divided by the longer length, over all pairs of replays.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from determinism.cell import Cell, Observed, Replay, tally
from determinism.verdict import Verdict
from projection.errors import RequestError
from projection.replay import first_other

CONFIDENCE = 0.95
PREFIX_CHARS = 200  # paper, section 7


@dataclass(frozen=True, slots=True)
class Distances:
    """Normalised edit distances over all pairs: 0 is equal, 1 has nothing in common."""

    mean: float
    max: float


@dataclass(frozen=True, slots=True)
class CellStatistics:
    """A cell in numbers.

    num_unique_surfaces: distinct bits, log-probabilities and margins included. num_unique_texts: what the paper counts.
    max_drift_rate: the upper bound at `CONFIDENCE`; None where there was nothing to compare.
    first_differing_token: the earliest, 0-based, at which any replay has another token id than the reference.
    first_differing_char: the same for the text.
    min_margin: over all replays, top-1 minus top-2 log-probability; None where it is not known or nothing had a choice.
    wall_s: of all replays together.
    """

    num_replays: int
    num_comparisons: int
    num_drifted: int
    num_unique_surfaces: int
    num_unique_texts: int
    max_drift_rate: float | None
    first_differing_token: int | None
    first_differing_char: int | None
    prefix_distance: Distances
    text_distance: Distances
    mean_chars: float
    min_margin: float | None
    wall_s: float


@dataclass(frozen=True, slots=True)
class Drift:
    """How often one call came out otherwise than its reference."""

    num_comparisons: int
    num_drifted: int

    @property
    def rate(self) -> float:
        return self.num_drifted / self.num_comparisons

    @property
    def max_rate(self) -> float:
        return upper_bound(self.num_drifted, self.num_comparisons)


def measure(cell: Cell) -> CellStatistics:
    """The numbers of one cell.

    Raises:
        RequestError: the cell has no replays.
    """
    if not cell.replays:
        raise RequestError(f"the cell {cell.check} on {cell.workload} has no replays: there is nothing to measure")
    texts = [cell.surface_of(replay).text for replay in cell.replays]
    reference, *others = cell.surfaces
    margins = [surface.min_margin for surface in cell.surfaces]
    return CellStatistics(
        num_replays=cell.num_replays,
        num_comparisons=cell.num_comparisons,
        num_drifted=cell.num_drifted,
        num_unique_surfaces=len(cell.surfaces),
        num_unique_texts=len(set(texts)),
        max_drift_rate=upper_bound(cell.num_drifted, cell.num_comparisons) if cell.num_comparisons else None,
        first_differing_token=_earliest(reference.token_ids, [surface.token_ids for surface in others]),
        first_differing_char=_earliest(reference.text, [surface.text for surface in others]),
        prefix_distance=edit_distances([text[:PREFIX_CHARS] for text in texts]),
        text_distance=edit_distances(texts),
        mean_chars=math.fsum(map(len, texts)) / len(texts),
        min_margin=min((margin for margin in margins if margin is not None), default=None),
        wall_s=math.fsum(replay.wall_s for replay in cell.replays),
    )


def upper_bound(num_drifted: int, num_trials: int) -> float:
    """The largest rate of drift at which so few drifts would still be seen with probability 1 - `CONFIDENCE`.

    Source: Clopper and Pearson 1934; one-sided, hence `beta.ppf(CONFIDENCE, k + 1, n - k)`.

    Raises:
        RequestError: there were no trials, or more drifts than trials.
    """
    if not 0 <= num_drifted <= num_trials or num_trials == 0:
        raise RequestError(f"there is no rate of {num_drifted} drifts in {num_trials} comparisons")
    if num_drifted == num_trials:
        return 1.0
    if num_drifted == 0:
        return -math.expm1(math.log1p(-CONFIDENCE) / num_trials)
    low, high = num_drifted / num_trials, 1.0
    while low < (middle := (low + high) / 2) < high:
        if _probability_of_at_most(num_drifted, num_trials, middle) > 1 - CONFIDENCE:
            low = middle
        else:
            high = middle
    return high


def edit_distances(texts: Sequence[str]) -> Distances:
    """Over all pairs of texts, each distinct pair computed once. One text alone has distance 0."""
    from rapidfuzz.distance import Levenshtein

    counts = Counter(texts)
    num_pairs = len(texts) * (len(texts) - 1) // 2
    weighted = [
        (counts[one] * counts[other], Levenshtein.normalized_distance(one, other))
        for one, other in combinations(counts, 2)
    ]
    total = math.fsum(weight * distance for weight, distance in weighted)
    return Distances(total / num_pairs if num_pairs else 0.0, max((distance for _, distance in weighted), default=0.0))


def merge(cells: Sequence[Cell]) -> Cell:
    """All answers to one question in one cell, whatever the circumstances: the first cell's reference, then all others.

    A cell whose reference is not the first cell's counts it as one more replay.
    """
    first, *others = cells
    seen = {first.surfaces[0].xxh3}
    observed = [_as_observed(first, replay) for replay in first.replays]
    for cell in others:
        is_known = cell.surfaces[0].xxh3 in seen
        seen.add(cell.surfaces[0].xxh3)
        observed += [_as_observed(cell, replay) for replay in (cell.replays[1:] if is_known else cell.replays)]
    surfaces, replays = tally(observed)
    verdict: Verdict = "PASS" if len(surfaces) == 1 else "DRIFT"
    changes: dict[str, Any] = {
        "check": "every check",
        "verdict": verdict,
        "reason": "" if verdict == "PASS" else "replays differ",
        "surfaces": surfaces,
        "replays": replays,
        "evidence": {},
        "wall_s": math.fsum(cell.wall_s for cell in cells),
    }
    return first.model_copy(update=changes)


def _as_observed(cell: Cell, replay: Replay) -> Observed:
    return Observed(f"{cell.check}: {replay.label}", cell.surface_of(replay), replay.wall_s)


def pool(cells: Iterable[Cell]) -> Drift:
    """The comparisons of several cells as trials of one rate: a summary, which supposes that they have one.

    Raises:
        RequestError: there was nothing to compare.
    """
    counted = [(cell.num_comparisons, cell.num_drifted) for cell in cells]
    drift = Drift(sum(trials for trials, _ in counted), sum(drifted for _, drifted in counted))
    if drift.num_comparisons == 0:
        raise RequestError("there is nothing to pool: no cell holds a comparison")
    return drift


def survival(rate: float, num_calls: int) -> float:
    """The probability that a replay of so many calls is identical, if each drifts alone at this rate (paper, 7)."""
    return float((1 - rate) ** num_calls)


def measured_survival(first: Cell, second: Cell) -> tuple[int, int]:
    """Of a decision's two calls under the same circumstances: how many were identical in both, and how many there are.

    Circumstances are the same where replays have the same label; of several, the n-th stands beside the n-th. What has
    no partner is not counted, nor are the references, which are no trials.
    """
    partners: dict[str, deque[Replay]] = defaultdict(deque)
    for replay in second.replays[1:]:
        partners[replay.label].append(replay)
    pairs = [(replay, partners[replay.label].popleft()) for replay in first.replays[1:] if partners[replay.label]]
    return sum(one.surface == 0 and other.surface == 0 for one, other in pairs), len(pairs)


def _probability_of_at_most(num_drifted: int, num_trials: int, rate: float) -> float:
    """The binomial distribution function, in logarithms so that thousands of trials do not overflow."""
    log_rate, log_rest = math.log(rate), math.log1p(-rate)
    terms = [
        math.exp(_log_choose(num_trials, k) + k * log_rate + (num_trials - k) * log_rest)
        for k in range(num_drifted + 1)
    ]
    return math.fsum(terms)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _earliest(reference: Sequence[object], others: Iterable[Sequence[object]]) -> int | None:
    """The first index at which any of the others is not as the reference; None where all are the same."""
    firsts = (first_other(reference, other) for other in others)
    return min((index for index in firsts if index is not None), default=None)
