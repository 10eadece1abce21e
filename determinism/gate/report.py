"""What a gate found, as JSON for programs and as JUnit XML for the forges that show it beside the code.

Text of cases and models is escaped. Nothing here decides whether a gate passes: `gate.run.gate_exit_code` does.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from determinism.gate.compare import GateLevel
from determinism.gate.run import Finding, gate_exit_code, is_red
from determinism.verdict import VERDICTS
from projection.engine import EngineIdentity
from projection.errors import RequestError
from projection.prompt import visible
from reporting.files import write_text

REPORT_SCHEMA = "dpm/gate-report/v1"
SUFFIXES = (".json", ".xml")


@dataclass(frozen=True, slots=True)
class GateReport:
    """A finished gate. identity: the engine's; None where no case had a golden to be held against."""

    findings: tuple[Finding, ...]
    level: GateLevel
    strict: bool
    identity: EngineIdentity | None

    @property
    def exit_code(self) -> int:
        return gate_exit_code(self.findings, self.strict)

    @property
    def counts(self) -> dict[str, int]:
        """Findings by verdict, those that there are."""
        verdicts = [finding.verdict for finding in self.findings]
        return {verdict: verdicts.count(verdict) for verdict in VERDICTS if verdict in verdicts}


def report_document(report: GateReport) -> dict[str, Any]:
    """The report as a JSON value."""
    return {
        "schema_version": REPORT_SCHEMA,
        "exit_code": report.exit_code,
        "strict": report.strict,
        "level": report.level,
        "engine_identity": report.identity.digest if report.identity else None,
        "engine_kind": report.identity.fields.get("kind") if report.identity else None,
        "counts": report.counts,
        "findings": [{**asdict(finding), "red": is_red(finding, report.strict)} for finding in report.findings],
    }


def junit(report: GateReport) -> str:
    """The report as JUnit XML: one test case for each finding."""
    red = [finding for finding in report.findings if is_red(finding, report.strict)]
    errors = [finding for finding in red if finding.verdict == "ERROR"]
    suite = ElementTree.Element(
        "testsuite",
        name="dpm determinism gate",
        tests=str(len(report.findings)),
        failures=str(len(red) - len(errors)),
        errors=str(len(errors)),
        skipped=str(sum(f.verdict != "PASS" for f in report.findings) - len(red)),
        time=f"{sum(finding.wall_s for finding in report.findings):.3f}",
    )
    for finding in report.findings:
        case = ElementTree.SubElement(
            suite, "testcase", classname="dpm.gate", name=finding.case, time=f"{finding.wall_s:.3f}"
        )
        if finding.verdict != "PASS":
            kind = "skipped" if finding not in red else "error" if finding in errors else "failure"
            said = visible(f"{finding.verdict}: {finding.reason}")
            ElementTree.SubElement(case, kind, message=said, type=finding.verdict).text = said
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def check_report_path(path: Path) -> None:
    """Refuse a name whose suffix says nothing of the form.

    Raises:
        RequestError: it is neither `.json` nor `.xml`.
    """
    if path.suffix not in SUFFIXES:
        raise RequestError(f"{path}: name the report .json, or .xml for JUnit", path=str(path))


def write_report(report: GateReport, path: Path) -> None:
    """Write the report in the form that the file's suffix names.

    Raises:
        RequestError: as `check_report_path`. StorageError: the file cannot be written.
    """
    check_report_path(path)
    write_text(path, junit(report) if path.suffix == ".xml" else json.dumps(report_document(report), indent=2) + "\n")
