"""The suite without a model: what each check finds, what it takes for no finding, and what a run leaves behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from determinism.cell import Cell
from determinism.endpoints.endpoint import Endpoint, Request
from determinism.suite.arena import Effort
from determinism.suite.checks import CHECKS, ROUTES, TURNED_ROUTES
from determinism.suite.controls import CONTROLS, Control
from determinism.suite.faults import Circumstance, FaultyEndpoint, PureFault
from determinism.suite.plan import TINY_MODEL_LEN
from determinism.suite.results import open_results, read_results
from determinism.suite.run import LanePlan, conclude, run
from determinism.workloads import Workload, choose_workloads
from inference.scripted_engine import ScriptedTokenizer
from projection.engine import Completion
from projection.errors import ConfigurationError, EngineError
from reporting.journal import JournalError
from tests.determinism.suite.simulated_lane import (
    EVERYTHING,
    FEATURES,
    PURE_CONTROLS,
    WORKLOADS,
    SimulatedEndpoint,
    SimulatedLane,
    make_plain,
    make_plan,
)

ROOT = Path(__file__).parents[3]
NAMES = [check.name for check in CHECKS]
KEYS = list(make_plan().cell_keys())


def hold(folder: Path, *plans: LanePlan) -> list[Cell]:
    with open_results(folder, {"a": "run"}) as journal:
        return list(run(plans, journal))


def verdicts(cells: Sequence[Cell]) -> dict[str, set[str]]:
    return {check: {cell.verdict for cell in cells if cell.check == check} for check in dict.fromkeys(NAMES)}


def control_id(control: Control) -> str:
    return f"{control.check}: {control.name}"


def lane_with(control: Control) -> SimulatedLane:
    """A lane that is right but for the control's fault, wherever the suite would put it."""
    fault = control.fault
    assert isinstance(fault, PureFault)
    (beside,) = {check.beside for check in CHECKS if check.name == control.check}
    seen_by = {"route": ROUTES, "streaming": TURNED_ROUTES, "second_server": ("server 1", "server 2")}
    names = seen_by.get(control.check, (str(beside),))

    def make_beside(place: str) -> Endpoint:
        endpoint = SimulatedEndpoint(place)
        is_faulty = control.target == "beside" and place.rpartition(" ")[0] in names
        return FaultyEndpoint(endpoint, fault, ScriptedTokenizer()) if is_faulty else endpoint

    def make_main(place: str) -> Endpoint:
        endpoint = make_plain(place)
        return FaultyEndpoint(endpoint, fault, ScriptedTokenizer()) if control.target == "endpoint" else endpoint

    return SimulatedLane(make_main, make_beside)


def test_a_sound_engine_passes_every_check_on_every_workload(tmp_path: Path) -> None:
    cells = hold(tmp_path, make_plan())
    assert [cell.key for cell in cells] == KEYS
    free = {"mortgage-decision-short-free", "claim-decision-short-free"}
    assert {(key.check, key.workload) for key in KEYS} == {(check, name) for check in NAMES for name in WORKLOADS} - {
        ("speculation", name) for name in free
    }
    assert {(cell.verdict, cell.reason) for cell in cells} == {("PASS", "")}
    assert all(cell.num_comparisons >= 1 and len(cell.surfaces) == 1 for cell in cells)
    assert conclude(cells) == 0


def test_every_check_has_a_control() -> None:
    assert {control.check for control in PURE_CONTROLS} == set(NAMES)


@pytest.mark.parametrize("control", PURE_CONTROLS, ids=control_id)
def test_a_fault_fails_the_check_that_is_made_for_it_and_no_other(control: Control, tmp_path: Path) -> None:
    found = verdicts(hold(tmp_path, make_plan(lane_with(control))))
    assert "DRIFT" in found.pop(control.check)
    assert set().union(*found.values()) == {"PASS"}


def test_all_controls_fail_as_they_must_and_the_run_holds(tmp_path: Path) -> None:
    cells = hold(tmp_path, make_plan(controls=PURE_CONTROLS))
    controls = [cell for cell in cells if cell.control]
    assert [(cell.check, cell.control) for cell in controls] == [(c.check, c.name) for c in PURE_CONTROLS]
    assert {(cell.verdict, cell.expected, cell.holds) for cell in controls} == {("DRIFT", "DRIFT", True)}
    assert all(cell.reason and cell.first_difference for cell in controls)
    assert conclude(cells) == 0


def test_a_control_that_does_not_fail_fails_the_run(tmp_path: Path) -> None:
    def never(_circumstance: Circumstance) -> bool:
        return False

    harmless = Control("harmless", "run_to_run", "endpoint", PureFault("one ULP", never))
    cells = hold(tmp_path, make_plan(checks=["run_to_run"], controls=[harmless]))
    assert cells[-1].verdict == "PASS"
    assert not cells[-1].holds
    assert conclude(cells) == 1


@pytest.mark.parametrize(
    ("missing", "checks"),
    [
        (
            "max_num_running",
            {"batch_size", "batch_position", "arrival_order", "strangers", "neighbour_abort", "preemption"},
        ),
        ("num_preemptions", {"preemption"}),
        ("num_draft_tokens", {"speculation"}),
        ("num_cached_tokens", {"prefix_cache"}),
        ("num_steps", {"chunked_prefill"}),
    ],
)
def test_a_check_whose_circumstance_did_not_come_about_is_an_error(
    missing: str, checks: set[str], tmp_path: Path
) -> None:
    lane = SimulatedLane(
        lambda place: make_plain(place, witnesses=EVERYTHING - FEATURES - {missing}),
        lambda place: SimulatedEndpoint(place, witnesses=EVERYTHING - {missing}),
    )
    cells = hold(tmp_path, make_plan(lane, controls=PURE_CONTROLS))
    assert {cell.check for cell in cells if cell.verdict == "ERROR"} == checks
    assert all(missing in cell.reason for cell in cells if cell.verdict == "ERROR")
    assert conclude(cells) == 4


def test_a_question_whose_answer_repeats_nothing_is_skipped_by_speculation_unless_all_are(tmp_path: Path) -> None:
    repeating, other = choose_workloads(["mortgage-projection-short", "mortgage-decision-short"])
    prompt = repeating.prompt_token_ids(ScriptedTokenizer())

    class Guessing(SimulatedEndpoint):
        def ask(self, requests: Sequence[Request]) -> list[Completion]:
            repeats = any(request.prompt_token_ids == prompt for request in requests)
            self._witnesses = EVERYTHING if repeats else EVERYTHING - FEATURES
            return super().ask(requests)

    def found(folder: str, *workloads: Workload) -> dict[str, str]:
        lane = SimulatedLane(make_beside=Guessing)
        plan = make_plan(lane, checks=["speculation"], workloads=workloads, effort=Effort(24, (2,), 3, 9))
        cells = hold(tmp_path / folder, plan)
        assert sum(cell.num_comparisons for cell in cells) in {0, 9}
        return {cell.workload: cell.verdict for cell in cells}

    assert found("both", repeating, other) == {repeating.name: "PASS", other.name: "SKIPPED"}
    assert found("one", other) == {other.name: "ERROR"}


@pytest.mark.parametrize("check", ["speculation", "prefix_cache"])
def test_a_feature_that_is_on_in_both_engines_was_not_turned(check: str, tmp_path: Path) -> None:
    cells = hold(tmp_path, make_plan(SimulatedLane(SimulatedEndpoint), checks=[check]))
    assert {cell.verdict for cell in cells} == {"ERROR"}
    assert all("moved on 2 of two engines" in cell.reason for cell in cells)


def test_no_batch_reads_a_prefix_that_was_computed_before(tmp_path: Path) -> None:
    main = make_plain("main")
    hold(tmp_path, make_plan(SimulatedLane(lambda _place: main), checks=["batch_size"]))
    assert main.num_forgotten == len(WORKLOADS) * 2


def test_a_neighbour_that_ended_by_itself_is_an_error(tmp_path: Path) -> None:
    lane = SimulatedLane(lambda place: make_plain(place, gives_up=False))
    found = verdicts(hold(tmp_path, make_plan(lane)))
    assert found["neighbour_abort"] == {"ERROR"}


def test_a_neighbour_that_is_given_up_fits_into_the_tiny_model_s_context(tmp_path: Path) -> None:
    class Recording(SimulatedEndpoint):
        longest = 0

        def ask_beside_abort(self, request: Request, victim: Request) -> tuple[Completion, bool]:
            self.longest = max(self.longest, len(victim.prompt_token_ids) + victim.max_tokens)
            return super().ask_beside_abort(request, victim)

    main = Recording("main")
    hold(tmp_path, make_plan(SimulatedLane(lambda _place: main), checks=["neighbour_abort"]))
    assert 0 < main.longest <= TINY_MODEL_LEN


@pytest.mark.parametrize("check", ["restart", "second_server", "route", "streaming"])
def test_the_same_endpoint_twice_is_no_second_one(check: str, tmp_path: Path) -> None:
    lane = SimulatedLane(make_beside=lambda _place: SimulatedEndpoint("main"))
    cells = hold(tmp_path, make_plan(lane, checks=[check]))
    assert {cell.verdict for cell in cells} == {"ERROR"}


def test_an_endpoint_that_cannot_say_what_ran_together_skips_the_batches_and_says_why(tmp_path: Path) -> None:
    lane = SimulatedLane(lambda place: make_plain(place, is_counting=False))
    cells = hold(tmp_path, make_plan(lane, controls=PURE_CONTROLS))
    skipped = {cell.check for cell in cells if cell.verdict == "SKIPPED"}
    assert skipped == {check.name for check in CHECKS if check.is_counted}
    assert all(cell.reason for cell in cells if cell.verdict == "SKIPPED")
    assert conclude(cells) == 0


def test_what_a_lane_cannot_do_is_skipped_with_its_reason_and_never_absent(tmp_path: Path) -> None:
    real = [control for control in CONTROLS if control not in PURE_CONTROLS]
    cells = hold(tmp_path, make_plan(checks=["restart"], controls=real))
    assert {cell.control for cell in cells if cell.verdict == "SKIPPED"} == {
        c.name for c in real if c.check == "restart"
    }
    assert all("without a model" in cell.reason for cell in cells if cell.control)


def test_nothing_but_skipped_cells_is_nothing() -> None:
    assert conclude([]) == 5


def test_strangers_need_a_second_tenant(tmp_path: Path) -> None:
    plan = make_plan(checks=["strangers"])
    cells = hold(tmp_path, replace(plan, workloads=plan.workloads[:1]))
    assert [cell.verdict for cell in cells] == ["ERROR"]


@pytest.mark.parametrize("num_comparisons", [1, 7, 40])
def test_power_is_the_least_number_of_comparisons_of_each_check(num_comparisons: int, tmp_path: Path) -> None:
    plan = make_plan(effort=Effort(24, (2, 8), 4, num_comparisons))
    cells = hold(tmp_path, plan)
    counted = {check: sum(cell.num_comparisons for cell in cells if cell.check == check) for check in NAMES}
    assert min(counted.values()) >= num_comparisons
    assert {cell.verdict for cell in cells} == {"PASS"}


def test_power_is_spread_evenly_over_the_workloads(tmp_path: Path) -> None:
    plan = make_plan(checks=["run_to_run", "batch_size", "restart"], effort=Effort(24, (2, 8), 3, 40))
    cells = hold(tmp_path, plan)
    for check in ("run_to_run", "batch_size", "restart"):
        counted = [cell.num_comparisons for cell in cells if cell.check == check]
        assert 40 <= sum(counted) <= 43
        assert max(counted) - min(counted) <= 3


def test_every_row_of_a_batch_is_compared_and_each_request_once(tmp_path: Path) -> None:
    """The claim's only workload has no neighbours but itself, so a batch of it is one comparison."""
    by_key = {cell.key: cell for cell in hold(tmp_path, make_plan(checks=["batch_size", "strangers"]))}
    counted = {(key.check, key.workload): cell.num_comparisons for key, cell in by_key.items()}
    projection, free, claim = WORKLOADS
    assert counted["batch_size", projection] == counted["batch_size", free] == 4
    assert counted["batch_size", claim] == 2
    assert [counted["strangers", name] for name in WORKLOADS] == [2, 2, 3]


def test_a_fault_of_a_row_that_does_not_lead_is_found(tmp_path: Path) -> None:
    def is_second_of_eight(c: Circumstance) -> bool:
        return c.how == "at once" and len(c.batch) == 8 and c.place == 1

    fault = PureFault("one ULP", is_second_of_eight)
    lane = SimulatedLane(lambda place: FaultyEndpoint(make_plain(place), fault, ScriptedTokenizer()))
    cells = {cell.workload: cell.verdict for cell in hold(tmp_path, make_plan(lane, checks=["batch_size"]))}
    assert cells == dict(zip(WORKLOADS, ("DRIFT", "DRIFT", "PASS"), strict=True))


def test_a_cell_that_is_there_counts_towards_the_power_of_its_check(tmp_path: Path) -> None:
    plan = make_plan(checks=["run_to_run"], effort=Effort(24, (2, 8), 3, 20))
    with open_results(tmp_path, {"a": "run"}) as journal:
        kept = next(run([plan], journal))
    rest = hold(tmp_path, plan)
    assert [cell.num_comparisons for cell in (kept, *rest)] == [9, 6, 6]


def test_a_restart_is_a_new_process_in_every_turn_and_all_else_is_opened_once(tmp_path: Path) -> None:
    lane = SimulatedLane()
    hold(tmp_path, make_plan(lane, effort=Effort(24, (2,), 4, 6)))
    assert lane.num_opened == {"main": 1, "new process": 2} | dict.fromkeys(
        ["speculation turned", "chunking", "caching turned", "crowded", "routes", "second server"], 1
    )


def test_another_engine_in_the_new_process_is_incomparable(tmp_path: Path) -> None:
    lane = SimulatedLane(make_beside=lambda place: SimulatedEndpoint(place, identity="f" * 64))
    cells = hold(tmp_path, make_plan(lane, checks=["run_to_run", "restart"]))
    assert verdicts(cells)["restart"] == {"INCOMPARABLE"}
    assert "f" * 64 in cells[-1].reason
    assert conclude(cells) == 3


def test_an_engine_that_dies_makes_errors_and_keeps_what_was_finished(tmp_path: Path) -> None:
    lane = SimulatedLane(lambda place: make_plain(place, dies_after=13))
    cells = hold(tmp_path, make_plan(lane))
    assert [cell.verdict for cell in cells[:3]] == ["PASS"] * 3
    found = verdicts(cells)
    assert found["batch_size"] == found["neighbour_abort"] == {"ERROR"}
    assert {cell.reason for cell in cells if cell.verdict == "ERROR"} == {"the simulated engine ended"}
    assert len(cells) == len(KEYS)
    assert conclude(cells) == 4


def test_a_drift_is_not_forgotten_when_a_later_turn_fails(tmp_path: Path) -> None:
    """Two turns of three comparisons on one workload: the fault is in the first, and the engine ends in the second."""
    fault = PureFault("one ULP", lambda c: c.num_before == 1)
    lane = SimulatedLane(lambda place: FaultyEndpoint(make_plain(place, dies_after=5), fault, ScriptedTokenizer()))
    plan = make_plan(lane, checks=["run_to_run"], effort=Effort(24, (2, 8), 3, 6))
    (cell,) = hold(tmp_path, replace(plan, workloads=plan.workloads[:1]))
    assert (cell.verdict, cell.num_comparisons, cell.num_drifted) == ("DRIFT", 3, 1)
    assert cell.reason.startswith("again, time 2: logprobs differ at token ")
    assert cell.reason.endswith("; and a turn is ERROR: the simulated engine ended")
    assert conclude([cell]) == 1


def test_an_engine_that_cannot_be_opened_ends_the_run(tmp_path: Path) -> None:
    def fail(_place: str) -> Endpoint:
        raise EngineError("no server answers")

    with pytest.raises(EngineError, match="no server answers"):
        hold(tmp_path, make_plan(SimulatedLane(fail)))


def test_a_run_that_was_interrupted_continues_and_asks_nothing_twice(tmp_path: Path) -> None:
    whole = hold(tmp_path / "whole", make_plan(controls=PURE_CONTROLS))
    with open_results(tmp_path / "cut", {"a": "run"}) as journal:
        first = list(islice(run([make_plan(controls=PURE_CONTROLS)], journal), 11))
    rest = hold(tmp_path / "cut", make_plan(controls=PURE_CONTROLS))
    assert [cell.key for cell in [*first, *rest]] == [cell.key for cell in whole]
    _, kept = read_results(tmp_path / "cut")
    assert [(cell.key, cell.surfaces, cell.evidence) for cell in kept] == [
        (cell.key, cell.surfaces, cell.evidence) for cell in whole
    ]


def test_a_finished_run_opens_no_engine_again(tmp_path: Path) -> None:
    hold(tmp_path, make_plan())
    lane = SimulatedLane()
    assert hold(tmp_path, make_plan(lane)) == []
    assert lane.num_opened == {}


def test_a_killed_suite_leaves_finished_cells_and_gives_up_its_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.determinism.suite.process", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline().strip() for _ in range(5)]
        with pytest.raises(JournalError) as caught:
            open_results(tmp_path, {"a": "run"})
        process.kill()
    assert caught.value.fields["cause"] == "in_use"
    _, kept = read_results(tmp_path)
    assert [f"{cell.check} {cell.workload}" for cell in kept][:5] == said
    rest = hold(tmp_path, make_plan())
    assert len(kept) + len(rest) == len(KEYS)
    assert conclude([*kept, *rest]) == 0


def test_a_run_does_not_continue_on_another_engine(tmp_path: Path) -> None:
    hold(tmp_path, make_plan(checks=["run_to_run"]))
    other = SimulatedLane(lambda place: make_plain(place, identity="f" * 64))
    with pytest.raises(ConfigurationError, match="Begin in another folder"):
        hold(tmp_path, make_plan(other))
