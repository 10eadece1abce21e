"""A comparison for people: its numbers and the paper's published figures as one document, for a page or for Markdown.

Promises that a lane says what was pinned and what was sent, that the paper's rows are marked as published and never
mixed with what was measured here, and that a run which is not complete says so first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reporting.document import (
    Badge,
    Block,
    Code,
    Column,
    Document,
    Facts,
    Figure,
    Inline,
    Notice,
    Paragraph,
    Preformatted,
    Section,
    Table,
)

MAX_REASONS = 3
TITLE = "Pinned, uncontrolled and live, side by side"
NOTE = (
    "Each row: the first answer of each case, asked for alone, is the reference; all others were asked for beside "
    "strangers' requests, where the lane takes them. A drift is another text than the reference's. Tokens: the most "
    "that an answer may have. The bound is one-sided Clopper-Pearson; it supposes that replays are independent, and "
    "says nothing about other questions, machines or loads. Characters and tokens count from 0; - is none or unknown."
)
PUBLISHED_NOTE = (
    "As published; nothing in it was measured here. The loads behind it are not known, and it gives no count of "
    "drifted replays: at least as many drifted as there are further texts."
)
COLUMNS = (
    "lane", "tokens", "replays", "drifted", "rate at most (95%)", "log-probabilities drifted", "texts of each case",
    "first other character", "first other token", "distance, 200 characters", "distance, whole", "mean characters",
    "most at once",
)  # fmt: skip
PUBLISHED_COLUMNS = (
    "case", "condition", "replays", "texts", "mean distance, 200 characters", "largest distance", "mean characters",
)  # fmt: skip


def comparison_report(value: Mapping[str, Any], has_plot: bool = False) -> Document:
    """The document of a comparison's JSON value. has_plot: draw the rates, which only a page shows."""
    incomplete = [] if value["is_complete"] else [Notice("This run is not complete: some answers are missing.")]
    plots = [_plot(value["rows"])] if has_plot and value["rows"] else []
    return Document(
        title=TITLE,
        lead=" ".join(f"{lane['lane']}: {summarise(lane['lane'], value['rows'])}." for lane in value["lanes"]),
        sections=[
            Section("Side by side", [*incomplete, _measured_table(value["rows"]), *plots, _published_table(value)]),
            Section("Lanes", list(_lane_blocks(value["lanes"]))),
            Section("How it was made", [Preformatted(value["command"]), Facts(_plan_facts(value))]),
        ],
        footer=str(value["date"]),
    )


def summarise(lane: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """A lane in a few words: how many of its replays came out otherwise, and from which length on."""
    own = [row for row in rows if row["lane"] == lane]
    if not own:
        return "nothing to compare yet"
    num_replays, num_drifted = (sum(row[name] for row in own) for name in ("num_comparisons", "num_drifted"))
    logprobs = [row["logprobs_drifted"] for row in own]
    bits = "" if None in logprobs else f", log-probabilities in {sum(logprobs)}"
    first = next((row["max_tokens"] for row in own if row["num_drifted"]), None)
    since = "" if first is None else f", from {first} tokens on"
    num_empty = sum(row["num_empty"] for row in own)
    empty = f"; {num_empty} answers were empty and show nothing" if num_empty else ""
    return f"the text drifted in {num_drifted} of {num_replays} replays{since}{bits}{empty}"


def _measured_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = [Column(title, is_number=index > 0) for index, title in enumerate(COLUMNS)]
    return Table("Measured here", columns, [_measured(row) for row in rows], NOTE)


def _measured(row: Mapping[str, Any]) -> list[Inline]:
    return [
        row["lane"],
        str(row["max_tokens"]),
        str(row["num_comparisons"]),
        str(row["num_drifted"]),
        f"{row['max_drift_rate']:.1%}",
        _or_dash(row["logprobs_drifted"]),
        " and ".join(map(str, row["unique_texts"])),
        _or_dash(row["first_differing_char"]),
        _or_dash(row["first_differing_token"]),
        f"{row['mean_prefix_distance']:.4f}",
        f"{row['mean_text_distance']:.4f}",
        f"{row['mean_chars']:.0f}",
        _or_dash(row["max_num_running"] or None),
    ]


def _published_table(value: Mapping[str, Any]) -> Table:
    published = value["published"]
    columns = [Column(title, is_number=index > 1) for index, title in enumerate(PUBLISHED_COLUMNS)]
    rows: list[list[Inline]] = [
        [
            row["case"],
            row["condition"],
            str(row["num_replays"]),
            str(row["num_unique_texts"]),
            f"{row['mean_prefix_distance']:.4f}",
            f"{row['max_prefix_distance']:.4f}",
            str(row["mean_chars"]),
        ]
        for row in published["rows"]
    ]
    return Table(f"{published['model']}: {published['source']}", columns, rows, PUBLISHED_NOTE)


def _plot(rows: Sequence[Mapping[str, Any]]) -> Figure:
    from reporting.plots import Bars, draw_bars

    lanes = list(dict.fromkeys(row["lane"] for row in rows))
    lengths = sorted({row["max_tokens"] for row in rows})
    found = {(row["lane"], row["max_tokens"]): row for row in rows}
    series = []
    for length in lengths:
        own = [found.get((lane, length)) for lane in lanes]
        rates = [None if row is None else row["num_drifted"] / row["num_comparisons"] for row in own]
        bounds = [None if row is None else row["max_drift_rate"] for row in own]
        series.append(Bars(f"{length} tokens", rates, low=rates, high=bounds))
    plot = draw_bars("Share of replays whose text drifted", "share", lanes, series, value_range=(0, 1))
    return Figure(plot, "Bars: what was seen. Lines: up to the upper 95% bound.")


def _lane_blocks(lanes: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    for lane in lanes:
        yield Paragraph(lane["lane"])
        yield Facts(list(_lane_facts(lane)))


def _lane_facts(lane: Mapping[str, Any]) -> Iterator[tuple[str, Inline]]:
    """What was pinned, and what was asked for."""
    identity = lane["identity"]
    yield "engine identity", Code(lane["engine_identity"])
    yield "kind", str(identity["kind"])
    for name, stated in identity.get("client", identity).get("pins", {}).items():
        yield f"pinned: {name}", str(stated)
    for name, setting in identity.get("settings", {}).items():
        yield f"setting: {name}", str(setting)
    yield "model that answered", ", ".join(lane["models"]) or "not stated"
    yield "fingerprints returned", ", ".join(lane["fingerprints"]) or "none"
    num_invalid = sum(found["count"] for found in lane["why_invalid"])
    yield "free answers that are memory views", f"{lane['num_valid_views']} of {lane['num_valid_views'] + num_invalid}"
    for found in lane["why_invalid"][:MAX_REASONS]:
        yield f"no view, {found['count']} times", found["reason"]
    for name, count in (lane["calls"] or {}).items():
        yield name.removeprefix("num_").replace("_", " "), f"{count:g}"


def _plan_facts(value: Mapping[str, Any]) -> list[tuple[str, Inline]]:
    facts: list[tuple[str, Inline]] = [(name, _words(setting)) for name, setting in value["plan"].items()]
    if value["cost"]:
        facts += [(name.replace("_", " "), amount) for name, amount in value["cost"].items()]
    complete = Badge("complete", "good") if value["is_complete"] else Badge("not complete", "warning")
    return [*facts, ("answers", complete)]


def _words(setting: Any) -> str:
    return ", ".join(map(str, setting)) if isinstance(setting, list) else str(setting)


def _or_dash(number: object) -> str:
    return "-" if number is None else str(number)
