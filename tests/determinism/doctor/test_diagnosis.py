"""The doctor names a switch only when it alone decides, both ways; what decides nothing is ruled out, never named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from determinism.doctor.diagnosis import Diagnosis, Trial, diagnose
from projection.errors import EngineError

NAMES = tuple("abcdefgh")


def agreeing_with(*needed: str) -> Callable[[tuple[str, ...]], bool]:
    """A world in which the result agrees when all of these are turned."""
    return lambda turned: set(needed) <= set(turned)


@given(st.sampled_from(NAMES), st.integers(0, len(NAMES)))
def test_the_one_switch_that_decides_is_named(cause: str, num_restoring: int) -> None:
    found = diagnose(NAMES[:num_restoring], NAMES[num_restoring:], agreeing_with(cause))
    assert found.causes == (cause,)
    assert cause not in found.ruled_out
    assert found.trials[-1] == Trial((), "differs")


@given(st.sets(st.sampled_from(NAMES), min_size=2, max_size=3))
def test_switches_that_decide_only_together_are_named_together(needed: set[str]) -> None:
    found = diagnose(NAMES, (), agreeing_with(*needed))
    assert needed <= set(found.causes)
    assert agreeing_with(*needed)(found.causes)


def test_a_circumstance_that_matters_only_under_a_recorded_setting_is_named_with_it() -> None:
    found = diagnose(("attention",), ("neighbours", "warm cache"), agreeing_with("attention", "warm cache"))
    assert (found.causes, found.ruled_out) == (("attention", "warm cache"), ("neighbours",))


def test_restoring_switches_are_halved_so_that_many_cost_few_trials() -> None:
    names = [f"field {number}" for number in range(64)]
    found = diagnose(names, (), agreeing_with("field 63"))
    assert found.causes == ("field 63",)
    assert len(found.trials) <= 1 + 2 * 6 + 1


def test_nothing_is_named_when_no_switch_decides() -> None:
    found = diagnose(("a", "b"), ("c",), lambda turned: False)
    assert (found.causes, found.ruled_out) == ((), ("a", "b", "c"))
    assert {trial.result for trial in found.trials} == {"differs"}


def test_nothing_is_named_when_turning_back_does_not_make_it_differ_again() -> None:
    """The result agreed, but not because of the switch: it agrees by now whatever is turned."""
    found = diagnose((), ("a",), lambda turned: True)
    assert found == Diagnosis((), (Trial(("a",), "agrees"), Trial((), "agrees")), is_repeatable=False)


def test_what_cannot_be_tried_is_neither_named_nor_ruled_out() -> None:
    def probe(turned: tuple[str, ...]) -> bool:
        if "broken" in turned:
            raise EngineError("this cannot be started")
        return "cause" in turned

    found = diagnose((), ("broken", "cause"), probe)
    assert (found.causes, found.ruled_out) == (("cause",), ())
    assert found.trials[0] == Trial(("broken",), "not possible", "this cannot be started")


def test_what_cannot_be_restored_does_not_keep_the_others_from_being_tried() -> None:
    def probe(turned: tuple[str, ...]) -> bool:
        if "broken" in turned:
            raise EngineError("this cannot be started")
        return {"recorded", "other"} <= set(turned)

    assert diagnose(("broken", "recorded"), ("idle", "other"), probe).causes == ("recorded", "other")


@pytest.mark.parametrize("names", [(), ("a",)])
def test_with_nothing_that_decides_the_circumstances_are_not_tried_again(names: tuple[str, ...]) -> None:
    assert all(trial.turned for trial in diagnose((), names, lambda turned: False).trials)
