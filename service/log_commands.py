"""`dpm log append|show|verify|head`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from projection import log
from projection.entry import Head, Stream
from projection.errors import NotFoundError, StorageError, VerificationError
from projection.events import AUDIT_CASE_ID
from projection.log import LogVerdict, Store
from projection.prompt import visible
from projection.store_sqlite import SqliteStore
from service import options, runtime
from service.console import VERDICT_STYLES, out, print_json
from service.files import choose_stream, read_events

app = typer.Typer(no_args_is_help=True)


@app.command("append")
def append(
    events: options.EventsFile,
    tenant: options.Tenant = options.DEFAULT_TENANT,
    case: options.Case = None,
    db: options.Db = options.DEFAULT_DB,
    json: options.Json = False,
) -> None:
    """Append a file of events, whole or not at all; events that are there already are left alone."""
    parsed = read_events(events)
    with SqliteStore.open(db) as store:
        stream = choose_stream(store, events, parsed, tenant, case)
        before = store.head(stream)
        head = log.append_new(store, stream, parsed, now=runtime.now(), salt=runtime.new_salt)
    added = head.position - before.position
    document = {**_place(stream), "num_appended": added, "num_entries": head.position, "head": head.entry_hash}
    if json:
        print_json(document)
    else:
        out.print(f"{visible(str(stream))}: {added} events appended, head {head}", markup=False)


@app.command("show")
def show(
    tenant: options.AnyTenant = None,
    case: options.AnyCase = None,
    db: options.Db = options.DEFAULT_DB,
    json: options.Json = False,
) -> None:
    """Print the events of one stream; characters that cannot be seen are spelled out."""
    with SqliteStore.open_read_only(db) as store:
        streams = _streams(store, tenant, case)
        if len(streams) > 1:
            names = ", ".join(str(stream) for stream in streams)
            raise NotFoundError(f"several streams are here; choose one with --tenant and --case: {names}")
        events = log.read(store, streams[0])
    if json:
        rows = [{"position": e.position, **e.event.content()} for e in events]
        print_json({**_place(streams[0]), "num_entries": len(events), "events": rows})
        return
    for logged in events:
        when = f" {logged.event.occurred_at}" if logged.event.occurred_at else ""
        out.print(f"[{logged.position}] {visible(logged.event.type)}{when}", style="bold", markup=False)
        out.print(visible(logged.text), markup=False)


@app.command("verify")
def verify(
    tenant: options.AnyTenant = None,
    case: options.AnyCase = None,
    db: options.Db = options.DEFAULT_DB,
    expected_head: Annotated[
        str | None, typer.Option("--expected-head", help="A head kept elsewhere: HASH, POSITION:HASH, or a log's.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Recompute every hash; name the first position that does not hold.

    With an expected head, entries missing from the end are found too.
    """
    try:
        with SqliteStore.open_read_only(db) as store:
            streams = _streams(store, tenant, case, allow_none=expected_head is not None)
            document = _verify(store, streams, expected_head)
    except StorageError as exc:
        if exc.fields.get("cause") not in ("malformed", "not_a_log"):
            raise
        raise VerificationError(f"the file does not hold: {exc.message}", **exc.fields) from exc
    if json:
        print_json(document)
    else:
        for row in document["streams"]:
            bad = f", position {row['first_bad_position']}: {row['reason']}" if row["verdict"] != "PASS" else ""
            out.print(
                visible(f"{row['tenant_id']}/{row['case_id']}: {row['num_entries']} entries hold{bad}"), markup=False
            )
        out.print(str(document["verdict"]), style=VERDICT_STYLES[str(document["verdict"])], end="  ")
        out.print(f"head {document['head']}{'  ' + document['reason'] if document['reason'] else ''}", markup=False)
    raise typer.Exit(0 if document["verdict"] == "PASS" else 1)


@app.command("head")
def head(
    tenant: options.AnyTenant = None,
    case: options.AnyCase = None,
    db: options.Db = options.DEFAULT_DB,
    json: options.Json = False,
) -> None:
    """Print the head to keep elsewhere: of one stream, or of all of them together."""
    with SqliteStore.open_read_only(db) as store:
        streams = _streams(store, tenant, case)
        heads = {stream: store.head(stream) for stream in streams}
    document = {
        "head": _joint_head(heads),
        "num_entries": sum(h.position for h in heads.values()),
        "streams": [{**_place(s), "position": h.position, "head": h.entry_hash} for s, h in heads.items()],
    }
    if json:
        print_json(document)
    else:
        out.print(str(document["head"]), markup=False)


def _streams(store: Store, tenant: str | None, case: str | None, *, allow_none: bool = False) -> list[Stream]:
    """The streams in scope."""
    found = [s for s in store.streams() if tenant in (None, s.tenant_id) and case in (None, s.case_id)]
    if not found and not allow_none:
        scope = f"tenant {tenant or 'any'}, case {case or 'any'}"
        raise NotFoundError(f"the log has no stream of {scope}; dpm log append puts events into one")
    return found


def _verify(store: SqliteStore, streams: list[Stream], expected_head: str | None) -> dict[str, Any]:
    """Verify each stream, then hold the expected head against them: one of a stream, or the joint one."""
    verdicts = {stream: log.verify(store.entries(stream), stream) for stream in streams}
    heads = {stream: verdict.head for stream, verdict in verdicts.items()}
    bad = next((v for v in verdicts.values() if not v.holds), None)
    position, reason = (bad.first_bad_position, bad.reason) if bad else (None, None)
    joint = _joint_head(heads)
    if bad is None and expected_head is not None and expected_head != joint:
        position, reason = _find_head(store, verdicts, expected_head)
    reason = reason or store.find_file_problem()
    return {
        "verdict": "PASS" if reason is None else "DRIFT",
        "num_entries": sum(v.num_entries for v in verdicts.values()),
        "head": joint,
        "first_bad_position": position,
        "reason": reason,
        "streams": [_row(stream, verdict) for stream, verdict in verdicts.items()],
    }


def _find_head(store: Store, verdicts: dict[Stream, LogVerdict], expected_head: str) -> tuple[int | None, str | None]:
    """What is wrong when no stream has the head; (None, None) when one has. A stream may have grown since."""
    expected = log.parse_expected_head(expected_head)
    found = [log.verify(store.entries(stream), stream, expected_head=expected) for stream in verdicts]
    if any(verdict.holds for verdict in found):
        return None, None
    cases = [verdict for stream, verdict in zip(verdicts, found, strict=True) if stream.case_id != AUDIT_CASE_ID]
    likely = cases if len(cases) == 1 else found
    if len(likely) == 1:
        return likely[0].first_bad_position, likely[0].reason
    return None, (
        "no stream here has the expected head: entries are missing, or it is the joint head of several streams, which "
        "holds only until the next append. Name the stream with --case for the position"
    )


def _joint_head(heads: dict[Stream, Head]) -> str:
    """The head of the only stream, or a digest over the heads of all."""
    if len(heads) == 1:
        return next(iter(heads.values())).entry_hash
    return log.combined_head(heads)


def _row(stream: Stream, verdict: LogVerdict) -> dict[str, Any]:
    return {
        **_place(stream),
        "verdict": "PASS" if verdict.holds else "DRIFT",
        "num_entries": verdict.num_entries,
        "num_erased": verdict.num_erased,
        "head": verdict.head.entry_hash,
        "first_bad_position": verdict.first_bad_position,
        "reason": verdict.reason,
    }


def _place(stream: Stream) -> dict[str, str]:
    return {"tenant_id": stream.tenant_id, "case_id": stream.case_id}
