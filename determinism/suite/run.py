"""The suite: every check and control of a plan, held one after the other, each ending in one cell of the journal.

A check goes on until it has as many comparisons as the plan wants, all its workloads together: each leads one turn, and
then the one that was compared least, so that they come out about even. A row of a batch goes to the cell of its own
workload, whichever led. A control is one turn on one workload.

Promises that a finished cell is kept and never held again, that an endpoint which fails makes ERROR cells and never a
PASS, that a drift outweighs a failure, that nothing is asked twice because it failed, and that what cannot be done here
is a SKIPPED cell with its reason, never an absent one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pydantic import JsonValue

from determinism.cell import Cell, CellKey, Observed, tally
from determinism.endpoints.endpoint import Endpoint, NoOccasionError, NotPossibleError, Request, VacuousError
from determinism.suite.arena import Arena, Effort
from determinism.suite.checks import Beside, Check
from determinism.suite.controls import Control
from determinism.suite.faults import FaultyEndpoint, PureFault
from determinism.suite.lane import Lane
from determinism.suite.results import finished_cells, row_key
from determinism.verdict import Verdict, exit_code
from determinism.workloads import Workload, choose_workloads
from projection.errors import ConfigurationError, DpmError, PromptTooLongError
from reporting.journal import Journal

NUM_TURNS = "num_turns"
"""The evidence that says how many turns of its check a workload led."""


@dataclass(frozen=True, slots=True)
class LanePlan:
    """What is held on one lane.

    company: workloads that may stand beside the tested ones. max_batch_workloads: of checks that need a batch; None is
    all of them.
    """

    label: str
    open: Callable[[], Lane]
    checks: tuple[Check, ...]
    controls: tuple[Control, ...]
    workloads: tuple[Workload, ...]
    company: tuple[Workload, ...]
    effort: Effort
    max_batch_workloads: int | None = None

    def workloads_of(self, check: Check) -> list[Workload]:
        suitable = [workload for workload in self.workloads if workload.grammar or not check.needs_grammar]
        return suitable[: self.max_batch_workloads] if check.is_batched else suitable

    def controls_of(self, check: Check) -> list[tuple[Control, Workload]]:
        """The controls of a check, each on one workload: its own, or else a free one where it can be, since more is
        compared there.
        """
        workloads = sorted(self.workloads_of(check), key=lambda workload: workload.grammar is not None)
        controls = [control for control in self.controls if workloads and control.check == check.name]
        return [(c, choose_workloads([c.workload])[0] if c.workload else workloads[0]) for c in controls]

    def num_wanted(self, check: Check) -> int:
        """Comparisons of a check, at least; a check that nothing is suitable for wants none."""
        num_workloads = len(self.workloads_of(check))
        return max(self.effort.num_comparisons, num_workloads) if num_workloads else 0

    def cell_keys(self) -> Iterator[CellKey]:
        """The cells that the plan leads to, in their order."""
        for check in self.checks:
            for workload in self.workloads_of(check):
                yield CellKey(self.label, check.name, workload.name, None)
            for control, workload in self.controls_of(check):
                yield CellKey(self.label, check.name, workload.name, control.name)


@dataclass(slots=True)
class Findings:
    """What one cell has so far. verdict, reason: set where a turn failed, which ends its turns."""

    replays: list[Observed] = field(default_factory=list)
    evidence: dict[str, JsonValue] = field(default_factory=dict)
    verdict: Verdict | None = None
    reason: str = ""
    wall_s: float = 0.0
    num_turns: int = 0
    lacks_occasion: bool = False

    @property
    def num_comparisons(self) -> int:
        return max(0, len(self.replays) - 1)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Time what is done here; an error of ours is this cell's verdict."""
        started = time.perf_counter()
        try:
            yield
        except (NotPossibleError, PromptTooLongError) as exc:
            self.verdict, self.reason = "SKIPPED", exc.message
        except NoOccasionError as exc:
            self.verdict, self.reason, self.lacks_occasion = "SKIPPED", exc.message, True
        except DpmError as exc:
            self.verdict, self.reason = "ERROR", exc.message
        finally:
            self.wall_s += time.perf_counter() - started


Watch = Callable[[str, str, int], None]
"""Told before every turn: the engine, the check, and how many comparisons it has."""


def run(plans: Iterable[LanePlan], journal: Journal, watch: Watch = lambda *_: None) -> Iterator[Cell]:
    """Hold all that is not finished yet; each cell is yielded when it is on the disk.

    Raises:
        EngineError: an endpoint cannot be opened. ConfigurationError: it is not the one that the journal knows.
        StorageError: a cell cannot be kept.
    """
    for plan in plans:
        if not all(journal.is_done(row_key(key)) for key in plan.cell_keys()):
            with plan.open() as lane:
                yield from LaneRun(plan, lane, journal, watch).cells()


def conclude(cells: Iterable[Cell]) -> int:
    """The exit code of a suite: a control that did not fail weighs as much as a drift."""
    return exit_code(map(_weighed, cells))


def _weighed(cell: Cell) -> Verdict:
    if cell.control is None:
        return cell.verdict
    if cell.verdict == "PASS":
        return "DRIFT"
    return "PASS" if cell.holds else cell.verdict


class LaneRun:
    """One plan on its opened lane."""

    def __init__(self, plan: LanePlan, lane: Lane, journal: Journal, watch: Watch) -> None:
        self._plan, self._lane, self._journal, self._watch = plan, lane, journal, watch
        self._main = lane.open()
        self._require_same_engine()
        self._requests = {workload.name: self._request(workload) for workload in plan.workloads}
        of_controls = [workload for check in plan.checks for _, workload in plan.controls_of(check)]
        self._requests_of_controls = {workload.name: self._request(workload) for workload in of_controls}
        company = [replace(self._request(workload), grammar=None) for workload in plan.company]
        requests = tuple(dict.fromkeys([*self._requests.values(), *company]))
        self._arena = Arena(self._main, {}, requests, plan.effort)
        self._beside: tuple[tuple[Beside, int], Mapping[str, Endpoint]] | None = None

    def _request(self, workload: Workload) -> Request:
        return Request.of(workload, self._lane.tokenizer, self._plan.effort.max_tokens)

    def cells(self) -> Iterator[Cell]:
        for check in self._plan.checks:
            yield from self._hold(check)
            for control, workload in self._plan.controls_of(check):
                yield from self._hold_control(check, control, workload.name)

    def _require_same_engine(self) -> None:
        for cell in finished_cells(self._journal):
            if cell.engine == self._plan.label and cell.engine_identity != self._main.identity:
                raise ConfigurationError(
                    f"this run began with the engine {cell.engine_identity}, and {self._main.identity} answers now: "
                    "other weights, libraries, flags or hardware. Begin in another folder",
                    expected=cell.engine_identity,
                    found=self._main.identity,
                )

    def _is_done(self, check: Check, workload: str, control: str | None = None) -> bool:
        return self._journal.is_done(row_key(CellKey(self._plan.label, check.name, workload, control)))

    def _hold(self, check: Check) -> Iterator[Cell]:
        """All workloads of a check, turn after turn, until enough was compared."""
        workloads = [workload.name for workload in self._plan.workloads_of(check)]
        findings = {name: Findings() for name in workloads if not self._is_done(check, name)}
        num_kept = sum(self._num_kept(check, name) for name in workloads if name not in findings)
        while True:
            num_compared = num_kept + sum(found.num_comparisons for found in findings.values())
            self._watch(self._plan.label, check.name, num_compared)
            name = _next_to_lead(findings, num_compared < self._plan.effort.num_comparisons)
            if name is None:
                break
            self._take_turn(check, findings, name)
        if not num_compared:
            _require_occasion(findings.values())
        for name, found in findings.items():
            yield self._keep(check, name, found)

    def _num_kept(self, check: Check, workload: str) -> int:
        key = CellKey(self._plan.label, check.name, workload, None)
        return Cell.from_value(self._journal.rows[row_key(key)]).num_comparisons

    def _take_turn(self, check: Check, findings: Mapping[str, Findings], name: str) -> None:
        found = findings[name]
        with found.measured():
            self._prepare(check, self._arena)
            others = self._others(check, found.num_turns)
            if check.is_same_engine and (strange := _strange(self._main, others)):
                found.verdict, found.reason = "INCOMPARABLE", strange
                return
            arena = replace(self._arena, others=others)
            self._observe(check, arena, {self._requests[one]: held for one, held in findings.items()}, name)

    def _prepare(self, check: Check, arena: Arena) -> None:
        """See that batches can be shown, and that none of them will wait for a grammar."""
        if check.is_counted:
            if arena.main.counters() is None:
                raise NotPossibleError("this endpoint does not say what ran together, so a batch cannot be shown")
            arena.ask_each(self._requests.values())

    def _others(self, check: Check, turn: int) -> Mapping[str, Endpoint]:
        """What the check needs beside the endpoint; opened once for all workloads of a turn."""
        if check.beside is None:
            return {}
        wanted = (check.beside, turn if check.is_renewed else 0)
        if self._beside is None or self._beside[0] != wanted:
            self._beside = None
            self._beside = (wanted, self._lane.open_beside(check.beside, self._arena.requests))
        return self._beside[1]

    def _observe(self, check: Check, arena: Arena, held: Mapping[Request, Findings], name: str) -> None:
        """One turn that one request leads; every row goes to the findings of its request, where there are any."""
        request = self._requests.get(name) or self._requests_of_controls[name]
        found = held[request]
        if not found.replays:
            found.replays.append(check.reference(arena, request))
        observation = check.observe(arena, request, found.num_turns)
        for asked, replay in observation.rows:
            if asked in held:
                held[asked].replays = held[asked].replays or [check.reference(arena, asked)]
                held[asked].replays.append(replay)
        if not found.num_comparisons:
            raise VacuousError("the check was vacuous: it made no replay")
        found.num_turns += 1
        found.evidence = {**observation.evidence, NUM_TURNS: found.num_turns}

    def _hold_control(self, check: Check, control: Control, name: str) -> Iterator[Cell]:
        if self._is_done(check, name, control.name):
            return
        found = Findings()
        with found.measured():
            self._prepare(check, self._arena)
            arena = self._faulty(check, control)
            self._observe(check, arena, {self._requests_of_controls[name]: found}, name)
            found.evidence["engine_identity_with_fault"] = _identities(arena, control)
        _require_occasion([found])
        yield self._keep(check, name, found, control)

    def _faulty(self, check: Check, control: Control) -> Arena:
        """The arena with the control's fault in it."""
        if isinstance(control.fault, PureFault):
            others = self._others(check, 0)
            if control.target == "endpoint":
                faulty = FaultyEndpoint(self._main, control.fault, self._lane.tokenizer)
                return replace(self._arena, main=faulty, others=others, answers={})
            wrapped = {n: FaultyEndpoint(o, control.fault, self._lane.tokenizer) for n, o in others.items()}
            return replace(self._arena, others=wrapped)
        self._beside = None
        wrong = self._lane.open_faulty(control.fault)
        if control.target == "beside":
            return replace(self._arena, others={control.name: wrong})
        arena = replace(self._arena, main=wrong, answers={})
        self._prepare(check, arena)
        return arena

    def _keep(self, check: Check, workload: str, found: Findings, control: Control | None = None) -> Cell:
        cell = self._cell(check, workload, found, control)
        self._journal.append(row_key(cell.key), cell.to_value())
        return cell

    def _cell(self, check: Check, workload: str, found: Findings, control: Control | None) -> Cell:
        surfaces, replays = tally(found.replays)
        draft = Cell(
            engine=self._plan.label,
            engine_identity=self._main.identity,
            check=check.name,
            workload=workload,
            control=None if control is None else control.name,
            expected="PASS" if control is None else "DRIFT",
            verdict="DRIFT" if len(surfaces) > 1 else found.verdict or "PASS",
            reason=found.reason,
            surfaces=surfaces,
            replays=replays,
            evidence=found.evidence,
            wall_s=found.wall_s,
        )
        if draft.verdict != "DRIFT":
            return draft
        failure = f"; and a turn is {found.verdict}: {found.reason}" if found.verdict else ""
        return draft.model_copy(update={"reason": _difference(draft) + failure})


def _require_occasion(findings: Iterable[Findings]) -> None:
    """A check to which no question gave an occasion has shown nothing."""
    for found in findings:
        if found.lacks_occasion:
            found.verdict = "ERROR"


def _next_to_lead(findings: Mapping[str, Findings], wants_more: bool) -> str | None:
    """Who has not led yet, then who was compared least; None is the end."""
    able = [name for name, found in findings.items() if found.verdict is None]
    unled = [name for name in able if not findings[name].num_turns]
    if unled:
        return unled[0]
    least = min(able, key=lambda name: (findings[name].num_comparisons, findings[name].num_turns), default=None)
    return least if wants_more else None


def _difference(cell: Cell) -> str:
    """Where the first replay that drifted parts from the reference."""
    drifted = cell.first_drifted
    return f"{drifted.label}: {cell.first_difference}" if drifted else ""


def _strange(main: Endpoint, others: Mapping[str, Endpoint]) -> str:
    """What is of another identity beside the endpoint, as a sentence; empty where nothing is."""
    strange = [f"{name} is {other.identity}" for name, other in others.items() if other.identity != main.identity]
    return f"the endpoint is {main.identity}, but {'; '.join(strange)}" if strange else ""


def _identities(arena: Arena, control: Control) -> JsonValue:
    """Of what has the fault: where it is another one, replays of records would have been INCOMPARABLE already."""
    faulty = [arena.main] if control.target == "endpoint" else list(arena.others.values())
    return list(sorted({endpoint.identity for endpoint in faulty}))
