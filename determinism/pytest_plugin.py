"""The gate as a pytest plugin: a test names a case, and passes when both calls give their approved bits again.

    def test_mortgage(dpm_gate):
        dpm_gate("mortgage", events="cases/mortgage.jsonl", task="cases/mortgage.yaml")

    @pytest.mark.dpm_replays(5, perturbations=["batch_size", "strangers"])
    def test_claim(dpm_gate):
        dpm_gate("claim")                 # from cases.yaml in the folder of goldens

One engine is opened for a session, when the first test needs it (under pytest-xdist: one for each worker). SKIPPED
skips the test, and any other verdict but PASS fails it; nothing is tried again. Goldens are written at the session's
end, by the one process that sees every test's report, from tests that passed, and only with --det-update and a reason.

Everything of ours is imported when it is used: a run that uses nothing of this loads nothing and prints nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from determinism.gate.cases import GateCase
    from determinism.gate.report import GateReport
    from determinism.gate.run import Finding
    from determinism.gate.store import Approval
    from projection.engine import Engine

ATTRIBUTE = "dpm_findings"  # of a test's report, which pytest-xdist carries from worker to controller
FOUND = pytest.StashKey[list[str]]()


class DpmGate(Protocol):
    """What the fixture `dpm_gate` is: fails the test unless the case gives its approved bits again.

    events, task: files, from the test file's folder; without them the case is taken from the goldens' `cases.yaml`.
    """

    def __call__(
        self, name: str, *, events: str | Path | None = None, task: str | Path | None = None, budget_chars: int = ...
    ) -> Finding: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("dpm", "bit-for-bit replays of decided cases")
    group.addoption("--det-goldens", metavar="DIR", default="goldens", help="the folder of goldens, from the rootdir")
    group.addoption("--det-engine", metavar="NAME", default="vllm", help="as --engine of dpm")
    group.addoption("--det-config", metavar="FILE", default=None, help="as --config of dpm")
    group.addoption("--det-report", metavar="FILE", default=None, help="write the findings: .json, or .xml for JUnit")
    group.addoption("--det-update", action="store_true", help="approve what the cases say now; needs --det-reason")
    group.addoption("--det-reason", metavar="TEXT", default="", help="why these answers are right; it is recorded")
    group.addoption("--det-by", metavar="NAME", default="", help="who approves; by default the environment's user")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "dpm_replays(n, perturbations=[]): ask dpm_gate's cases n times, and n times under each perturbation",
    )
    if config.getoption("--det-update"):
        _checked(lambda: _approver(config))
    if config.getoption("--det-report"):
        from determinism.gate.report import check_report_path

        _checked(lambda: check_report_path(Path(config.getoption("--det-report"))))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Session(config), "dpm_session")


@pytest.fixture(scope="session")
def dpm_engine(pytestconfig: pytest.Config) -> Iterator[Engine]:
    """The engine of --det-engine and --det-config, opened once."""
    from inference.engines import open_engine, read_config

    config = pytestconfig.getoption("--det-config")
    with open_engine(pytestconfig.getoption("--det-engine"), read_config(Path(config) if config else None)) as engine:
        yield engine


@pytest.fixture
def dpm_gate(request: pytest.FixtureRequest) -> DpmGate:
    """Hold a case against its golden; see `DpmGate`."""
    from determinism.gate.cases import DEFAULT_BUDGET_CHARS, read_case, read_cases

    goldens_dir = _goldens_dir(request.config)

    def gate(
        name: str,
        *,
        events: str | Path | None = None,
        task: str | Path | None = None,
        budget_chars: int = DEFAULT_BUDGET_CHARS,
    ) -> Finding:
        if (events is None) != (task is None):
            pytest.fail("name both files of a case, or neither", pytrace=False)
        if events is None or task is None:
            case = next((case for case in read_cases(goldens_dir) if case.name == name), None)
            if case is None:
                pytest.fail(f"{goldens_dir} lists no case {name!r}: name its events and task", pytrace=False)
        else:
            case = read_case(name, request.path.parent / events, request.path.parent / task, budget_chars)
        finding = _check(request, case)
        if finding.verdict == "SKIPPED":
            pytest.skip(finding.reason)
        if finding.verdict != "PASS":
            pytest.fail(f"{finding.verdict} {finding.case}: {finding.reason}", pytrace=False)
        return finding

    return gate


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call" and FOUND in item.stash:
        setattr(report, ATTRIBUTE, item.stash[FOUND])
    return report


def _check(request: pytest.FixtureRequest, case: GateCase) -> Finding:
    """The case's finding, which also goes to the session; when goldens are updated, what was observed goes there."""
    from determinism.gate.perturbations import choose_perturbations
    from determinism.gate.run import Finding, Gate, check_case, observe
    from determinism.gate.store import Goldens, read_goldens
    from inference.engines import profile_of, read_config

    config = request.config.getoption("--det-config")
    profile = profile_of(read_config(Path(config) if config else None))
    goldens_dir = _goldens_dir(request.config)

    opened: list[Engine] = []

    def open_engine() -> Engine:
        opened.append(request.getfixturevalue("dpm_engine"))
        return opened[0]

    if request.config.getoption("--det-update") and case.skip is None:
        golden = observe(open_engine(), case, profile)
        _keep(request, golden=golden.to_bytes().decode())
        return Finding(case.name, "PASS", "to be approved at the session's end", golden_digest=golden.digest)
    num_replays, names = _replays(request)
    goldens = read_goldens(goldens_dir) if goldens_dir.is_dir() else Goldens({}, {})
    gate = Gate(goldens, open_engine, profile)
    finding = check_case(gate, case, num_replays, choose_perturbations(names))
    _keep(request, finding=asdict(finding), engine=dict(opened[0].identity.fields) if opened else None)
    return finding


def _replays(request: pytest.FixtureRequest) -> tuple[int, list[str]]:
    """The arguments of the test's `dpm_replays`; once and unperturbed where it has none."""
    marker = request.node.get_closest_marker("dpm_replays")
    if marker is None:
        return 1, []
    named: dict[str, Any] = dict(marker.kwargs)
    match marker.args:
        case (int(n),) if n >= 1 and named.keys() <= {"perturbations"}:
            return n, list(named.get("perturbations", ()))
    raise pytest.UsageError("write @pytest.mark.dpm_replays(n, perturbations=[...]) with n from 1 on")


def _keep(request: pytest.FixtureRequest, **entry: Any) -> None:
    request.node.stash.setdefault(FOUND, []).append(json.dumps(entry))


class _Session:
    """What the reports of all tests bring together, in the process that sees them all."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._findings: list[Finding] = []
        self._engine: dict[str, Any] | None = None
        self._observed: list[str] = []
        self._approvals: tuple[Approval, ...] = ()
        self._unused: list[str] = []
        self._failure = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for entry in map(json.loads, getattr(report, ATTRIBUTE, ())):
            if "finding" in entry:
                self._findings.append(_finding(entry["finding"]))
                self._engine = entry["engine"] or self._engine
            elif report.passed:
                self._observed.append(entry["golden"])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not (self._findings or self._observed):
            return
        from determinism.gate.golden import parse_golden
        from determinism.gate.report import write_report
        from determinism.gate.store import approve
        from projection.errors import DpmError

        path = self._config.getoption("--det-report")
        try:
            if self._observed:
                goldens = [parse_golden(text.encode()) for text in self._observed]
                reason, by = _approver(self._config)
                now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
                in_order = sorted(goldens, key=lambda golden: golden.case)  # whichever worker was first
                self._approvals = approve(_goldens_dir(self._config), in_order, reason=reason, by=by, now=now)
            if path:
                write_report(self._report(), Path(path))
            self._unused = self._find_unused() if self._findings else []
        except DpmError as exc:
            self._failure = exc.message
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not (self._findings or self._observed):
            return
        write = terminalreporter.write_line
        terminalreporter.section("dpm goldens")
        if self._findings:
            write(", ".join(f"{count} {verdict}" for verdict, count in self._report().counts.items()))
        if self._unused:
            write(f"UNUSED by the tests of this run: {', '.join(self._unused)}")
        for approval in self._approvals:
            write(f"approved {approval.case}: {approval.old_digest or 'new'} -> {approval.new_digest}")
        if self._observed:
            write(f"{len(self._observed)} cases observed, {len(self._approvals)} goldens written")
        if self._failure:
            write(f"error: {self._failure}", red=True)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            from determinism.gate.annotations import annotate

            for line in annotate(self._findings, strict=True, file=self._config.getoption("--det-goldens")):
                write(line)

    def _report(self) -> GateReport:
        from determinism.gate.report import GateReport
        from projection.engine import EngineIdentity

        identity = None if self._engine is None else EngineIdentity(self._engine)
        return GateReport(tuple(self._findings), "R3", strict=True, identity=identity)

    def _find_unused(self) -> list[str]:
        from determinism.gate.store import read_goldens

        directory = _goldens_dir(self._config)
        asked = {finding.case for finding in self._findings}
        return [name for name in read_goldens(directory).case_names if name not in asked] if directory.is_dir() else []


def _finding(value: dict[str, Any]) -> Finding:
    """A finding again, as it was before it crossed from the process of its test."""
    from determinism.gate.compare import Divergence
    from determinism.gate.run import Finding

    divergence = value["divergence"] and Divergence(**value["divergence"])
    return Finding(**value | {"divergence": divergence, "differing_fields": tuple(value["differing_fields"])})


def _goldens_dir(config: pytest.Config) -> Path:
    return config.rootpath / str(config.getoption("--det-goldens"))


def _approver(config: pytest.Config) -> tuple[str, str]:
    """Why and by whom; raises RequestError where one is missing."""
    from determinism.gate.store import check_approver

    named = config.getoption("--det-by") or os.environ.get("USER") or os.environ.get("LOGNAME") or ""
    reason = str(config.getoption("--det-reason"))
    check_approver(reason, named)
    return reason, named


def _checked(check: Callable[[], object]) -> None:
    """Run a check of the options; what it refuses is wrong use."""
    from projection.errors import RequestError

    try:
        check()
    except RequestError as exc:
        raise pytest.UsageError(exc.message) from exc
