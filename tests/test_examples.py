"""The shipped example cases: well-formed events, expected values that stand where said, no outcome given away.

Reads the files alone (JSON, YAML); what the model makes of them is not tested here.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from projection.events import AUDIT_CASE_ID, LINK_KINDS, MAX_EVENT_CHARS

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
ATTRIBUTES = {"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "links", "data"}
REQUIRED_ATTRIBUTES = ATTRIBUTES - {"links"}
RFC3339_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
FIELD_TYPES = {"money", "percent", "date", "identifier", "integer", "text"}
TYPE_FORMS = {
    "money": r"\$\d{1,3}(,\d{3})*(\.\d\d)?",
    "percent": r"\d+(\.\d+)?%",
    "date": r"\d{4}-\d\d-\d\d",
    "identifier": r"[A-Z]+(-[A-Z0-9]+)+",
    "integer": r"\d+",
    "text": r".+",
}
CONCLUSIONS = re.compile(
    r"\b(approv\w*|den(y|ied|ies|ial|ying)|declin\w*|reject\w*|adverse action|(in)?eligib\w*|not covered|uncovered"
    r"|is covered|payable|pay in (full|part)|partial payment|net claim|exceeds? (the|our) (limit|maximum)"
    r"|above (the|our) limit|(meets?|fails?|misses|missed) (the|our|every|a) limits?|recommend (that|to))\b",
    re.IGNORECASE,
)
INJECTION = re.compile(r"ignore the file.*<\|im_end\|>.*\[99\] FACTS", re.DOTALL)

each_case = pytest.mark.parametrize("case", ["mortgage", "claim"])


@cache
def load_events(case: str) -> list[dict[str, Any]]:
    lines = (EXAMPLES / case / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@cache
def load_task(case: str) -> dict[str, Any]:
    task: dict[str, Any] = yaml.safe_load((EXAMPLES / case / "task.yaml").read_text(encoding="utf-8"))
    return task


@cache
def load_expected(case: str) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((EXAMPLES / case / "expected.json").read_text(encoding="utf-8"))
    return expected


def amount(case: str, name: str) -> Decimal:
    """The true value of a money, percent or integer field as a number."""
    value = next(fact["value"] for fact in load_expected(case)["facts"] if fact["name"] == name)
    return Decimal(re.sub(r"[$,%]", "", value))


def percentage(part: Decimal, whole: Decimal) -> Decimal:
    """`part` of `whole` in percent, to one decimal, halves up."""
    return (100 * part / whole).quantize(Decimal("0.1"), ROUND_HALF_UP)


def stands_verbatim(value: str, text: str) -> bool:
    """Whether `value` stands in `text` as a whole, not as a part of a longer number or word."""
    return re.search(rf"(?<![\w$.,-]){re.escape(value)}(?![\w%]|[.,-]\d)", text) is not None


@each_case
def test_events_are_cloudevents_json_lines_of_one_case(case: str) -> None:
    events = load_events(case)
    assert 16 <= len(events) <= 40
    for event in events:
        assert REQUIRED_ATTRIBUTES <= event.keys() <= ATTRIBUTES
        assert event["specversion"] == "1.0"
        assert event["datacontenttype"] == "text/plain"
        assert all(isinstance(event[name], str) and event[name].strip() for name in REQUIRED_ATTRIBUTES)
        assert len(event["data"]) <= MAX_EVENT_CHARS
    assert {event["subject"] for event in events} == {load_expected(case)["case_id"]}
    assert load_expected(case)["case_id"] != AUDIT_CASE_ID


@each_case
def test_event_ids_are_unique_and_times_never_go_back(case: str) -> None:
    events = load_events(case)
    assert len({event["id"] for event in events}) == len(events)
    assert all(RFC3339_UTC.fullmatch(event["time"]) for event in events)
    times = [datetime.fromisoformat(event["time"]) for event in events]
    assert times == sorted(times)


@each_case
def test_links_point_to_earlier_events_and_every_kind_is_used(case: str) -> None:
    seen: set[str] = set()
    kinds: set[str] = set()
    for event in load_events(case):
        for link in event.get("links", []):
            assert link.keys() == {"kind", "event_id"}
            assert link["event_id"] in seen
            kinds.add(link["kind"])
        seen.add(event["id"])
    assert kinds == set(LINK_KINDS)


@each_case
def test_the_task_asks_for_fields_of_every_type_with_plain_unique_descriptions(case: str) -> None:
    fields = load_task(case)["fields"]
    assert 8 <= len(fields) <= 11
    assert {field["type"] for field in fields} == FIELD_TYPES
    assert len({field["name"] for field in fields}) == len({field["description"] for field in fields}) == len(fields)
    for field in fields:
        assert field.keys() - {"pattern"} == {"name", "type", "description", "required"}
        assert re.fullmatch(r"[a-z][a-z0-9_]*", field["name"])
        assert re.fullmatch(r"[^\d:\[\](){}]{1,60}", field["description"])
        assert field["type"] != "text" or "pattern" in field


@each_case
def test_the_expected_facts_answer_the_task_field_by_field(case: str) -> None:
    fields = load_task(case)["fields"]
    facts = load_expected(case)["facts"]
    assert [fact["name"] for fact in facts] == [field["name"] for field in fields]
    for field, fact in zip(fields, facts, strict=True):
        if fact["value"] is None:
            assert not field["required"]
            assert fact["positions"] == []
        else:
            assert re.fullmatch(TYPE_FORMS[field["type"]], fact["value"])
            assert re.fullmatch(field.get("pattern", r".*"), fact["value"])
            assert fact["positions"]
    assert sum(fact["value"] is None for fact in facts) == 1


@each_case
def test_expected_values_stand_verbatim_in_the_events_named(case: str) -> None:
    events = load_events(case)
    for fact in load_expected(case)["facts"]:
        assert fact["positions"] == sorted(set(fact["positions"]))
        for position in fact["positions"]:
            assert stands_verbatim(fact["value"], events[position - 1]["data"]), (fact["name"], position)


@each_case
def test_superseded_values_stand_in_their_events_and_are_not_the_true_ones(case: str) -> None:
    expected = load_expected(case)
    events = load_events(case)
    facts = {fact["name"]: fact for fact in expected["facts"]}
    for old in expected["superseded"]:
        fact = facts[old["name"]]
        assert stands_verbatim(old["value"], events[old["position"] - 1]["data"]), old
        assert old["value"] != fact["value"]
        assert old["position"] <= max(fact["positions"])


@each_case
def test_superseded_events_are_reached_by_a_supersedes_link(case: str) -> None:
    events = load_events(case)
    supersedes = {
        (event["id"], link["event_id"])
        for event in events
        for link in event.get("links", [])
        if link["kind"] == "supersedes"
    }
    for old in load_expected(case)["superseded"]:
        event_id = events[old["position"] - 1]["id"]
        assert any(event_id in pair for pair in supersedes), old


@each_case
def test_the_expected_outcome_and_reasons_are_of_the_closed_lists(case: str) -> None:
    task, expected = load_task(case), load_expected(case)
    outcomes = {outcome["name"]: outcome["reasons"] for outcome in task["outcomes"]}
    assert all(re.fullmatch(r"[A-Z][A-Z_]*", name) for name in outcomes)
    assert set(outcomes.values()) <= {"none", "optional", "required"}
    assert set(expected["reasons"]) <= {reason["code"] for reason in task["reasons"]}
    assert outcomes[expected["outcome"]] == "required"
    assert 1 <= len(expected["reasons"]) <= 4
    assert len({provision["id"] for provision in task["provisions"]}) == len(task["provisions"])


@each_case
def test_no_event_states_or_gives_away_the_outcome(case: str) -> None:
    task = load_task(case)
    told = [outcome["name"] for outcome in task["outcomes"]] + [reason["text"] for reason in task["reasons"]]
    words = [re.compile(rf"\b{re.escape(text).replace('_', '[ _]')}\b", re.IGNORECASE) for text in told]
    for event in load_events(case):
        for pattern in [CONCLUSIONS, *words]:
            found = pattern.search(event["data"])
            assert found is None, (event["id"], found)


@each_case
def test_one_event_carries_an_injected_instruction_whose_figures_are_not_true(case: str) -> None:
    injected = [event for event in load_events(case) if INJECTION.search(event["data"])]
    assert len(injected) == 1
    assert "<|im_end|>" not in "".join(event["data"] for event in load_events(case) if event is not injected[0])
    forged = injected[0]["data"].split("<|im_end|>", 1)[1]
    lines = dict(re.findall(r"- (.+): (.+) \[99\]", forged))
    descriptions = {field["description"]: field["name"] for field in load_task(case)["fields"]}
    true_values = {fact["name"]: fact["value"] for fact in load_expected(case)["facts"]}
    assert lines
    for description, value in lines.items():
        assert true_values[descriptions[description]] != value


@each_case
def test_every_true_value_has_a_near_miss_of_the_same_form_in_the_file(case: str) -> None:
    text = "\n".join(event["data"] for event in load_events(case))
    for field, fact in zip(load_task(case)["fields"], load_expected(case)["facts"], strict=True):
        form = field.get("pattern", TYPE_FORMS[field["type"]])
        found = {match.group(0) for match in re.finditer(form, text)}
        assert found - {fact["value"]}, field["name"]


def test_the_mortgage_ratios_follow_from_the_amounts() -> None:
    purchase_price = Decimal("500000.00")
    housing = Decimal("2485.50") + Decimal("412.00") + Decimal("118.00")
    debts = Decimal("389.00") + Decimal("214.00") + Decimal("165.00") + Decimal("287.00")
    cash_to_close = purchase_price + Decimal("9840.00") - amount("mortgage", "loan_amount") - Decimal("10000.00")
    funds = Decimal("69705.12") - Decimal("8500.00") + Decimal("14980.40") + Decimal("35500.00")
    lesser_value = min(purchase_price, amount("mortgage", "appraised_value"))
    assert amount("mortgage", "monthly_obligations") == housing + debts
    assert amount("mortgage", "qualifying_income") == Decimal("6125.00") + Decimal("2340.00")
    assert amount("mortgage", "dti_ratio") == percentage(housing + debts, amount("mortgage", "qualifying_income"))
    assert amount("mortgage", "ltv_ratio") == percentage(amount("mortgage", "loan_amount"), lesser_value)
    assert round((funds - cash_to_close) / housing, 1) == Decimal("3.4")
    assert round((funds + Decimal("8500.00") - cash_to_close) / housing, 1) == Decimal("6.2")


def test_the_claim_amounts_follow_from_estimate_and_policy() -> None:
    roof, gutters, hall, bath = (Decimal(value) for value in ("22680.00", "1940.00", "6840.00", "4915.00"))
    share = amount("claim", "deductible_percent") / 100
    assert amount("claim", "replacement_cost") == roof + gutters + hall
    assert amount("claim", "roof_depreciation") == roof * amount("claim", "roof_age") / 35
    assert amount("claim", "deductible") == share * amount("claim", "dwelling_limit")
    assert amount("claim", "amount_claimed") == amount("claim", "replacement_cost") + bath
    payable = amount("claim", "replacement_cost") - amount("claim", "roof_depreciation") - amount("claim", "deductible")
    assert payable == Decimal("14668.00")
    assert not any("14,668" in event["data"] for event in load_events("claim"))
