"""A suite's report for people, as a document that becomes a page or Markdown: what holds, what does not, and how far.

Owns words and order; every number comes from the report. Bounds are printed rounded up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from determinism.cell import Cell
from determinism.report.plots import draw_check_rates, draw_hash_matrices, draw_overview, draw_survival
from determinism.report.summary import CheckSummary, LaneDrift, Report, ReportedCell
from determinism.report.table3 import UNKNOWN, at_most, or_dash, table_3
from determinism.statistics import pool, survival
from determinism.verdict import Verdict
from reporting.document import (
    Badge,
    Block,
    Code,
    Column,
    Document,
    Facts,
    Inline,
    Notice,
    Paragraph,
    Section,
    Table,
    Tone,
)

OUTCOMES: dict[int, Badge] = {
    0: Badge("HOLDS", "good"),
    1: Badge("DOES NOT HOLD", "bad"),
    3: Badge("INCOMPARABLE", "warning"),
    4: Badge("FAILED", "bad"),
    5: Badge("NOTHING RAN", "warning"),
}
TONES: dict[Verdict, Tone] = {"PASS": "good", "DRIFT": "bad", "ERROR": "bad", "INCOMPARABLE": "warning"}
CALLS_OF_A_LONG_SUMMARY = 97  # paper, Table 4: one for each of 96 events, and the decision


def build_document(report: Report) -> Document:
    """The whole report."""
    sections = [
        Section("Result", list(_result(report))),
        Section("Hashes", list(_for_each_engine(report, _hashes))),
        Section("Checks and their controls", list(_for_each_engine(report, _checks))),
        Section("Cells", list(_for_each_engine(report, _cells))),
        Section("Beside the paper", [table_3(report.whole_answers)]),
        Section("Two calls or a hundred", list(_survival(report))),
        Section("How it was made", [Facts(_parameters(report.parameters)), *map(Paragraph, METHOD)]),
    ]
    title = "Determinism: the same bytes again?"
    return Document(title, _lead(report), [section for section in sections if section.blocks], _verdict(report))


METHOD = (
    "Each check asks the same question again under circumstances that should not matter, and compares every bit of the "
    "answer with a reference: token ids, log-probabilities, margins, text. Nothing is asked again because it failed.",
    "A check counts only if its circumstance was seen to come about; what was seen is printed as evidence. Each check "
    "has controls: the same check with a fault put in on purpose, which it must find.",
    "Drift at most: the exact one-sided 95% upper bound (Clopper-Pearson) on the rate of drift; without any drift in n "
    "comparisons it is 1 - 0.05^(1/n). It supposes that comparisons are independent, and says nothing about "
    "circumstances, questions or machines that were not tried.",
    "The rows of the results folder hold every bit of every answer. This page draws conclusions from them, and is no "
    "evidence by itself.",
)


def _for_each_engine(report: Report, show: Callable[[Report, str], Iterable[Block]]) -> Iterable[Block]:
    for engine in report.engines:
        yield from show(report.of_engine(engine), engine)


def _verdict(report: Report) -> Badge:
    if report.exit_code == 0 and report.num_missing:
        return Badge("NOT FINISHED", "warning")
    return OUTCOMES[report.exit_code]


def _lead(report: Report) -> str:
    said = [sentence for engine in report.engines if (sentence := _engine_in_words(report.of_engine(engine), engine))]
    num_skipped = sum(one.cell.verdict == "SKIPPED" for one in report.cells)
    left_out = [f"{_count(num_skipped, 'cell')} could not be held here."] if num_skipped else []
    return " ".join([*said, _controls_in_words(report), *left_out]) if said else "No check compared anything."


def _engine_in_words(report: Report, engine: str) -> str:
    plain = [one.cell for one in report.plain if one.cell.num_comparisons]
    if not plain:
        return ""
    drift = pool(plain)
    found = f"{drift.num_drifted:,} drifted ({drift.rate:.2%})" if drift.num_drifted else "none drifted"
    return (
        f"{engine}, {_count(len({cell.check for cell in plain}), 'check')} on "
        f"{_count(len({cell.workload for cell in plain}), 'workload')}: of "
        f"{_count(drift.num_comparisons, 'comparison')} {found}, so that at 95% confidence at most "
        f"{at_most(drift.max_rate)} of such calls do, if comparisons are independent."
    )


def _controls_in_words(report: Report) -> str:
    ran = [one.cell for one in report.controls if one.cell.verdict != "SKIPPED"]
    found = sum(cell.holds for cell in ran)
    if not ran:
        return "No control ran: nothing shows that these checks can fail."
    return f"Controls that found their fault: {'all' if found == len(ran) else found} of {len(ran)}."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _result(report: Report) -> Iterable[Block]:
    cells = [one.cell for one in report.cells]
    identities = dict.fromkeys((cell.engine, cell.engine_identity) for cell in cells)
    yield Facts(
        [
            *((f"engine {engine}", Code(identity)) for engine, identity in identities),
            ("cells", _counted(one.cell.verdict for one in report.plain)),
            ("controls", _counted(_control_words(one.cell) for one in report.controls)),
            ("seconds in all", f"{sum(cell.wall_s for cell in cells):,.0f}"),
        ]
    )
    if report.num_missing:
        yield Notice(f"This run is not finished. Missing cells: {report.num_missing}.")
    if unproven := _unproven(report):
        yield Notice(
            f"No control found its fault, so that nothing shows that the check can fail: {', '.join(unproven)}."
        )
    wrong = [cell for cell in cells if not cell.holds and cell.verdict != "SKIPPED"]
    if wrong:
        yield Notice(f"{_count(len(wrong), 'cell')} did not come out as expected.", "bad")
        yield _wrong_table(wrong)
    skipped = dict.fromkeys(
        (cell.check, cell.engine, cell.control or UNKNOWN, cell.reason) for cell in cells if cell.verdict == "SKIPPED"
    )
    if skipped:
        columns = [Column("check"), Column("engine"), Column("control"), Column("why not")]
        yield Table("Not held here", columns, list(skipped))


def _unproven(report: Report) -> list[str]:
    """Checks that compared something on an engine where none of their controls did."""
    proven = {(one.cell.engine, one.cell.check) for one in report.controls if one.cell.holds}
    held = dict.fromkeys((one.cell.engine, one.cell.check) for one in report.plain if one.cell.num_comparisons)
    return [f"{check} on {engine}" for engine, check in held if (engine, check) not in proven]


def _counted(words: Iterable[str]) -> str:
    listed = list(words)
    return ", ".join(f"{listed.count(word)} {word}" for word in dict.fromkeys(listed)) or "none"


def _control_words(cell: Cell) -> str:
    if cell.holds:
        return "found"
    return cell.verdict if cell.verdict in {"SKIPPED", "ERROR", "INCOMPARABLE"} else "NOT FOUND"


def _wrong_table(cells: Iterable[Cell]) -> Table:
    names = ("check", "engine", "workload", "control", "verdict", "expected", "why", "first difference")
    columns = [Column(name) for name in names]
    rows: list[list[Inline]] = [
        [
            cell.check,
            cell.engine,
            cell.workload,
            cell.control or UNKNOWN,
            _badge(cell),
            cell.expected,
            cell.reason,
            Code(str(cell.first_difference)) if cell.first_difference else UNKNOWN,
        ]
        for cell in cells
    ]
    return Table("Not as expected", columns, rows)


def _badge(cell: Cell) -> Badge:
    tone: Tone = "good" if cell.holds else TONES.get(cell.verdict, "plain")
    return Badge(cell.verdict, tone)


def _hashes(report: Report, engine: str) -> Iterable[Block]:
    if report.plain:
        yield draw_overview(report, engine)
    yield from draw_hash_matrices(report, engine)


def _checks(report: Report, engine: str) -> Iterable[Block]:
    columns = [Column("check"), Column("verdicts")]
    columns += [
        Column(title, is_number=True)
        for title in ("comparisons", "turns", "unique", "drifted", "drift at most", "faults found")
    ]
    rows = [_check_row(summary) for summary in report.checks]
    yield Table(f"{engine}: each check over all its workloads", columns, rows, CHECKS_NOTE)
    if rates := draw_check_rates(report, engine):
        yield rates
    if report.controls:
        yield _controls_table(report.controls, engine)


CHECKS_NOTE = (
    "Comparisons: answers that were given under the check's circumstance, each held against the answer to the same "
    "request alone; of a batch every row is one. Turns: how often the circumstance was made; the comparisons of one "
    "turn share it, so who doubts that they are independent takes the turns for n. Unique: distinct answers, to the "
    "bit, of how many questions."
)


def _check_row(summary: CheckSummary) -> list[Inline]:
    drift = summary.drift
    numbers = (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)
    if drift is not None:
        numbers = (
            str(drift.num_comparisons),
            str(summary.num_turns),
            f"{summary.num_unique_surfaces}/{summary.num_workloads}",
            str(drift.num_drifted),
            at_most(drift.max_rate),
        )
    faults = f"{summary.num_found} of {summary.num_controls}"
    return [summary.check, _counted(summary.verdicts), *numbers, faults]


def _controls_table(controls: Iterable[ReportedCell], engine: str) -> Table:
    columns = [
        Column("control"),
        Column("check"),
        Column("found"),
        Column("drifted", is_number=True),
        Column("workload"),
        Column("first difference, or why not"),
    ]
    rows: list[list[Inline]] = [
        [
            cell.control or "",
            cell.check,
            Badge(_control_words(cell), "good" if cell.holds else TONES.get(cell.verdict, "plain")),
            f"{cell.num_drifted} of {cell.num_comparisons}",
            cell.workload,
            Code(str(cell.first_difference)) if cell.first_difference else cell.reason,
        ]
        for cell in (one.cell for one in controls)
    ]
    return Table(f"{engine}: controls, faults put in on purpose, which the check must find", columns, rows)


def _cells(report: Report, engine: str) -> Iterable[Block]:
    if not report.plain:
        return
    columns = [Column("check"), Column("workload"), Column("verdict")]
    columns += [
        Column(title, is_number=True)
        for title in (
            "n", "unique", "drift at most", "first token", "prefix mean", "whole mean", "mean chars", "least margin",
            "seconds",
        )
    ]  # fmt: skip
    yield Table(f"{engine}: every cell of it as it is", columns, [_cell_row(one) for one in report.plain], CELLS_NOTE)
    evidence: list[list[Inline]] = [
        [one.cell.check, one.cell.workload, Code(_in_words(one.cell.evidence))]
        for one in report.plain
        if one.cell.evidence
    ]
    columns = [Column("check"), Column("workload"), Column("what was seen")]
    yield Table(f"{engine}: evidence that each circumstance came about", columns, evidence)


CELLS_NOTE = (
    "n: answers, the reference included. Unique: distinct answers, to the bit. First token: the earliest one, from 0, "
    "at which any answer has another token id than the reference. Prefix and whole: mean edit distance over all pairs, "
    "of the first 200 characters and of the whole text. Least margin: how close any position came to another token, in "
    "natural logarithms."
)


def _cell_row(reported: ReportedCell) -> list[Inline]:
    cell, numbers = reported.cell, reported.statistics
    if numbers is None:
        return [cell.check, cell.workload, _badge(cell), *[UNKNOWN] * 8, f"{cell.wall_s:.1f}"]
    return [
        cell.check,
        cell.workload,
        _badge(cell),
        str(numbers.num_replays),
        str(numbers.num_unique_surfaces),
        at_most(numbers.max_drift_rate),
        or_dash(numbers.first_differing_token),
        f"{numbers.prefix_distance.mean:.4f}",
        f"{numbers.text_distance.mean:.4f}",
        f"{numbers.mean_chars:,.0f}",
        UNKNOWN if numbers.min_margin is None else f"{numbers.min_margin:.3g}",
        f"{cell.wall_s:.1f}",
    ]


def _in_words(value: object) -> str:
    """Nested evidence on one line: `batch of 8: max_num_running 8, num_preemptions 0; ...`."""
    match value:
        case dict() if any(isinstance(inner, dict) for inner in value.values()):
            return "; ".join(f"{name}: {_in_words(inner)}" for name, inner in value.items())
        case dict():
            return ", ".join(f"{name} {_in_words(inner)}" for name, inner in value.items())
        case list():
            return ", ".join(map(_in_words, value))
        case str():
            return value
        case _:
            return json.dumps(value)


def _survival(report: Report) -> Iterable[Block]:
    lanes = [lane for lane in report.lanes if lane.is_whole]
    if not lanes:
        return
    yield Paragraph(
        "A decision of this project makes two calls; an agent that summarises after every event makes one for each "
        "event. If each call drifts alone at a rate e, a replay of n calls is identical with probability (1 - e)^n."
    )
    columns = [Column("engine"), Column("condition")]
    columns += [
        Column(title, is_number=True)
        for title in ("comparisons", "e", "e at most", "2 calls, predicted", "2 calls, measured", "97 calls, predicted")
    ]
    yield Table("Drift of one call, and what survives", columns, [_lane_row(lane) for lane in lanes], SURVIVAL_NOTE)
    yield draw_survival(lanes)


SURVIVAL_NOTE = (
    "Measured: replays of the projection and of the decision under the same circumstances, identical in both. Stock "
    "settings were held among strangers only."
)


def _lane_row(lane: LaneDrift) -> list[Inline]:
    return [
        lane.engine,
        lane.control or "as it is",
        str(lane.drift.num_comparisons),
        f"{lane.drift.rate:.2%}",
        at_most(lane.drift.max_rate),
        f"{lane.predicted_survival:.1%}",
        f"{lane.num_identical} of {lane.num_pairs}" if lane.num_pairs else UNKNOWN,
        f"{survival(lane.drift.rate, CALLS_OF_A_LONG_SUMMARY):.1%}",
    ]


def _parameters(parameters: Mapping[str, Any]) -> list[tuple[str, Inline]]:
    return [
        (name.replace("_", " "), Code(value if isinstance(value, str) else json.dumps(value)))
        for name, value in parameters.items()
    ]
