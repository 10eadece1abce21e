"""The rule of the paper's section 9: every branch, its edges, its caveats, and what measured results change."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.experiments.tams import LONG_TRAJECTORY, Deployment, MeasuredThreshold, recommend
from projection.errors import RequestError

NOTHING = {"needs_replay": False, "needs_audit": False, "needs_isolation": False}


def measured(ratio: float | None, source: str = "results/quality") -> MeasuredThreshold:
    return MeasuredThreshold(source, "FRP", ratio, (2.0, 5.0, 20.0), 10)


@pytest.mark.parametrize("flags", [f for f in itertools.product([False, True], repeat=3) if any(f)])
def test_any_enterprise_property_means_dpm_whatever_the_ratio(flags: tuple[bool, bool, bool]) -> None:
    found = recommend(Deployment(*flags, trajectory_chars=1_000, budget_chars=1_000))
    assert (found.choice, found.branch) == ("dpm", "enterprise_properties")
    assert len(found.evidence) == sum(flags)


@pytest.mark.parametrize(
    ("trajectory_chars", "choice"), [(26_762, "dpm"), (13_381, "dpm"), (13_380, "either"), (1_000, "either")]
)
def test_without_them_the_ratio_decides_and_must_exceed_ten(trajectory_chars: int, choice: str) -> None:
    found = recommend(Deployment(**NOTHING, trajectory_chars=trajectory_chars, budget_chars=1_338))
    assert found.choice == choice
    assert found.threshold == 10


def test_a_measured_threshold_takes_the_papers_place_and_is_named() -> None:
    deployment = Deployment(**NOTHING, trajectory_chars=6_000, budget_chars=1_000)
    assert recommend(deployment).choice == "either"
    found = recommend(deployment, [measured(5.0)])
    assert (found.choice, found.branch, found.threshold) == ("dpm", "compression_ratio", 5.0)
    assert found.threshold_source == "results/quality"
    assert any("10 cases" in line and "from 5x on" in line for line in found.evidence)


def test_of_several_measured_thresholds_the_cautious_one_counts() -> None:
    deployment = Deployment(**NOTHING, trajectory_chars=6_000, budget_chars=1_000)
    assert recommend(deployment, [measured(5.0), measured(20.0, "other")]).choice == "either"


def test_results_that_show_no_threshold_leave_the_papers_and_say_so() -> None:
    found = recommend(Deployment(**NOTHING, trajectory_chars=20_000, budget_chars=1_000), [measured(None)])
    assert found.threshold == 10
    assert any("not significantly ahead" in line for line in found.evidence)


def test_long_trajectories_carry_the_papers_caveat() -> None:
    short = recommend(Deployment(**NOTHING, trajectory_chars=100_000, budget_chars=1_000))
    long = recommend(Deployment(**NOTHING, trajectory_chars=100_001, budget_chars=1_000))
    assert LONG_TRAJECTORY not in short.caveats
    assert LONG_TRAJECTORY in long.caveats
    assert len(short.caveats) == 3


@pytest.mark.parametrize(("trajectory_chars", "budget_chars"), [(0, 10), (10, 0), (-5, 10), (10**400, 1), (1, 10**400)])
def test_lengths_that_are_none_are_refused(trajectory_chars: int, budget_chars: int) -> None:
    with pytest.raises(RequestError):
        recommend(Deployment(**NOTHING, trajectory_chars=trajectory_chars, budget_chars=budget_chars))
