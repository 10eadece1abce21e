"""Numbers of a cell, held against scipy, against the paper's arithmetic, and at the edges."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from determinism.cell import Cell, Observed, tally
from determinism.published import TABLE_3
from determinism.statistics import (
    Distances,
    Drift,
    edit_distances,
    measure,
    measured_survival,
    pool,
    survival,
    upper_bound,
)
from projection.errors import RequestError
from tests.determinism.cell_samples import cell, surface


@pytest.mark.parametrize("num_trials", [1, 2, 9, 10, 31, 299, 1000, 3000])
def test_the_bound_is_the_one_that_scipy_computes(num_trials: int) -> None:
    from scipy.stats import beta, binomtest

    for num_drifted in sorted({0, 1, 2, num_trials // 3, num_trials // 2, num_trials - 1}):
        if num_drifted >= num_trials:
            continue
        bound = upper_bound(num_drifted, num_trials)
        assert bound == pytest.approx(float(beta.ppf(0.95, num_drifted + 1, num_trials - num_drifted)), rel=1e-9)
        test = binomtest(num_drifted, num_trials, alternative="less")
        assert bound == pytest.approx(float(test.proportion_ci(0.95, "exact").high), rel=1e-6)


def test_no_drift_has_the_bound_in_closed_form() -> None:
    assert upper_bound(0, 10) == pytest.approx(1 - 0.05 ** (1 / 10), rel=1e-14)
    assert round(upper_bound(0, 10), 2) == 0.26
    assert upper_bound(0, 299) < 0.01 + 1e-5
    assert upper_bound(0, 298) > 0.01


@settings(deadline=None)
@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_bound_lies_above_the_rate_and_falls_with_more_trials(drifted: tuple[int, int]) -> None:
    num_drifted, num_trials = drifted
    bound = upper_bound(num_drifted, num_trials)
    assert num_drifted / num_trials < bound <= 1.0 or bound == 1.0 == num_drifted / num_trials
    assert upper_bound(num_drifted, num_trials + 1) < bound
    if num_drifted:
        assert upper_bound(num_drifted - 1, num_trials) < bound


def test_everything_drifted_bounds_nothing() -> None:
    assert upper_bound(7, 7) == 1.0


@pytest.mark.parametrize(("num_drifted", "num_trials"), [(0, 0), (1, 0), (2, 1), (-1, 3)])
def test_no_trials_are_an_error_not_a_rate_of_zero(num_drifted: int, num_trials: int) -> None:
    with pytest.raises(RequestError, match="there is no rate"):
        upper_bound(num_drifted, num_trials)


def test_equal_replays_have_no_distance_and_one_hash() -> None:
    found = measure(cell(["FACTS\n- a"] * 10))
    assert (found.num_replays, found.num_comparisons, found.num_drifted) == (10, 9, 0)
    assert (found.num_unique_surfaces, found.num_unique_texts) == (1, 1)
    assert found.max_drift_rate == upper_bound(0, 9)
    assert found.first_differing_token is found.first_differing_char is None
    assert found.prefix_distance == found.text_distance == Distances(0.0, 0.0)
    assert found.mean_chars == 9
    assert found.min_margin == 0.5
    assert found.wall_s == 5.0


def test_replays_that_are_all_different_are_counted_as_such() -> None:
    found = measure(cell(["aaaa", "bbbb", "cccc"]))
    assert (found.num_drifted, found.num_unique_surfaces, found.num_unique_texts) == (2, 3, 3)
    assert found.max_drift_rate == 1.0
    assert found.first_differing_token == found.first_differing_char == 0
    assert found.text_distance == Distances(1.0, 1.0)


def test_drift_behind_the_prefix_is_invisible_in_it_and_seen_in_the_whole() -> None:
    """What the paper's large cases show: ten hashes of ten, and a distance of 0.0000."""
    found = measure(cell([f"{'x' * 200}{n}{'y' * 199}" for n in range(10)]))
    assert found.num_unique_texts == 10
    assert found.prefix_distance == Distances(0.0, 0.0)
    assert found.text_distance.max == 1 / 400
    assert found.text_distance.mean == pytest.approx(1 / 400)
    assert found.first_differing_token == 200


def test_the_first_differing_token_is_the_earliest_of_all_replays() -> None:
    found = measure(cell(["abcdef", "abcdeX", "abXdef", "abc"]))
    assert found.first_differing_token == 2


def test_a_replay_that_ends_early_differs_where_it_ends() -> None:
    assert measure(cell(["abc", "ab"])).first_differing_token == 2
    assert measure(cell(["abc", ""])).first_differing_token == 0


def test_other_log_probabilities_alone_are_drift_with_one_text() -> None:
    surfaces, replays = tally([Observed("a", surface("ab"), 1.0), Observed("b", surface("ab", margin=0.25), 1.0)])
    value = cell(["ab"]).model_dump() | {
        "verdict": "DRIFT",
        "surfaces": [one.model_dump() for one in surfaces],
        "replays": [one.model_dump() for one in replays],
    }
    found = measure(Cell.model_validate(value, strict=False))
    assert (found.num_drifted, found.num_unique_surfaces, found.num_unique_texts) == (1, 2, 1)
    assert found.first_differing_token is None
    assert found.min_margin == 0.25


def test_a_cell_without_replays_is_an_error() -> None:
    with pytest.raises(RequestError, match="no replays"):
        measure(cell([], verdict="SKIPPED", reason="no second server"))


def test_one_replay_has_no_bound() -> None:
    found = measure(cell(["a"]))
    assert found.max_drift_rate is None
    assert found.text_distance == Distances(0.0, 0.0)


def test_empty_answers_are_equal_and_far_from_any_other() -> None:
    assert edit_distances(["", ""]) == Distances(0.0, 0.0)
    assert edit_distances(["", "a"]) == Distances(1.0, 1.0)
    assert edit_distances([]) == edit_distances(["a"]) == Distances(0.0, 0.0)
    assert measure(cell(["", ""])).mean_chars == 0


def test_a_character_outside_the_first_plane_is_one_character() -> None:
    assert edit_distances(["😀b", "😁b"]) == Distances(0.5, 0.5)
    found = measure(cell(["😀" * 300, "😀" * 300]))
    assert found.mean_chars == 300
    assert measure(cell(["😀" * 200 + "a", "😀" * 200 + "b"])).prefix_distance.max == 0.0


def slow_distance(one: str, other: str) -> int:
    """Levenshtein's recurrence, as in the textbook."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        above = row
        row = [i]
        for j, b in enumerate(other, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a != b)))
    return row[-1]


@settings(deadline=None)
@given(st.lists(st.text(alphabet="ab😀", max_size=6), min_size=2, max_size=6))
def test_distances_are_those_of_all_pairs(texts: list[str]) -> None:
    pairs = [
        slow_distance(one, other) / max(len(one), len(other), 1) for one, other in itertools.combinations(texts, 2)
    ]
    found = edit_distances(texts)
    assert found.mean == pytest.approx(sum(pairs) / len(pairs))
    assert found.max == pytest.approx(max(pairs))


def test_survival_multiplies_over_calls() -> None:
    assert survival(0.0, 97) == 1.0
    assert survival(1.0, 1) == 0.0
    assert survival(0.1, 2) == pytest.approx(0.81)
    assert survival(0.01, 97) == pytest.approx(0.99**97)


def labelled(*replays: tuple[str, str]) -> Cell:
    """A cell of a reference "a", and of replays by label and text."""
    surfaces, tallied = tally(Observed(label, surface(text), 0.5) for label, text in (("alone", "a"), *replays))
    return cell(["a"]).model_copy(update={"surfaces": surfaces, "replays": tallied})


def test_two_calls_stand_beside_each_other_under_the_same_circumstances() -> None:
    projection = labelled(("batch of 2", "a"), ("batch of 2", "b"), ("batch of 8", "b"), ("place 3", "a"))
    decision = labelled(("batch of 8", "a"), ("batch of 2", "a"), ("place 2", "a"))
    assert measured_survival(projection, decision) == measured_survival(decision, projection) == (1, 2)
    assert measured_survival(projection, labelled(("place 2", "a"))) == (0, 0)


def test_two_calls_survive_where_both_are_identical() -> None:
    projection, decision = cell(["a", "a", "b", "a", "a"]), cell(["x", "x", "x", "y", "x"])
    assert measured_survival(projection, decision) == (2, 4)
    assert measured_survival(projection, cell(["x", "x"])) == (1, 1)
    assert measured_survival(cell(["a"]), decision) == (0, 0)


def test_pooling_adds_trials_and_nothing_to_pool_is_an_error() -> None:
    drift = pool([cell(["a"] * 10), cell(["a", "b"])])
    assert drift == Drift(10, 1)
    assert drift.rate == 0.1
    assert drift.max_rate == upper_bound(1, 10)
    with pytest.raises(RequestError, match="nothing to pool"):
        pool([cell(["a"])])


def test_the_published_table_is_internally_possible() -> None:
    assert len(TABLE_3) == 7
    for row in TABLE_3:
        assert 1 <= row.num_unique_texts <= row.num_replays == 10
        assert 0 <= row.mean_prefix_distance <= row.max_prefix_distance <= 1
        assert row.min_drifted == row.num_unique_texts - 1
