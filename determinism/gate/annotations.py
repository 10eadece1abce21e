"""Findings as GitHub workflow commands: at most nine lines, which a CI log shows beside the code.

A forge shows ten annotations of a kind for each step, and drops the rest without a word; so the worst come first and
the ninth says how many are only in the report. Text of cases and models is encoded, so that it can neither end a line
nor begin a command of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from determinism.gate.run import Finding, is_red
from projection.prompt import visible

MAX_ANNOTATIONS = 9
MAX_MESSAGE_CHARS = 1_000


def annotate(findings: Sequence[Finding], strict: bool, file: str) -> list[str]:
    """One workflow command for each finding that is no PASS, failures first. file: where the cases are listed."""
    shown = sorted((f for f in findings if f.verdict != "PASS"), key=lambda finding: not is_red(finding, strict))
    if len(shown) <= MAX_ANNOTATIONS:
        return [_finding(finding, strict, file) for finding in shown]
    kept, rest = shown[: MAX_ANNOTATIONS - 1], shown[MAX_ANNOTATIONS - 1 :]
    level = "error" if any(is_red(finding, strict) for finding in rest) else "warning"
    more = f"{len(rest)} more findings are only in the report"
    return [*(_finding(finding, strict, file) for finding in kept), _command(level, file, "dpm gate", more)]


def _finding(finding: Finding, strict: bool, file: str) -> str:
    level = "error" if is_red(finding, strict) else "warning"
    return _command(level, file, f"{finding.verdict} {finding.case}", finding.reason)


def _command(level: str, file: str, title: str, message: str) -> str:
    return f"::{level} file={_property(file)},title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    """A message: percent and line ends as the runner decodes them; what opens a command, in either syntax, broken."""
    escaped = visible(text[:MAX_MESSAGE_CHARS]).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return escaped.replace("::", "%3A%3A").replace("##[", "%23%23[")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
