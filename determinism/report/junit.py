"""A suite's report as JUnit XML: one test suite for the checks and one for their controls, one test case for each cell.

A cell that does not hold is a failure, one that could not be held is an error; a control fails when it did not find
its fault. Promises well-formed XML 1.0 whatever a model said: characters that XML has no place for are spelled out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from xml.etree import ElementTree

from determinism.cell import Cell
from determinism.report.summary import Report
from projection.prompt import visible


def junit(report: Report) -> str:
    """The whole file."""
    suites = {"checks": report.plain, "controls": report.controls}
    root = ElementTree.Element("testsuites", name="dpm determinism")
    for name, reported in suites.items():
        root.append(_suite(name, [one.cell for one in reported]))
    if report.num_missing:
        root.append(_unfinished(report.num_missing))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(name: str, cells: Sequence[Cell]) -> ElementTree.Element:
    outcomes = [_outcome(cell) for cell in cells]
    suite = ElementTree.Element(
        "testsuite",
        name=f"dpm determinism {name}",
        tests=str(len(cells)),
        failures=str(outcomes.count("failure")),
        errors=str(outcomes.count("error")),
        skipped=str(outcomes.count("skipped")),
        time=f"{sum(cell.wall_s for cell in cells):.3f}",
    )
    for cell, outcome in zip(cells, outcomes, strict=True):
        suite.append(_test_case(cell, outcome))
    return suite


def _unfinished(num_missing: int) -> ElementTree.Element:
    """What is missing must not look green."""
    suite = ElementTree.Element(
        "testsuite", name="dpm determinism run", tests="1", failures="0", errors="1", skipped="0", time="0.000"
    )
    case = ElementTree.SubElement(suite, "testcase", classname="run", name="is finished", time="0.000")
    ElementTree.SubElement(case, "error", message=f"missing cells: {num_missing}; continue the run", type="ERROR")
    return suite


def _outcome(cell: Cell) -> str | None:
    """The child of a test case; none where it holds."""
    if cell.verdict == "SKIPPED":
        return "skipped"
    if cell.holds:
        return None
    return "error" if cell.verdict == "ERROR" else "failure"


def _test_case(cell: Cell, outcome: str | None) -> ElementTree.Element:
    name = cell.workload if cell.control is None else f"{cell.workload}, {cell.control}"
    where = f"{cell.engine}.{cell.check}".replace(" ", "_")
    case = ElementTree.Element("testcase", classname=visible(where), name=visible(name), time=f"{cell.wall_s:.3f}")
    if outcome == "skipped":
        ElementTree.SubElement(case, outcome, message=visible(cell.reason))
    elif outcome is not None:
        found = ElementTree.SubElement(case, outcome, message=visible(_message(cell)), type=cell.verdict)
        found.text = visible(_details(cell))
    if cell.evidence:
        evidence = ElementTree.SubElement(case, "system-out")
        evidence.text = visible(json.dumps(cell.evidence, ensure_ascii=False, sort_keys=True))
    return case


def _message(cell: Cell) -> str:
    if cell.control is None:
        return f"{cell.verdict}: {cell.reason}"
    return f"the control {cell.control!r} should be {cell.expected}, and is {cell.verdict}: {cell.reason}"


def _details(cell: Cell) -> str:
    difference = cell.first_difference
    drifted = [replay.label for replay in cell.replays if replay.surface != 0]
    lines = [cell.reason, *([] if difference is None else [str(difference)])]
    lines += [f"{len(drifted)} of {cell.num_comparisons} drifted: {'; '.join(drifted)}"] if drifted else []
    return "\n".join(lines)
