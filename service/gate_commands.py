"""`dpm determinism gate`: hold each case against its golden. `dpm determinism approve`: make goldens, with a reason."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from determinism.gate.annotations import annotate
from determinism.gate.cases import CASES_NAME, GateCase, read_cases
from determinism.gate.compare import GATE_LEVELS, first_divergence
from determinism.gate.golden import Golden
from determinism.gate.report import GateReport, check_report_path, report_document, write_report
from determinism.gate.run import Gate, find_unused, observe, run_gate
from determinism.gate.store import Goldens, check_approver, read_goldens
from determinism.gate.store import approve as write_goldens
from determinism.verdict import NOTHING_RAN
from inference import engines
from inference.config import EngineConfig
from projection.engine import Engine, Progress, Tokenizer
from projection.errors import NotFoundError, RequestError
from projection.prompt import visible
from service import options, runtime
from service.console import VERDICT_STYLES, out, print_json, say, step, watch_calls
from service.options import DEFAULT_BUDGET_CHARS

GoldensDir = Annotated[Path, typer.Option("--goldens", help="The folder of goldens, with the list of cases in it.")]
OnlyCases = Annotated[list[str] | None, typer.Option("--case", help="Only this case; may be given several times.")]
STYLES = {**VERDICT_STYLES, "MISSING": "bold yellow", "UNUSED": "yellow", "SKIPPED": "yellow"}


def gate(
    goldens: GoldensDir,
    level: Annotated[str, typer.Option("--level", help="R1, R2 or R3; each includes those before it.")] = "R3",
    strict: Annotated[bool, typer.Option("--strict", help="MISSING, UNUSED and SKIPPED fail too.")] = False,
    case: OnlyCases = None,
    report: Annotated[Path | None, typer.Option("--report", help="Write a report: .xml for JUnit, or .json.")] = None,
    engine: options.Engine = "vllm",
    config: options.Config = None,
    json: options.Json = False,
) -> None:
    """Decide every case again and hold it against its approved golden, bit for bit."""
    if level not in GATE_LEVELS:
        raise RequestError(f"there is no level {level!r} of a gate; choose {', '.join(GATE_LEVELS)}", level=level)
    if report is not None:
        check_report_path(report)
    settings, cases, approved = engines.read_config(config), read_cases(goldens), read_goldens(goldens)
    _require_known(case, cases)
    with ExitStack() as stack, ExitStack() as bar:
        open_engine, talk = _EngineAtNeed(engine, settings, stack), _Talk(bar)
        held = Gate(approved, open_engine, engines.profile_of(settings), level, talk.watch)
        findings = run_gate(held, cases, case, talk.say)
        identity = open_engine.started.identity if open_engine.started else None
    finished = GateReport(findings, level, strict, identity)
    if report is not None:
        write_report(finished, report)
    if json:
        print_json(report_document(finished))
    else:
        _print_report(finished)
    if os.environ.get("GITHUB_ACTIONS") == "true":  # the runner reads commands from either stream; stdout is the result
        sys.stderr.writelines(f"{line}\n" for line in annotate(findings, strict, str(goldens / CASES_NAME)))
    raise typer.Exit(finished.exit_code)


def approve(
    goldens: GoldensDir,
    reason: Annotated[str, typer.Option("--reason", help="Why these answers are right; kept in the approvals log.")],
    by: Annotated[str, typer.Option("--by", envvar=["USER", "LOGNAME"], help="Who approves.")] = "",
    case: OnlyCases = None,
    prune: Annotated[bool, typer.Option("--prune", help="Only remove goldens that no case asks for.")] = False,
    engine: options.Engine = "vllm",
    config: options.Config = None,
    json: options.Json = False,
) -> None:
    """Decide cases and make their answers the goldens of this engine: the only way to write, change or remove one."""
    check_approver(reason, by)
    if prune and case:
        raise RequestError("--prune removes the goldens of cases that are not listed: leave --case out")
    settings, cases, old = engines.read_config(config), read_cases(goldens), read_goldens(goldens)
    _require_known(case, cases)
    chosen = [c for c in cases if c.skip is None and (case is None or c.name in case) and not prune]
    unused = [f.case for f in find_unused(old, {c.name for c in cases})] if prune else []
    if not chosen and not unused:
        say("nothing was selected: nothing was approved")
        raise typer.Exit(NOTHING_RAN)
    with ExitStack() as stack, ExitStack() as bar:
        open_engine, talk = _EngineAtNeed(engine, settings, stack), _Talk(bar)
        observed = [observe(open_engine(), c, engines.profile_of(settings), talk.watch) for c in chosen]
        remove = [key for key in (*old.approved, *old.faults) if key.case in unused]
        approvals = write_goldens(goldens, observed, reason=reason, by=by, now=runtime.now(), remove=remove)
        changes = {golden.key: _change(golden, old, open_engine().tokenizer) for golden in observed}
    if json:
        print_json({"approvals": [a.model_dump(mode="json") | {"change": changes.get(a.key)} for a in approvals]})
        return
    decisions = {golden.key: golden.decision.answer.text for golden in observed}
    for approval in approvals:
        status = "REMOVED" if approval.new_digest is None else "CHANGED" if approval.old_digest else "NEW"
        out.print(Text(f"{status:<10}{approval.case}  {visible(changes.get(approval.key) or '')}".rstrip()))
        for line in visible(decisions.get(approval.key, "")).split("\n"):
            if line:
                out.print(Text(f"{'':<8}| {line}", style="dim"))
    out.print(Text(f"{len(approvals)} approved, {len(observed) + len(remove) - len(approvals)} were approved already"))


def _require_known(names: list[str] | None, cases: Sequence[GateCase]) -> None:
    unknown = sorted(set(names or ()) - {case.name for case in cases})
    if unknown:
        listed = ", ".join(case.name for case in cases)
        raise NotFoundError(f"there is no case {', '.join(map(repr, unknown))}; {CASES_NAME} lists {listed or 'none'}")


class _EngineAtNeed:
    """The engine, started when it is first asked for. started: the engine, or None while nobody has asked."""

    def __init__(self, name: str, settings: EngineConfig, stack: ExitStack) -> None:
        self._name, self._settings, self._stack = name, settings, stack
        self.started: Engine | None = None

    def __call__(self) -> Engine:
        if self.started is None:
            with step(f"starting engine {self._name}"):
                self.started = self._stack.enter_context(engines.open_engine(self._name, self._settings))
        return self.started


class _Talk:
    """What stderr shows: each call has its own progress, which is done with when something else begins."""

    def __init__(self, bar: ExitStack) -> None:
        self._bar = bar

    def watch(self, name: str) -> Progress:
        self._bar.close()
        return self._bar.enter_context(watch_calls(DEFAULT_BUDGET_CHARS))(name)

    def say(self, message: str) -> None:
        self._bar.close()
        say(message)


def _change(new: Golden, goldens: Goldens, tokenizer: Tokenizer) -> str | None:
    """What an approval changes, in words; None where there was no golden that could be read."""
    old = goldens.approved.get(new.key)
    found = old and first_divergence(old, new, tokenizer)
    return str(found) if found else None


def _print_report(report: GateReport) -> None:
    """One line a finding. Text of cases and models is quoted and never begins a line."""
    width = max((len(finding.case) for finding in report.findings), default=0)
    for finding in report.findings:
        reason = visible(finding.reason).replace("\n", " ")
        verdict = (f"{finding.verdict:<14}", STYLES[finding.verdict])
        out.print(Text.assemble(verdict, f"{finding.case:<{width}}  {reason}".rstrip()))
    if report.identity is not None and report.identity.fields.get("kind") == "scripted":
        out.print(Text("The scripted engine was asked: no model was.", style="bold yellow"))
    counts = ", ".join(f"{count} {verdict}" for verdict, count in report.counts.items()) or "nothing ran"
    engine = f"  engine {report.identity.digest}" if report.identity else ""
    out.print(Text(f"{counts}  level {report.level}{engine}"))
