"""Running a comparison: every answer becomes a row on the disk before the next one counts, so nothing is asked twice.

Promises that a run which is interrupted, or reaches its limit of calls, keeps every answer and continues where it
stopped; that the rows of a lane come from one engine identity; and that the reference of a cell is asked for alone and
every other answer beside strangers that were counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import asdict
from os import PathLike
from typing import NamedTuple

from determinism.compare.lanes import Answered, Lane, open_lanes
from determinism.compare.live_surface import Question
from determinism.compare.plan import CellPlan, Plan, load_questions, load_strangers
from determinism.compare.traffic import Traffic, strangers
from inference.config import EngineConfig
from projection.errors import RequestError
from projection.record import template_digest
from reporting.journal import Journal, Row

SCHEMA = "dpm/comparison"
VERSION = 1


class Step(NamedTuple):
    """Where a run is. tokens_done, tokens_all: of the answers on the disk and of the whole plan, at their most."""

    tokens_done: int
    tokens_all: int
    cell: str


Report = Callable[[Step], None]


def open_comparison(directory: str | PathLike[str], plan: Plan) -> Journal:
    """Begin or continue a run in a folder.

    Raises:
        JournalError: another run writes there, or the folder holds another plan. StorageError: it cannot be used.
    """
    parameters = {**plan.parameters(), "template_digest": template_digest()}
    return Journal.open(directory, schema=SCHEMA, version=VERSION, parameters=parameters)


def run_comparison(
    plan: Plan, journal: Journal, config: EngineConfig, engine: str, max_calls: int, report: Report
) -> None:
    """Ask everything that is not on the disk yet.

    Raises:
        CallLimitError: a live lane has no call left; what was answered is kept.
        ConfigurationError, NotFoundError, EngineError: a lane cannot be opened, or failed.
        RequestError: a lane is another engine than the one that answered before.
    """
    report(_step(plan, journal, "begins"))
    lanes = open_lanes(
        plan, config, engine, lambda lane: bool(_open_cells(plan, journal, lane)), load_strangers(plan), max_calls
    )
    with closing(lanes):  # type: ignore[type-var]  # a generator, which has `close`
        run_lanes(plan, journal, lanes, load_questions(plan), report)


def run_lanes(
    plan: Plan, journal: Journal, lanes: Iterable[Lane], questions: Mapping[str, Question], report: Report
) -> None:
    """Run lanes that open as they are reached; raises as `run_comparison`."""
    for lane in lanes:
        _require_same_engine(journal, lane)
        try:
            for length in plan.lengths:
                cells = [cell for cell in _open_cells(plan, journal, lane.name) if cell.max_tokens == length]
                if cells:
                    _run_cells(plan, journal, lane, cells, questions)
                    report(_step(plan, journal, f"{lane.name}, {length} tokens"))
        finally:
            _record_calls(journal, lane)


def _step(plan: Plan, journal: Journal, done: str) -> Step:
    tokens = [(key, cell.max_tokens) for lane in plan.lanes for cell in plan.cells(lane) for key in cell.keys]
    on_disk = sum(max_tokens for key, max_tokens in tokens if journal.is_done(key))
    return Step(on_disk, sum(max_tokens for _, max_tokens in tokens), done)


def _open_cells(plan: Plan, journal: Journal, lane: str) -> list[CellPlan]:
    return [cell for cell in plan.cells(lane) if not all(map(journal.is_done, cell.keys))]


def _require_same_engine(journal: Journal, lane: Lane) -> None:
    """The first opening of a lane records its identity; a later one must be the same."""
    key = identity_key(lane.name)
    if not journal.is_done(key):
        journal.append(key, {"engine_identity": lane.identity.digest, "identity": dict(lane.identity.fields)})
    found = journal.rows[key]["engine_identity"]
    if found != lane.identity.digest:
        raise RequestError(
            f"the lane {lane.name!r} began on engine {found} and is {lane.identity.digest} now: answers of two engines "
            "cannot stand in one row. Begin in another folder",
            expected=found,
            found=lane.identity.digest,
        )


def _run_cells(
    plan: Plan, journal: Journal, lane: Lane, cells: Sequence[CellPlan], questions: Mapping[str, Question]
) -> None:
    """The cells of one length: each reference alone, then what is missing of the others, all cases in turn.

    Where the lane takes strangers, the others are asked for beside them, several at once.
    """
    for cell in cells:
        if not journal.is_done(cell.key(0)):
            journal.append(cell.key(0), _row(lane.ask(questions[cell.case], cell.max_tokens), "alone", 0))
    replays = range(1, plan.num_replays + 1)
    missing = [(cell, n) for n in replays for cell in cells if not journal.is_done(cell.key(n))]
    with strangers(lane.send_stranger, plan.num_strangers) as traffic:
        if lane.send_stranger is None or plan.width == 1:
            for cell, replay in missing:
                _ask(journal, lane, cell, replay, questions[cell.case], traffic)
            return
        with ThreadPoolExecutor(plan.width) as threads:
            asked = [threads.submit(_ask, journal, lane, c, n, questions[c.case], traffic) for c, n in missing]
            _wait(asked)


def _wait(asked: Sequence[Future[None]]) -> None:
    """Wait for all of them; where one fails, or somebody stops the run, those that have not begun are left out."""
    try:
        done, _ = wait(asked, return_when=FIRST_EXCEPTION)
    finally:
        for future in asked:
            future.cancel()
    for future in done:
        future.result()


def _ask(journal: Journal, lane: Lane, cell: CellPlan, replay: int, question: Question, traffic: Traffic) -> None:
    answered_before, num_before = traffic.num_answered, _num_running(lane)
    answered = lane.ask(question, cell.max_tokens)
    num_beside = traffic.num_answered - answered_before
    label = f"beside strangers, {num_beside} answered meanwhile" if lane.send_stranger else "in its turn"
    journal.append(cell.key(replay), _row(answered, label, max(num_before, _num_running(lane))))


def _num_running(lane: Lane) -> int:
    return lane.num_running() if lane.num_running else 0


def _row(answered: Answered, label: str, num_running: int) -> Row:
    return {**asdict(answered), "token_ids": list(answered.token_ids), "label": label, "num_running": num_running}


def identity_key(lane: str) -> str:
    """The key of the row that says which engine a lane is."""
    return f"{lane} | identity"


def calls_key(lane: str, number: int) -> str:
    """The key of the row that counts the calls of a lane's n-th opening."""
    return f"{lane} | calls | {number}"


def _record_calls(journal: Journal, lane: Lane) -> None:
    """What a lane with a meter has asked for since it was opened, retries included."""
    if lane.meter is None or lane.meter.counts.num_calls == 0:
        return
    number = sum(key.startswith(f"{lane.name} | calls | ") for key in journal.rows)
    journal.append(calls_key(lane.name, number), asdict(lane.meter.counts))
