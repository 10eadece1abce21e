"""How far a run has come: in comparisons, and when it ends."""

from __future__ import annotations

from determinism.cell import Cell
from determinism.suite.arena import Effort
from determinism.suite.pace import Pace
from determinism.suite.run import LanePlan
from tests.determinism.cell_samples import cell
from tests.determinism.suite.simulated_lane import LABEL, PURE_CONTROLS, WORKLOADS, make_plan

ROOMY = make_plan(checks=["run_to_run", "restart"], controls=PURE_CONTROLS[:1], effort=Effort(24, (2,), 3, 30))


def of(plan: LanePlan, *finished: Cell) -> Pace:
    return Pace([plan], finished)


def kept(workload: str, control: str | None = None) -> Cell:
    return cell(["a"] * 6, check="run_to_run", workload=workload, engine=LABEL, control=control)


def test_a_run_wants_comparisons_of_each_check_and_each_control_once() -> None:
    assert (of(ROOMY).num_wanted, of(ROOMY).num_done) == (61, 0)
    assert of(make_plan(checks=["run_to_run"])).num_wanted == len(WORKLOADS)


def test_what_a_check_compares_beyond_its_wish_is_not_counted() -> None:
    pace = of(ROOMY)
    assert pace.compare(LABEL, "restart", 12) == "restart: 12 of 30 comparisons"
    assert pace.num_done == 12
    pace.compare(LABEL, "restart", 40)
    assert pace.num_done == 30


def test_time_left_follows_the_pace_of_this_process() -> None:
    assert of(ROOMY).left_s(5.0) is None
    pace = of(ROOMY, kept(WORKLOADS[0]))
    assert pace.num_done == 5
    pace.compare(LABEL, "run_to_run", 15)
    assert pace.left_s(10.0) == 46.0


def test_a_check_that_is_finished_has_all_it_wanted_whatever_it_could_compare() -> None:
    pace = of(ROOMY, *map(kept, WORKLOADS), kept(WORKLOADS[0], PURE_CONTROLS[0].name))
    assert (pace.num_cells, pace.num_done) == (4, 31)
