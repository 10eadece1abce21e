"""`dpm determinism explain`, `dpm determinism near-ties`, and what another engine says of a record."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from determinism.divergence import CallDivergence, Parting, TokenSeen
from determinism.doctor.cell import CellExplanation, explain_cell, find_cell, hold_again
from determinism.doctor.diagnosis import Diagnosis
from determinism.doctor.explain import Explanation, explain_record
from determinism.doctor.switches import Setting, Switch
from determinism.doctor.trials import Bench
from determinism.near_ties import MAX_ULP, Ledger, Limit, scan
from determinism.replay.cross_identity import CrossIdentity, audit_across, is_other_engine
from determinism.replay.outcome import cross_identity_value
from determinism.verdict import NOTHING_RAN, exit_code
from inference import engines
from inference.config import EngineConfig
from projection import log
from projection.case import find_chain_break, read_sealed_case
from projection.engine import Engine, Tokenizer
from projection.entry import Entry
from projection.errors import EngineError, NotFoundError, RequestError
from projection.events import AUDIT_CASE_ID
from projection.log import Store
from projection.prompt import visible
from projection.record import AuditRecord
from projection.replay import Divergence, ReplayReport
from projection.store_sqlite import SqliteStore
from service import options
from service.console import VERDICT_STYLES, describe_divergence, out, print_json, say
from service.options import given_options

MAX_SHOWN = 10
ExplainedRecord = Annotated[str | None, typer.Argument(help="A record's id, or an unambiguous beginning of it.")]


def explain(
    context: typer.Context,
    record_id: ExplainedRecord = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="By default the kind of engine that the record names.")
    ] = None,
    config: options.Config = None,
    db: options.Db = options.DEFAULT_DB,
    results: Annotated[
        Path | None, typer.Option("--results", help="Explain a cell of this results folder instead of a record.")
    ] = None,
    cell: Annotated[str | None, typer.Option("--cell", help="With --results: words of the cell's key.")] = None,
    json: options.Json = False,
) -> None:
    """Show where a record, or a cell of a suite, first parts from what this engine says now, and name the cause."""
    if (results is None) != (cell is None) or (record_id is None) == (results is None):
        raise RequestError("name a record; or a cell, with --results DIR --cell WORDS")
    if results is not None and cell is not None:
        flags = given_options(context)
        for name in sorted(flags.keys() & {"engine", "config", "db"}):
            flag = flags[name]
            raise RequestError(f"{flag}: a cell's engine is in its results folder: leave it out", option=flag)
        explained = _explain_cell(results, cell)
        raise typer.Exit(_show_cell(explained, json))
    explanation = _explain_record(str(record_id), engine, engines.read_config(config), db)
    raise typer.Exit(_show_record(explanation, json))


def _explain_record(record_id: str, engine: str | None, settings: EngineConfig, db: Path) -> Explanation:
    with SqliteStore.open_read_only(db) as store, tempfile.TemporaryDirectory(prefix="dpm-doctor-") as folder:
        entry = log.find_record(store, record_id)
        sealed = find_chain_break(store, entry.stream, entry.head, "audit stream") or read_sealed_case(store, entry)
        if isinstance(sealed, Divergence):
            return Explanation("DRIFT", sealed, None)
        name = engine_of(sealed.record, engine)
        tokenizer = engines.open_tokenizer(name, settings)
        return explain_record(sealed, Setting(name, settings), tokenizer, Bench(Path(folder) / "engines.log"), say)


def engine_of(record: AuditRecord, asked: str | None) -> str:
    """The engine that was asked for, else the record's kind: a record never chooses an address.

    Raises:
        RequestError: the record names something else.
    """
    if asked is not None:
        return asked
    kind = str(record.engine.get("kind"))
    if kind not in engines.ENGINE_NAMES:
        raise RequestError(f"the record names the engine {kind!r}; name one of yours with --engine", kind=kind)
    return kind


def _explain_cell(results: Path, words: str) -> CellExplanation:
    parameters, cell = find_cell(results, words)
    tokenizer = engines.open_tokenizer(parameters["engine"], EngineConfig.model_validate(parameters["config"]))
    return explain_cell(parameters, cell, tokenizer, hold_again, say)


def _show_record(found: Explanation, as_json: bool) -> int:
    if as_json:
        print_json(_record_document(found))
        return exit_code([found.verdict])
    if found.without_engine is not None:
        out.print(Text(describe_divergence(found.without_engine)))
    if found.prompt is not None:
        title = f"prompt of the {found.prompt.call} call, from token {found.prompt.index}"
        _print_texts(title, before=found.prompt.before, recorded=found.prompt.recorded, log=found.prompt.rebuilt)
    for divergence in found.divergences:
        _print_divergence(f"{divergence.call} call", divergence)
    if found.differing_fields:
        out.print(Text(f"the engine identities differ in {', '.join(found.differing_fields)}"))
    if found.diagnosis is not None:
        _print_diagnosis(found.diagnosis, found.causes, found.fixed)
    elif found.engine_identity is not None:
        out.print(Text("both calls give the recorded bits here: there is nothing to explain"))
    out.print(Text.assemble("verdict ", (found.verdict, VERDICT_STYLES[found.verdict])))
    return exit_code([found.verdict])


def _show_cell(found: CellExplanation, as_json: bool) -> int:
    if as_json:
        print_json(_cell_document(found))
        return exit_code([found.verdict])
    if found.divergence is not None:
        _print_divergence(found.divergence.call, found.divergence)
    if found.diagnosis is not None:
        _print_diagnosis(found.diagnosis, found.causes, ())
    else:
        out.print(Text("no replay of this cell differs from its reference: there is nothing to explain"))
    out.print(Text(f"cell {found.cell.check} on {found.cell.workload}: {found.verdict}"))
    return exit_code([found.verdict])


def _record_document(found: Explanation) -> dict[str, Any]:
    without = None if found.without_engine is None else describe_divergence(found.without_engine)
    return {
        "verdict": found.verdict,
        "without_engine": without,
        "engine_identity": found.engine_identity,
        "prompt": None if found.prompt is None else asdict(found.prompt),
        "differing_fields": list(found.differing_fields),
        "divergences": [asdict(divergence) for divergence in found.divergences],
        **_diagnosis_document(found.diagnosis, found.causes),
        "fixed_fields": list(found.fixed),
    }


def _cell_document(found: CellExplanation) -> dict[str, Any]:
    return {
        "verdict": found.verdict,
        "cell": found.cell.key._asdict(),
        "divergence": None if found.divergence is None else asdict(found.divergence),
        **_diagnosis_document(found.diagnosis, found.causes),
    }


def _diagnosis_document(diagnosis: Diagnosis | None, causes: tuple[Switch, ...]) -> dict[str, Any]:
    return {
        "causes": [{"name": cause.name, "change": cause.change, "issue": cause.issue} for cause in causes],
        "is_repeatable": diagnosis is None or diagnosis.is_repeatable,
        "ruled_out": [] if diagnosis is None else list(diagnosis.ruled_out),
        "trials": [] if diagnosis is None else [asdict(trial) for trial in diagnosis.trials],
    }


def _print_divergence(title: str, found: CallDivergence) -> None:
    """The tokens around the place, both margins, and the distances."""
    out.print(Text(f"── {title} ──", style="bold"))
    _print_parting("first other bit", found.first)
    if found.flip is not None:
        _print_parting("first other token", found.flip)
        if found.max_ulp is not None:
            out.print(Text(f"before that token, log-probabilities are at most {found.max_ulp} ULP apart"))
    else:
        out.print(Text(f"all {found.num_recorded} tokens are the same; only numbers differ"))
    _print_texts("the text there", before=found.before, recorded=found.recorded_after, here=found.found_after)


def _print_texts(title: str, **texts: str) -> None:
    out.print(Text(title))
    for name, text in texts.items():
        out.print(Text(f"  {name:<9} {visible(repr(text))}"))


def _print_parting(title: str, place: Parting) -> None:
    distance = "" if place.logprob_ulp is None else f"; {place.logprob_ulp} ULP apart"
    out.print(Text(f"{title} at token {place.index}{distance}"))
    for name, token in (("recorded", place.recorded), ("here", place.found)):
        out.print(Text(f"  {name:<9} {_describe_token(token)}"))


def _describe_token(token: TokenSeen | None) -> str:
    if token is None:
        return "nothing: the answer has ended"
    margin = "" if token.margin is None else f", margin {token.margin:.6g} = {token.margin_ulp} ULP"
    return f"{visible(repr(token.text))} ({token.token_id}), log-probability {token.logprob!r}{margin}"


def _print_diagnosis(diagnosis: Diagnosis, causes: tuple[Switch, ...], fixed: tuple[str, ...]) -> None:
    for cause in causes:
        issue = f" (see {cause.issue})" if cause.issue else ""
        out.print(Text.assemble(("cause ", "bold"), f"{cause.name}: {visible(cause.change)}{issue}"))
    if causes:
        out.print(Text("turned so, the reference's bits come back; turned back, they are gone again"))
    elif not diagnosis.is_repeatable:
        out.print(Text("cause not found: the answer changes from run to run with nothing turned"))
    else:
        out.print(Text("cause not found"))
    if diagnosis.ruled_out:
        out.print(Text(f"ruled out: {', '.join(diagnosis.ruled_out)}"))
    for trial in diagnosis.trials:
        if trial.result == "not possible":
            out.print(Text(f"could not be tried: {', '.join(trial.turned)}: {visible(trial.detail)}"))
    if fixed and not causes:
        out.print(Text(f"differ and cannot be turned on this machine: {', '.join(fixed)}"))


def near_ties(
    record_id: ExplainedRecord = None,
    max_ulp: Annotated[int, typer.Option("--max-ulp", help="How close is near, in float32 steps.", min=0)] = MAX_ULP,
    max_margin: Annotated[
        float | None, typer.Option("--max-margin", help="Near as well: a top-1/top-2 margin up to this.", min=0)
    ] = None,
    max_rows: Annotated[int, typer.Option("--limit", help="List so many, closest first.", min=1)] = 50,
    config: options.Config = None,
    db: options.Db = options.DEFAULT_DB,
    json: options.Json = False,
) -> None:
    """List the places of a record, or of all records, where another token was nearly chosen."""
    settings = engines.read_config(config)
    with SqliteStore.open_read_only(db) as store:
        entries = _every_record(store) if record_id is None else iter([log.find_record(store, record_id)])
        ledger = scan(entries, Limit(max_ulp, max_margin), max_rows, _Tokenizers(settings).of)
    if json:
        print_json(asdict(ledger))
    else:
        _print_ledger(ledger)
    raise typer.Exit(0 if ledger.num_records else NOTHING_RAN)


def _every_record(store: Store) -> Iterator[Entry]:
    for stream in store.streams():
        if stream.case_id == AUDIT_CASE_ID:
            yield from store.entries(stream)


class _Tokenizers:
    """The tokenizers of records, where they are here; a record of another one is listed without text."""

    def __init__(self, settings: EngineConfig) -> None:
        self._settings = settings
        self._opened: dict[str, Tokenizer | None] = {}

    def of(self, record: AuditRecord) -> Tokenizer | None:
        kind = str(record.engine.get("kind"))
        if kind not in engines.ENGINE_NAMES:
            return None
        if kind not in self._opened:
            self._opened[kind] = self._open(kind)
        tokenizer = self._opened[kind]
        return tokenizer if tokenizer and tokenizer.digest == record.engine.get("tokenizer_digest") else None

    def _open(self, kind: str) -> Tokenizer | None:
        try:
            return engines.open_tokenizer(kind, self._settings)
        except (NotFoundError, EngineError) as exc:
            say(f"without texts: {exc.message}")
            return None


def _print_ledger(ledger: Ledger) -> None:
    for row in ledger.rows:
        tie = row.tie
        text = "" if tie.text is None else f"  {visible(repr(tie.before))} then {visible(repr(tie.text))}"
        out.print(
            Text(f"{row.record_id[:16]}  {tie.call} token {tie.index}: {tie.margin:.3g} = {tie.margin_ulp} ULP{text}")
        )
    out.print(
        Text(
            f"{ledger.num_near_ties} near-ties at {ledger.num_choices} places with a choice, in {ledger.num_records} "
            f"records; {ledger.num_unreadable} entries hold no record"
        )
    )


def audit_other_engine(
    store: Store, entry: Entry, report: ReplayReport, open_engine: Callable[[], Engine]
) -> CrossIdentity | None:
    """Evidence for a record whose replay is INCOMPARABLE only because the engine is another one; else None."""
    sealed = read_sealed_case(store, entry) if is_other_engine(report) else None
    if sealed is None or isinstance(sealed, Divergence):
        return None
    return audit_across(sealed, open_engine(), Limit())


def cross_identity_document(across: CrossIdentity | None) -> dict[str, Any]:
    """What `dpm replay --json` adds of another engine; null where the engine is the record's."""
    return {"cross_identity": None if across is None else cross_identity_value(across)}


def print_cross_identity(across: CrossIdentity | None) -> None:
    """How many positions agree, and the disagreements; prints nothing where there is no evidence."""
    if across is None:
        return
    num_others = len(across.disagreements)
    out.print(
        Text(
            f"R2 on this engine, evidence and not a pass: {across.num_agreeing} of {across.num_positions} recorded "
            f"tokens are its best allowed ones too; of the other {num_others}, {across.num_near_ties} were near-ties"
        )
    )
    for found in across.disagreements[:MAX_SHOWN]:
        kind = "near-tie" if found.is_near_tie else "no near-tie"
        distance = "" if found.margin_ulp is None else f", margin {found.margin:.3g} = {found.margin_ulp} ULP"
        texts = f"recorded {visible(repr(found.text))}, here {visible(repr(found.best_text))}"
        out.print(Text(f"  {found.call} token {found.index}: {texts}; {kind}{distance}"))
    if num_others > MAX_SHOWN:
        out.print(Text(f"  and {num_others - MAX_SHOWN} more; --json lists all"))
