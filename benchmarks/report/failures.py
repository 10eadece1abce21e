"""The demonstrations of failure in the report: a table for each, and how many replays survive against their calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.experiments.rows import BASE
from reporting.document import Block, Code, Column, Facts, Figure, Table
from reporting.journal import Recorded
from reporting.plots import Line, draw_lines

Row = Mapping[str, Any]
SURVIVAL = ("survival", "survival_of_the_control")


@dataclass(frozen=True, slots=True)
class Demonstrated:
    """One folder of demonstrations: on one engine."""

    source: str
    recorded: Recorded

    @property
    def engine(self) -> str:
        """What kind of engine, and its dtype where there is one."""
        identity = self.recorded.parameters["identity"]
        dtype = identity.get("dtype") or identity.get("settings", {}).get("dtype")
        return f"{identity['kind']}, {dtype}" if dtype else str(identity["kind"])

    def rows(self, *parts: str) -> list[tuple[str, Row]]:
        """The rows of these demonstrations, each with its name."""
        named = ((key.partition("/")[0], row) for key, row in self.recorded.rows.items())
        return [(name, row) for name, row in named if name in parts]


def failure_blocks(found: Sequence[Demonstrated]) -> list[Block]:
    """Every demonstration that was run; one folder after the other, then survival in one figure."""
    blocks: list[Block] = []
    for one in found:
        identity = one.recorded.parameters["engine_identity"]
        blocks.append(Facts([(one.engine, Code(f"{one.source}, engine identity {identity}"))]))
        blocks += [
            *_table(_cost_table(one), one.rows("replay_cost", "replay_cost_half")),
            *_table(_order_table(one), one.rows("order")),
            *_table(_leak_table(one), one.rows("shared_cache")),
            *_table(_survival_table(one), one.rows(*SURVIVAL)),
        ]
    lines = [line for one in found for line in _survival_lines(one)]
    if lines:
        plot = draw_lines(
            "Replays that are still the same, against the number of calls",
            "calls of the memory",
            "share of replays",
            lines,
            y_range=(-0.05, 1.05),
        )
        caption = (
            "Share of replays whose first k calls came out as in the record. (1 - e)^k: with the share e of calls that "
            "drifted, as measured there. The control drifts in a known share of its calls."
        )
        blocks.append(Figure(plot, caption))
    return blocks


def _table(table: Table, rows: Sequence[object]) -> list[Block]:
    return [table] if rows else []


def _cost_table(one: Demonstrated) -> Table:
    rows = [row for _, row in one.rows("replay_cost_half", "replay_cost")]
    base = {row["num_events"]: row["replay_s"] for row in rows if row["architecture"] == BASE}
    return Table(
        title="A case recorded, and replayed in full (R3)",
        columns=[Column("architecture"), *_numbers("events", "calls", "tokens", "audit bytes"), Column("replay"),
                 *_numbers("replay s", "replay s / DPM")],
        rows=[
            [
                row["architecture"],
                str(row["num_events"]),
                str(row["num_calls"]),
                f"{row['num_prompt_tokens'] + row['num_completion_tokens']:,}",
                f"{row['audit_bytes']:,}",
                row["replay_verdict"],
                f"{row['replay_s']:.2f}",
                f"{row['replay_s'] / base[row['num_events']]:.1f}x" if base.get(row["num_events"]) else "-",
            ]
            for row in rows
        ],
        note="Calls are those that an auditor must keep and a replay must make again, the decision's included; each is "
        "a place to drift. A replay makes every call again (R3), after one forward pass over each (R2).",
    )  # fmt: skip


def _order_table(one: Demonstrated) -> Table:
    return Table(
        title="The same events, two concurrent ones in the other order",
        columns=[Column("architecture"), *_numbers("calls", "same prompts"), Column("memory"), Column("values that "
                 "only one of the two holds"), Column("decision")],
        rows=[
            [
                row["architecture"],
                str(row["num_calls"]),
                str(row["num_same_prompts"]),
                "same" if row["is_same_memory"] else "other",
                Code(", ".join(row["values_lost"]) or "none"),
                _decision(row),
            ]
            for _, row in one.rows("order")
        ],
    )  # fmt: skip


def _decision(row: Row) -> str:
    if row["is_same_decision"]:
        return "same"
    one, other = row["outcomes"]
    return f"{one}, for other reasons" if one == other else f"{one} or {other}"


def _leak_table(one: Demonstrated) -> Table:
    return Table(
        title="A cache of summaries that two tenants share",
        columns=[Column("cache key"), *_numbers("hits of the second tenant"), Column("his memory"), Column("values in "
                 "it that are not his")],
        rows=[
            [
                row["key"],
                str(row["num_hits"]),
                "his own" if row["is_own_memory"] else "another's",
                Code(", ".join(row["foreign_values"]) or "none"),
            ]
            for _, row in one.rows("shared_cache")
        ],
        note="key_by_case leaves out the tenant; key_by_content covers everything that the summary depends on.",
    )  # fmt: skip


def _survival_table(one: Demonstrated) -> Table:
    return Table(
        title="Replays of one memory that came out the same",
        columns=[Column("architecture"), Column("engine"), *_numbers("calls", "replays", "same memory", "same calls",
                 "drift rate e", "(1 - e)^n")],
        rows=[
            [
                row["architecture"],
                "control" if name == "survival_of_the_control" else one.engine,
                str(row["num_calls"]),
                str(row["num_replays"]),
                str(row["num_same_memory"]),
                str(row["survived"][-1] if row["survived"] else row["num_replays"]),
                f"{row['drift_rate']:.4f}",
                f"{row['predicted'][-1]:.3f}" if row["predicted"] else "-",
            ]
            for name, row in one.rows(*SURVIVAL)
        ],
        note="Same calls: every prompt and every answer of the memory's calls, token for token. A memory can end the "
        "same after calls that did not.",
    )  # fmt: skip


def _survival_lines(one: Demonstrated) -> list[Line]:
    lines = []
    for name, row in one.rows(*SURVIVAL):
        if row["num_calls"] > 1:
            calls = [float(k) for k in range(1, row["num_calls"] + 1)]
            place = "control" if name == "survival_of_the_control" else one.engine.replace(" vllm server", "")
            label = f"{row['architecture'].removeprefix('summarize_')}, {place}"
            lines.append(Line(label, calls, [survived / row["num_replays"] for survived in row["survived"]]))
            if row["drift_rate"] > 0:
                lines.append(Line(f"{label}: (1 - e)^k", calls, list(row["predicted"])))
    return lines


def _numbers(*titles: str) -> list[Column]:
    return [Column(title, is_number=True) for title in titles]
