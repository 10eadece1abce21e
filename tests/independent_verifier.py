"""A second verifier of logs and sealed records, written from `docs/format.md` alone: section numbers are that page's.

Standard library only, nothing of ours is imported: it shows that the page is complete, and gives an auditor a program
of one file. It verifies the chains of a log, heads kept elsewhere, and a record at level R0.

    python tests/independent_verifier.py LOG [RECORD_ID]       exit 0: everything holds; 1: it does not
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

# 1. Conventions


class Broken(Exception):
    """Something does not hold; the message says what."""


def canonical_number(number: float) -> str:
    """A number as ECMAScript prints it (RFC 8785, 3.2.2.3)."""
    if number == 0:
        return "0"
    sign, digit_tuple, exponent = Decimal(repr(number)).normalize().as_tuple()
    if not isinstance(exponent, int):
        raise Broken(f"{number} is no JSON number")
    digits = "".join(map(str, digit_tuple))
    point = len(digits) + exponent
    if 0 < point <= 21:
        digits = digits.ljust(point, "0")
        text = digits[:point] + ("." + digits[point:] if digits[point:] else "")
    elif -6 < point <= 0:
        text = "0." + "0" * -point + digits
    else:
        text = digits[0] + ("." + digits[1:] if digits[1:] else "") + f"e{point - 1:+d}"
    return "-" * sign + text


def canonical(value: Any) -> str:
    """RFC 8785."""
    if value is None or isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        if abs(value) > 2**53 - 1:
            raise Broken(f"{value} has no canonical form")
        return str(value)
    if isinstance(value, float):
        return canonical_number(value)
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    names = sorted(value, key=lambda name: name.encode("utf-16-be"))
    return "{" + ",".join(f"{canonical(name)}:{canonical(value[name])}" for name in names) + "}"


def tagged(tag: str, data: bytes) -> str:
    """D(tag, data)."""
    return hashlib.sha256(tag.encode("ascii") + b"\0" + data).hexdigest()


def tagged_json(tag: str, value: Any) -> str:
    """J(tag, value)."""
    return tagged(tag, canonical(value).encode("utf-8"))


def read_canonical(data: bytes) -> Any:
    """The JSON value whose canonical form these bytes are."""
    try:
        value = json.loads(data.decode("utf-8"))
        is_canonical = canonical(value).encode("utf-8") == data
    except (ValueError, RecursionError) as exc:
        raise Broken(f"this is no canonical JSON: {exc}") from exc
    if not is_canonical:
        raise Broken("the JSON is not in canonical form")
    return value


def require(holds: bool, reason: str) -> None:
    if not holds:
        raise Broken(reason)


# 2. The log file

SCHEMA = """\
CREATE TABLE entry (
    entry_id INTEGER PRIMARY KEY,
    tenant_id TEXT NOT NULL,
    case_id TEXT NOT NULL,
    position INTEGER NOT NULL CHECK (position >= 1),
    event_id TEXT NOT NULL,
    header BLOB NOT NULL,
    entry_hash BLOB NOT NULL CHECK (length(entry_hash) = 32),
    salt BLOB,
    payload BLOB,
    UNIQUE (tenant_id, case_id, position),
    UNIQUE (tenant_id, case_id, event_id),
    CHECK ((salt IS NULL) = (payload IS NULL))
) STRICT;

CREATE UNIQUE INDEX record_hash ON entry (entry_hash) WHERE case_id = 'audit';

CREATE TRIGGER entry_no_update BEFORE UPDATE ON entry
BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;

CREATE TRIGGER entry_no_delete BEFORE DELETE ON entry
BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;

CREATE TRIGGER entry_no_replace BEFORE INSERT ON entry
WHEN EXISTS (SELECT 1 FROM entry WHERE entry_id = NEW.entry_id)
OR EXISTS (SELECT 1 FROM entry WHERE (tenant_id, case_id, position) = (NEW.tenant_id, NEW.case_id, NEW.position))
OR EXISTS (SELECT 1 FROM entry WHERE (tenant_id, case_id, event_id) = (NEW.tenant_id, NEW.case_id, NEW.event_id))
BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
"""
SCHEMA_STATEMENTS = {statement.strip().removesuffix(";") for statement in SCHEMA.split("\n\n")}

StreamName = tuple[str, str]
"""Tenant id, case id."""


def open_log(path: Path) -> sqlite3.Connection:
    log = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    facts = [log.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    require(facts == [0x44504D31, 1], f"{path} is no log of format 1")
    return log


def streams(log: sqlite3.Connection) -> list[StreamName]:
    return sorted(log.execute("SELECT DISTINCT tenant_id, case_id FROM entry"))


def check_file(log: sqlite3.Connection) -> None:
    """The schema, and SQLite's own check."""
    found = {sql for (sql,) in log.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
    require(found == SCHEMA_STATEMENTS, "the schema is not that of a log")
    require(log.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok", "SQLite's integrity check fails")


# 3. and 4. Entries, their chain, and heads

HEADER_STRINGS = ("case_id", "event_id", "payload_commitment", "recorded_at", "source", "tenant_id", "type")
ZERO_HASH = "0" * 64


@dataclass(frozen=True)
class Entry:
    position: int
    header: dict[str, Any]
    entry_hash: str
    payload: bytes | None


@dataclass(frozen=True)
class Chain:
    """The entries of a stream that hold, and where it stops holding."""

    entries: list[Entry]
    first_bad_position: int | None
    reason: str | None

    def head(self) -> tuple[int, str]:
        return (self.entries[-1].position, self.entries[-1].entry_hash) if self.entries else (0, ZERO_HASH)

    def holds_head(self, position: int | None, entry_hash: str) -> bool:
        """Whether the chain holds and has this entry; at any position where None is given."""
        heads = [(0, ZERO_HASH), *((entry.position, entry.entry_hash) for entry in self.entries)]
        return self.first_bad_position is None and any(
            entry_hash == known_hash and position in (None, known) for known, known_hash in heads
        )


def read_chain(log: sqlite3.Connection, stream: StreamName) -> Chain:
    entries: list[Entry] = []
    columns = "position, event_id, header, entry_hash, salt, payload"
    query = f"SELECT {columns} FROM entry WHERE tenant_id = ? AND case_id = ? ORDER BY position"
    previous = ZERO_HASH
    try:
        for row in log.execute(query, stream):
            entries.append(check_row(row, stream, len(entries) + 1, previous))
            previous = entries[-1].entry_hash
    except (Broken, sqlite3.DatabaseError) as exc:
        return Chain(entries, len(entries) + 1, str(exc))
    return Chain(entries, None, None)


def check_row(row: Sequence[Any], stream: StreamName, position: int, previous: str) -> Entry:
    found, event_id, header_bytes, entry_hash, salt, payload = row
    require(found == position, f"the entry at position {position} is missing")
    require(type(header_bytes) is bytes and type(entry_hash) is bytes, "a value of the row has another type")
    header = read_canonical(header_bytes)
    check_header(header)
    filed = [header[name] for name in ("tenant_id", "case_id", "position", "event_id")]
    require(filed == [*stream, position, event_id], "the header belongs elsewhere")
    expected = tagged("dpm/entry/v1", bytes.fromhex(previous) + header_bytes)
    require(entry_hash.hex() == expected, "the entry hash does not follow")
    if payload is not None or salt is not None:
        require(type(payload) is bytes and type(salt) is bytes and len(salt) == 32, "salt and payload do not fit")
        commitment = tagged("dpm/payload/v1", salt + payload)
        require(commitment == header["payload_commitment"], "the payload is not the one committed to")
    return Entry(position, header, expected, payload)


def check_header(header: Any) -> None:
    require_members(header, {*HEADER_STRINGS, "links", "occurred_at", "position", "v"})
    require(all(type(header[name]) is str for name in HEADER_STRINGS), "a member of the header is no string")
    require(header["occurred_at"] is None or type(header["occurred_at"]) is str, "occurred_at is no time")
    require([type(header[name]) for name in ("position", "v")] == [int, int], "position or version is no integer")
    require(header["v"] == 1, "the header has another version")
    require(type(header["links"]) is list, "links are no array")
    for link in header["links"]:
        require_members(link, {"event_id", "kind"})
        require(type(link["event_id"]) is str and type(link["kind"]) is str, "a link has another form")


def require_members(value: Any, names: set[str]) -> None:
    require(type(value) is dict and value.keys() == names, f"not an object with exactly {', '.join(sorted(names))}")


def joint_head(heads: dict[StreamName, tuple[int, str]]) -> str:
    """What `dpm log head` prints for these streams."""
    if len(heads) == 1:
        return next(iter(heads.values()))[1]
    return tagged_json("dpm/heads/v1", [[*stream, *head] for stream, head in sorted(heads.items())])


# 5. Events


@dataclass(frozen=True)
class Event:
    position: int
    text: str
    content: dict[str, Any]


def events_of(chain: Chain, up_to: int) -> list[Event]:
    return [_event(entry) for entry in chain.entries[:up_to]]


def _event(entry: Entry) -> Event:
    require(entry.payload is not None, f"the payload at position {entry.position} was erased")
    try:
        text = (entry.payload or b"").decode("utf-8")
    except UnicodeDecodeError as exc:
        raise Broken(f"the payload at position {entry.position} is no text") from exc
    names = ("event_id", "type", "source", "occurred_at", "links")
    content = {"position": entry.position, "text": text, **{name: entry.header[name] for name in names}}
    return Event(entry.position, text, content)


def events_digest(events: Sequence[Event]) -> str:
    return tagged_json("dpm/events/v1", [event.content for event in events])


# 6. and 7. The members of tasks and records

MEMBERS: dict[str, dict[str, str]] = {
    "task": {"question": "str", "fields": "[field]", "outcomes": "[outcome]", "reasons": "[reason]",
             "provisions": "[provision]", "policy": "str", "party_statements?": "[str]"},
    "field": {"name": "str", "type": "str", "description": "str", "required": "bool", "pattern": "str?"},
    "outcome": {"name": "str", "reasons": "str"},
    "reason": {"code": "str", "text": "str"},
    "provision": {"id": "str", "text": "str"},
    "record": {"v": "int", "tenant_id": "str", "case_id": "str", "log_head": "head", "content": "content",
               "content_digest": "str", "engine": "dict", "wall_s": "[float]", "dpm_version": "str",
               "sealed_at": "str"},
    "head": {"position": "int", "entry_hash": "str"},
    "content": {"events_digest": "str", "num_events": "int", "task": "task", "task_digest": "str",
                "template_digest": "str", "profile": "profile", "budget": "budget", "engine_identity": "str",
                "projection": "call", "view_digest": "str", "decision_call": "call", "decision": "decision"},
    "profile": {"slot_candidates": "int?"},
    "budget": {"asked_chars": "int", "used_chars": "int"},
    "call": {"prompt_token_ids": "[int]", "grammar_digest": "str", "max_tokens": "int", "token_ids": "[int]",
             "text": "str", "finish_reason": "str", "logprobs": "[float]", "margins": "[float?]"},
    "decision": {"outcome": "str", "reasons": "[given]", "rationale": "str"},
    "given": {"code": "str", "lines": "[int]"},
}  # fmt: skip
PLAIN_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "bool": (bool,), "dict": (dict,), "float": (int, float)
}  # fmt: skip


def _has(value: Any, name: str) -> bool:
    return type(value) is dict and bool(value.get(name))


def check_form(value: Any, form: str) -> None:
    """`form` is a plain type, a name of MEMBERS, either with `?` (may be null), or one of these in brackets (array).

    A member of MEMBERS that ends in `?` is left out where it would be empty.
    """
    if form.startswith("["):
        require(type(value) is list, "an array is expected")
        for item in value:
            check_form(item, form[1:-1])
    elif form.endswith("?"):
        if value is not None:
            check_form(value, form[:-1])
    elif form in MEMBERS:
        left_out = {name for name in MEMBERS[form] if name.endswith("?") and not _has(value, name[:-1])}
        members = {name.removesuffix("?"): MEMBERS[form][name] for name in MEMBERS[form].keys() - left_out}
        require_members(value, set(members))
        for name, member_form in members.items():
            check_form(value[name], member_form)
    else:
        require(type(value) in PLAIN_TYPES[form], f"{value!r} is no {form}")


# 10. Values and quotes

ANCHOR_PATTERNS = r"""
MONTH    = (?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\.?
TIME     = [0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?(?:Z|[+-][0-9]{2}:[0-9]{2})?
NUMBER   = (?>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)
WHOLE    = (?>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)
SIGN     = (?:(?<![^\s(])[-+−–])?
ENDS     = (?![^\W_]|[.,'’]?[0-9])
STANDS   = (?:(?=[-/][a-z]{2,}(?![\w-]))|{ENDS}(?![-/_.:*\#][A-Za-z0-9*]))
DAY      = [0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T\ ]{TIME})?|[0-9]{1,2}/[0-9]{1,2}/(?:[0-9]{4}|[0-9]{2})
DATE     = (?P<date>(?:{DAY}|{MONTH}\ [0-9]{1,2},?\ [0-9]{4}|[0-9]{1,2}\ {MONTH}\ [0-9]{4})(?![^\W_]|[-/][0-9]))
MONEY    = (?P<money>(?:{SIGN}[$€£]\ ?-?|(?:USD|EUR|GBP)\ ){NUMBER}(?:[kKM]|\ (?:thousand|million|billion))?{ENDS})
PERCENT  = (?P<percent>{SIGN}{NUMBER}(?:\ ?%|\ percent|\ per\ cent)(?![^\W_]))
DECIMAL  = (?P<decimal>{SIGN}{WHOLE}?\.[0-9]+{STANDS})
INTEGER  = (?P<integer>{WHOLE}{STANDS})
NAME     = (?P<identifier>[A-Za-z0-9#*](?:[A-Za-z0-9*]|[-/_.:\#](?=[A-Za-z0-9*])|(?<=[0-9])[,'’](?=[0-9]))*)
ANCHOR   = (?<![^\W_])(?<![0-9][,'’])(?<!\.)(?:{DATE}|{MONEY}|{PERCENT}|{DECIMAL}|{INTEGER})|{NAME}
"""  # noqa: E501 - as on the page
QUOTE_PATTERNS = r"""
SENTENCE_END = \n+|(?<=[.!?])\s+|;\s+
PART_END     = ,\s+
"""
UNPRINTABLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}
HIDDEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")
MAX_VALUE_CHARS, MIN_QUOTE_CHARS, MAX_QUOTE_CHARS, MAX_RATIONALE_ANCHOR_CHARS = 80, 24, 80, 24


def read_patterns(block: str) -> dict[str, str]:
    """The patterns of a block, names in braces put in."""
    patterns: dict[str, str] = {}
    for row in block.strip().splitlines():
        name, pattern = re.split(r"\s*=\s", row, maxsplit=1)
        patterns[name] = re.sub(r"\{([A-Z]+)\}", lambda named: patterns[named[1]], pattern.strip())
    return patterns


ANCHOR = re.compile(read_patterns(ANCHOR_PATTERNS)["ANCHOR"], re.VERBOSE)
SENTENCE_END, PART_END = (re.compile(pattern) for pattern in read_patterns(QUOTE_PATTERNS).values())


def anchors(text: str) -> Iterator[re.Match[str]]:
    """Matches that are anchors; `lastgroup` is the kind."""
    return (match for match in ANCHOR.finditer(text) if re.search("[0-9]", match[0]))


def anchor_values(text: str) -> set[str]:
    return {match[0] for match in anchors(text)}


def is_printable(text: str) -> bool:
    return all(char == " " or unicodedata.category(char) not in UNPRINTABLE for char in text)


def holds_loose_numeral(text: str) -> bool:
    inside = {index for match in anchors(text) for index in range(*match.span())}
    return any(unicodedata.category(char).startswith("N") for i, char in enumerate(text) if i not in inside)


def field_values(field: dict[str, Any], text: str) -> set[str]:
    if field["pattern"] is not None:
        guarded = rf"(?<![\w$€£])(?<![0-9][.,])(?:{field['pattern']})(?!\w|[.,][0-9])"
        found = [match[0] for match in re.finditer(guarded, text)]
    elif field["type"] == "text":
        found = [match[0].strip() for match in re.finditer(r"(?:[^.;:,()\[\]\n]|(?<=[0-9])[.,:](?=[0-9]))+", text)]
    else:
        found = [match[0] for match in anchors(text) if match.lastgroup == field["type"]]
    return {v for v in found if 0 < len(v) <= MAX_VALUE_CHARS and is_printable(v) and v == v.strip()}


def quotes(text: str) -> set[str]:
    found = set()
    for sentence in SENTENCE_END.split(text):
        parts = [sentence] if len(sentence.strip()) <= MAX_QUOTE_CHARS else PART_END.split(sentence)
        found |= {part.strip() for part in parts}
    fitting = (quote for quote in found if MIN_QUOTE_CHARS <= len(quote) <= MAX_QUOTE_CHARS)
    return {quote for quote in fitting if is_printable(quote) and not HIDDEN.search(quote)}


# 8. The memory view

HEADINGS = ["FACTS", "REASONING", "COMPLIANCE"]


@dataclass(frozen=True)
class View:
    """Line count, and the texts whose anchors a rationale may repeat: slot values and words."""

    num_lines: int
    texts: list[str]


def check_view(text: str, events: Sequence[Event], task: dict[str, Any], budget_chars: int) -> View:
    require(len(text) <= budget_chars, "the view is longer than its budget")
    require(text.endswith("\n"), "the view does not end with a line feed")
    rows = text[:-1].split("\n")
    require([row for row in rows if row in HEADINGS] == HEADINGS and rows[0] == HEADINGS[0], "headings")
    by_position = {event.position: event for event in events}
    section = ""
    texts: list[str] = []
    for row in rows:
        if row in HEADINGS:
            section = row
        elif len(texts) < len(task["fields"]):
            require(section == "FACTS", "a field has no slot under FACTS")
            texts.append(_check_slot(row, task["fields"][len(texts)], by_position))
        else:
            texts.append(_check_line(row, section, task, by_position))
    require(len(texts) >= len(task["fields"]), "a field has no slot")
    return View(len(texts), texts)


def _check_slot(row: str, field: dict[str, Any], events: dict[int, Event]) -> str:
    """The value, empty where it is unknown."""
    prefix = f"- {field['description']}: "
    require(row.startswith(prefix), f"the slot of {field['name']} is missing")
    rest = row.removeprefix(prefix)
    if rest == "unknown":
        return ""
    match = re.fullmatch(r"(.+) \[([1-9][0-9]{0,8})\]", rest)
    event = events.get(int(match[2])) if match else None
    if match is None or event is None or match[1] not in field_values(field, event.text):
        raise Broken(f"{rest!r} is no value of {field['name']} in the event it cites")
    return match[1]


def _check_line(row: str, section: str, task: dict[str, Any], events: dict[int, Event]) -> str:
    """The words."""
    match = re.fullmatch(r"- \[([1-9][0-9]{0,8})\] (.+)", row)
    event = events.get(int(match[1])) if match else None
    if match is None or event is None:
        raise Broken(f"{row!r} cites no event")
    words = match[2]
    if section == "COMPLIANCE":
        provision, colon, words = words.partition(": ")
        known = {provision["id"] for provision in task["provisions"]}
        require(bool(colon) and provision in known, f"{row!r} names no provision")
    if words in quotes(event.text):
        return words
    require(section != "FACTS", f"{words!r} is no quote of event {event.position}")
    require(anchor_values(words) <= anchor_values(event.text), f"{words!r} holds a number of its own")
    require(not holds_loose_numeral(words), f"{words!r} holds a numeral outside any anchor")
    return words


# 9. The decision


def check_decision(text: str, task: dict[str, Any], view: View) -> dict[str, Any]:
    """The decision as the record holds it."""
    match = re.fullmatch(r"Outcome: (.*)\n((?:Reason: .+\n)*)Rationale: (.*)\n", text)
    if match is None:
        raise Broken("the decision has another form")
    name, rationale = match[1], match[3]
    rule = next((outcome["reasons"] for outcome in task["outcomes"] if outcome["name"] == name), None)
    given = [_given_reason(row, view) for row in match[2].split("\n")[:-1]]
    codes = [reason["code"] for reason in given]
    require(codes == [r["code"] for r in task["reasons"] if r["code"] in codes], "reasons out of order or unknown")
    require(rule is not None and len(codes) <= 4, f"no outcome {name}, or {len(codes)} reasons")
    require(not (rule == "required" and not codes) and not (rule == "none" and codes), "the outcome's rule for reasons")
    allowed = {value for words in view.texts for value in anchor_values(words)}
    allowed = {value for value in allowed if len(value) <= MAX_RATIONALE_ANCHOR_CHARS}
    is_free = anchor_values(rationale) <= allowed and not holds_loose_numeral(rationale)
    require(is_free, "the rationale holds a number of its own")
    return {"outcome": name, "reasons": given, "rationale": rationale}


def _given_reason(row: str, view: View) -> dict[str, Any]:
    match = re.fullmatch(r"Reason: (.+?)((?: \[L[1-9][0-9]{0,8}\]){1,2})", row)
    if match is None:
        raise Broken(f"{row!r} is no reason")
    lines = [int(number) for number in re.findall("[0-9]+", match[2])]
    require(max(lines) <= view.num_lines, f"{row!r} cites no line of the view")
    return {"code": match[1], "lines": lines}


# 11. Replay level R0


def verify_record(path: Path, record_id: str) -> None:
    """R0 of one record; raises Broken."""
    with closing(open_log(path)) as log:
        query = "SELECT tenant_id FROM entry WHERE case_id = 'audit' AND entry_hash = ?"
        row = log.execute(query, (bytes.fromhex(record_id),)).fetchone()
        require(row is not None, "no such record")
        audit = read_chain(log, (row[0], "audit"))
        require(audit.holds_head(None, record_id), f"the audit stream: {audit.reason}")
        record = _read_record(next(entry for entry in audit.entries if entry.entry_hash == record_id), row[0])
        case = read_chain(log, (row[0], record["case_id"]))
        position, entry_hash = record["log_head"]["position"], record["log_head"]["entry_hash"]
        require(case.holds_head(position, entry_hash), f"the case stream: {case.reason or 'the log head is not there'}")
        check_record(record, events_of(case, position))


def _read_record(entry: Entry, tenant_id: str) -> Any:
    require(entry.payload is not None, "the record was erased")
    record = read_canonical(entry.payload or b"")
    check_form(record, "record")
    require(record["v"] == 1 and record["tenant_id"] == tenant_id and record["case_id"] != "audit", "another's record")
    return record


def check_record(record: dict[str, Any], events: Sequence[Event]) -> None:
    content = record["content"]
    view_text, decision_text = content["projection"]["text"], content["decision_call"]["text"]
    expected = {
        "num_events": len(events),
        "events_digest": events_digest(events),
        "task_digest": tagged_json("dpm/task/v1", content["task"]),
        "engine_identity": tagged_json("dpm/engine-identity/v1", record["engine"]),
        "view_digest": tagged("dpm/view/v1", view_text.encode("utf-8")),
    }
    for name, value in expected.items():
        require(content[name] == value, f"{name} is {content[name]}, and should be {value}")
    require(record["content_digest"] == tagged_json("dpm/content/v1", content), "content_digest")
    require(all(content[call]["finish_reason"] == "stop" for call in ("projection", "decision_call")), "unfinished")
    view = check_view(view_text, events, content["task"], content["budget"]["asked_chars"])
    require(content["decision"] == check_decision(decision_text, content["task"], view), "the decision is another")
    require(content["budget"]["used_chars"] == len(view_text), "used_chars")


def verify_log(path: Path) -> dict[StreamName, Chain]:
    """Every stream of a file; raises Broken where the file itself does not hold."""
    try:
        with closing(open_log(path)) as log:
            chains = {stream: read_chain(log, stream) for stream in streams(log)}
            if all(chain.first_bad_position is None for chain in chains.values()):
                check_file(log)
            return chains
    except sqlite3.DatabaseError as exc:
        raise Broken(f"{path}: {exc}") from exc


def main(path: str, *record_ids: str) -> int:
    try:
        chains = verify_log(Path(path))
        for (tenant_id, case_id), chain in chains.items():
            bad = f", position {chain.first_bad_position}: {chain.reason}" if chain.first_bad_position else ""
            print(f"{tenant_id}/{case_id}: {len(chain.entries)} entries hold{bad}")
        for record_id in record_ids:
            verify_record(Path(path), record_id)
            print(f"record {record_id}: R0 PASS")
    except Broken as exc:
        print(f"does not hold: {exc}")
        return 1
    return int(any(chain.first_bad_position for chain in chains.values()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
