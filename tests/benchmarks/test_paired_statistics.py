"""Paired statistics, held against scipy and against numbers worked out by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.experiments.paired_statistics import (
    bootstrap_interval,
    cohen_h,
    compare_paired,
    holm,
    mcnemar_p_value,
    p_value_floor,
    sign_flip_p_value,
)
from projection.errors import RequestError

ELEVENTHS = st.integers(-11, 11).map(lambda k: Fraction(k, 11))
SCORES = st.integers(0, 12).map(lambda k: Fraction(k, 12))


def scipy_sign_flip(deltas: list[Fraction]) -> float:
    import numpy as np
    from scipy.stats import permutation_test

    scale = math.lcm(*(delta.denominator for delta in deltas))
    whole = np.array([int(delta * scale) for delta in deltas], dtype=float)
    found = permutation_test((whole,), np.sum, permutation_type="samples", n_resamples=np.inf, vectorized=False)
    return float(found.pvalue)


@settings(max_examples=25, deadline=None)
@given(st.lists(ELEVENTHS, min_size=2, max_size=9))
def test_the_sign_flip_p_value_is_scipys_exact_one(deltas: list[Fraction]) -> None:
    found = sign_flip_p_value(deltas)
    assert found is not None
    assert float(found) == pytest.approx(scipy_sign_flip(deltas), abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.lists(ELEVENTHS, min_size=1, max_size=10))
def test_gathering_equal_sums_counts_every_assignment_of_signs(deltas: list[Fraction]) -> None:
    observed = abs(sum(deltas, Fraction(0)))
    extreme = 0
    for mask in range(2 ** len(deltas)):
        total = sum((d if mask >> i & 1 else -d for i, d in enumerate(deltas)), Fraction(0))
        extreme += int(abs(total) >= observed)
    assert sign_flip_p_value(deltas) == Fraction(extreme, 2 ** len(deltas))


def test_a_tie_counts_as_a_tie_where_floats_would_lose_it() -> None:
    deltas = [Fraction(1, 10), Fraction(2, 10), Fraction(-3, 10)]
    assert 0.1 + 0.2 != 0.3  # so in floats the sum is not zero
    assert sign_flip_p_value(deltas) == 1


def test_ten_pairs_all_better_give_the_floor_of_ten_pairs() -> None:
    deltas = [Fraction(k, 20) for k in range(1, 11)]
    assert sign_flip_p_value(deltas) == p_value_floor(10) == Fraction(1, 512)


def test_five_wins_of_ten_pairs_give_the_exact_value_that_the_papers_data_has_for_eda() -> None:
    assert sign_flip_p_value([Fraction(1)] * 5 + [Fraction(0)] * 5) == Fraction(1, 16)


def test_no_difference_at_all_is_p_one() -> None:
    assert sign_flip_p_value([Fraction(0)] * 10) == 1


def test_thirty_pairs_on_one_grid_are_still_exact() -> None:
    assert sign_flip_p_value([Fraction(k % 3, 11) for k in range(1, 31)]) == Fraction(2, 2**20)


def test_thirty_pairs_without_a_common_grid_have_no_exact_value() -> None:
    assert sign_flip_p_value([Fraction(2**k, 2**30) for k in range(30)]) is None


def test_twenty_pairs_are_always_exact() -> None:
    assert sign_flip_p_value([Fraction(2**k, 2**20) for k in range(20)]) == Fraction(2, 2**20)


def test_holm_is_the_textbook_step_down() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_of_nothing_is_nothing_and_of_one_is_itself() -> None:
    assert holm([]) == []
    assert holm([0.04]) == [0.04]


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_never_helps_never_exceeds_one_and_keeps_the_order(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(raw <= found <= 1 for raw, found in zip(p_values, adjusted, strict=True))
    ranked = sorted(zip(p_values, adjusted, strict=True))
    assert [a for _, a in ranked] == sorted(adjusted)


@pytest.mark.parametrize("value", [Fraction(0), Fraction(1, 3), Fraction(-1)])
def test_the_interval_survives_equal_differences_where_bca_does_not(value: Fraction) -> None:
    assert bootstrap_interval([value] * 10) == (float(value), float(value))


def test_the_interval_is_close_to_scipys_percentile_bootstrap() -> None:
    import numpy as np
    from scipy.stats import bootstrap

    deltas = [Fraction(k, 11) for k in (5, 7, 3, 8, 6, 2, 9, 4, 5, 7, -1, 0)]
    data = np.array([float(d) for d in deltas])
    rng = np.random.default_rng(1)
    theirs = bootstrap((data,), np.mean, n_resamples=20_000, method="percentile", rng=rng).confidence_interval
    low, high = bootstrap_interval(deltas)
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.02)


def test_the_interval_is_the_same_every_time() -> None:
    deltas = [Fraction(k, 7) for k in (1, 5, -2, 3)]
    assert bootstrap_interval(deltas) == bootstrap_interval(deltas)


@pytest.mark.parametrize(("a", "b", "h"), [(0.907, 0.392, 1.17), (0.8, 0.267, 1.13), (1.0, 0.5, 1.57), (1.0, 1.0, 0.0)])
def test_cohens_h_gives_the_papers_effect_sizes(a: float, b: float, h: float) -> None:
    assert cohen_h(a, b) == pytest.approx(h, abs=0.011)


@given(st.integers(0, 15), st.integers(0, 15))
def test_mcnemar_is_scipys_binomial_test(only_a: int, only_b: int) -> None:
    from scipy.stats import binomtest

    expected = binomtest(only_a, only_a + only_b, 0.5).pvalue if only_a + only_b else 1.0
    assert float(mcnemar_p_value(only_a, only_b)) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.sampled_from([Fraction(-1), Fraction(0), Fraction(1)]), min_size=1, max_size=25))
def test_on_right_or_wrong_axes_mcnemar_and_the_sign_flip_test_are_one_test(deltas: list[Fraction]) -> None:
    assert mcnemar_p_value(deltas.count(Fraction(1)), deltas.count(Fraction(-1))) == sign_flip_p_value(deltas)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(SCORES, SCORES), min_size=1, max_size=10))
def test_swapping_the_architectures_turns_every_sign_and_no_p_value(pairs: list[tuple[Fraction, Fraction]]) -> None:
    left, right = [a for a, _ in pairs], [b for _, b in pairs]
    there, back = compare_paired(left, right), compare_paired(right, left)
    assert (there.delta, there.cohen_h) == (-back.delta, -back.cohen_h)
    assert there.p_value == back.p_value
    assert there.num_nonzero == back.num_nonzero


def test_mcnemar_is_given_only_where_every_score_is_right_or_wrong() -> None:
    one, zero, half = Fraction(1), Fraction(0), Fraction(1, 2)
    assert compare_paired([one, one], [zero, one]).mcnemar_p == 1.0
    assert compare_paired([one, half], [zero, one]).mcnemar_p is None


@pytest.mark.parametrize(
    ("left", "right"),
    [([], []), ([Fraction(1)], []), ([Fraction(3, 2)], [Fraction(1)]), ([Fraction(1)], [Fraction(-1, 2)])],
)
def test_scores_that_are_no_pairs_of_shares_are_refused(left: list[Fraction], right: list[Fraction]) -> None:
    with pytest.raises(RequestError):
        compare_paired(left, right)
