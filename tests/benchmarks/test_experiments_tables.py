"""From rows to tables: pairs, families, thresholds, costs, surfaces, lengths; and which folders may stand together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from benchmarks.experiments.cost import Price, audit_surface, compare_cost
from benchmarks.experiments.paired_statistics import holm
from benchmarks.experiments.quality import compare_quality, measure_thresholds
from benchmarks.experiments.rows import ResultRow, Results, find_schema, mean_score, merge_rows, read_results
from benchmarks.experiments.runner import COST, QUALITY, SCHEMA_VERSION
from benchmarks.experiments.scaling import cut_cases, scaling_points
from benchmarks.report.tables import citation_table, cost_table
from projection.errors import NotFoundError, RequestError
from reporting.journal import Journal
from tests.benchmarks.scored_case import scored_case

AXES = ("frp", "frp_text", "frp_present", "rcs", "eda", "crr")
HEADER = {"engine_identity": "e" * 64, "identity": {}, "template_digest": "t", "scorer_version": 1}
COUNTS = {
    "num_calls": 2,
    "num_prompt_tokens": 1_000,
    "num_completion_tokens": 100,
    "num_prompt_bytes": 4_000,
    "num_completion_bytes": 400,
    "num_memory_calls": 1,
    "num_over_budget": 0,
    "num_on_token_limit": 0,
}


def row(
    index: int,
    architecture: str,
    score: Fraction | int = 0,
    ratio: int = 20,
    size: str = "paper",
    num_events: int = 90,
    wall_s: float = 10.0,
    num_calls: int = 2,
) -> ResultRow:
    """A row that scores the same on every axis."""
    scores: dict[str, Fraction | None] = {axis: Fraction(score) for axis in AXES}
    return ResultRow(
        case_id=f"case-{index}",
        case_digest=f"{index:064d}",
        domain="claim",
        size=size,
        variant="full",
        seed=1,
        engine_identity="e" * 64,
        architecture=architecture,
        num_events=num_events,
        trajectory_chars=300 * num_events,
        ratio=Fraction(ratio),
        budget_chars=1_338,
        status="scored",
        reason=None,
        scores={**scores, "citation_precision": None},
        counts={**COUNTS, "num_calls": num_calls, "num_memory_calls": num_calls - 1},
        times={"wall_s": wall_s, "engine_s": wall_s},
        num_cached_tokens=None,
    )


def ten(
    ours: Fraction | int, theirs: Fraction | int, ratio: int, other: str = "summarize_every_event"
) -> list[ResultRow]:
    """Ten pairs at a ratio."""
    return [r for i in range(10) for r in (row(i, "dpm", ours, ratio), row(i, other, theirs, ratio))]


def results(rows: Sequence[ResultRow], source: str = "a", identity: str = "e" * 64) -> Results:
    return Results(source, {"engine_identity": identity}, tuple(rows))


def test_cases_are_paired_by_id_and_bytes_and_what_has_no_pair_is_counted() -> None:
    rows = [row(0, "dpm", 1), row(1, "dpm", 1), row(0, "retrieval"), row(2, "retrieval")]
    rows.append(replace(row(1, "retrieval", 1), case_digest="another version of case-1"))
    comparison = compare_quality(rows)[0]
    assert (comparison.found.num_pairs, comparison.num_unpaired) == (1, 3)
    assert comparison.found.delta == 1


def test_the_holm_family_is_all_ratios_and_axes_of_one_architecture_at_one_size() -> None:
    rows = [*ten(1, 0, 20), *ten(1, 1, 5), *ten(1, 0, 20, "retrieval")]
    comparisons = compare_quality(rows)
    family = [c for c in comparisons if c.architecture == "summarize_every_event"]
    assert len(family) == 8
    raw = [c.found.p_value for c in family]
    assert [c.holm_p for c in family] == holm([p for p in raw if p is not None])
    alone = next(c for c in comparisons if c.architecture == "retrieval")
    assert alone.holm_p == pytest.approx(4 * 2 / 1024)


def test_comparisons_come_tightest_first_and_axis_by_axis() -> None:
    found = compare_quality([*ten(1, 0, 2), *ten(1, 0, 20)])
    assert [(int(c.ratio), c.axis) for c in found[:5]] == [
        (20, "FRP"),
        (20, "RCS"),
        (20, "EDA"),
        (20, "CRR"),
        (2, "FRP"),
    ]


@pytest.mark.parametrize(
    ("leads", "threshold"),
    [
        ({20: 1, 5: 1, 2: 0}, 5.0),
        ({20: 1, 5: 0, 2: 1}, 20.0),
        ({20: 1, 5: 1, 2: 1}, 2.0),
        ({20: 0, 5: 1, 2: 1}, None),
    ],
)
def test_the_threshold_is_where_the_unbroken_lead_begins(leads: dict[int, int], threshold: float | None) -> None:
    rows = [r for ratio, lead in leads.items() for r in ten(lead, 0, ratio)]
    (found,) = measure_thresholds(compare_quality(rows), "here")
    assert (found.ratio, found.measured_ratios, found.num_cases) == (threshold, (2.0, 5.0, 20.0), 10)


def test_a_significant_lag_is_no_lead() -> None:
    (found,) = measure_thresholds(compare_quality(ten(0, 1, 20)), "here")
    assert found.ratio is None


def test_without_the_papers_baseline_there_is_no_threshold() -> None:
    assert measure_thresholds(compare_quality(ten(1, 0, 20, "retrieval")), "here") == []


def test_refused_answers_stay_in_every_mean_and_unjudged_ones_do_not() -> None:
    rows = [row(0, "dpm", 1), replace(row(1, "dpm", 0), status="refused")]
    assert mean_score(rows, "frp") == 0.5
    assert mean_score(rows, "citation_precision") is None


def test_costs_are_means_and_speedups_are_over_the_same_scored_cases() -> None:
    rows = [row(0, "dpm", wall_s=10), row(1, "dpm", wall_s=30)]
    rows += [row(0, "summarize_every_event", wall_s=100, num_calls=91), row(2, "summarize_every_event", wall_s=1)]
    ours, theirs = compare_cost(rows, Price(1.0, 5.0))
    assert (ours.architecture, ours.wall_s, ours.speedup) == ("dpm", 20.0, None)
    assert (theirs.speedup, theirs.num_calls) == (10.0, 46.5)
    assert ours.usd == pytest.approx((1_000 * 1.0 + 100 * 5.0) / 1e6)


def test_answers_that_were_not_scored_make_nothing_look_faster_or_cheaper() -> None:
    refused = replace(row(0, "dpm", wall_s=0.0), status="refused")
    failed = replace(row(1, "dpm", wall_s=900.0), status="failed")
    ours, theirs = compare_cost([refused, failed, row(2, "dpm", wall_s=30.0), row(0, "retrieval", wall_s=5.0)], Price())
    assert (ours.num_answers, ours.num_not_scored, ours.wall_s, ours.num_prompt_tokens) == (3, 2, 30.0, 1_000)
    assert ours.usd == pytest.approx(0.0015)
    assert theirs.speedup is None


def test_an_architecture_that_was_never_scored_has_no_cost() -> None:
    (line,) = compare_cost([replace(row(0, "dpm", wall_s=0.0), status="refused")], Price())
    assert (line.num_answers, line.num_not_scored) == (1, 1)
    assert {line.wall_s, line.engine_s, line.num_calls, line.num_bytes, line.usd, line.num_cached_tokens} == {None}
    assert cost_table([line], "paper").rows[0][3:13] == ["-"] * 10


def test_a_mean_that_leaves_answers_out_says_how_many_it_is_of() -> None:
    judged = {"citation_precision": Fraction(1, 2), "hallucinated_rate": Fraction(1, 4)}
    unjudged = {"citation_precision": None, "hallucinated_rate": None}
    always = dict.fromkeys(("citation_recall", "omission_rate", "budget_use"), Fraction(1))
    rows = [replace(row(0, "dpm"), scores={**judged, **always}), replace(row(1, "dpm"), scores={**unjudged, **always})]
    (cells,) = citation_table(rows).rows
    assert cells[2:7] == ["2", "0.500 (1)", "1.000", "0.250 (1)", "1.000"]


def test_the_audit_surface_is_a_range_of_calls() -> None:
    rows = [row(i, "summarize_every_event", num_calls=n) for i, n in enumerate((83, 97, 90))]
    (line,) = audit_surface(rows)
    assert (line.memory_calls, line.decision_calls, line.total_calls) == ("82-96", 1, "83-97")


def test_lengths_are_averaged_and_refusals_counted() -> None:
    rows = [row(0, "dpm", num_events=8), replace(row(1, "dpm", num_events=8), status="refused"), row(0, "dpm")]
    first, second = scaling_points(rows)
    assert (first.num_events, first.num_answers, first.num_refused, second.num_events) == (8, 2, 1, 90)


def test_cases_are_cut_to_the_lengths_they_have() -> None:
    assert [len(case.events) for case in cut_cases([scored_case()], [3, 1, 3, 50])] == [1, 3]
    with pytest.raises(RequestError):
        cut_cases([scored_case()], [50])
    with pytest.raises(RequestError):
        cut_cases([scored_case()], [0])


def test_rows_of_two_engines_cannot_stand_in_one_table() -> None:
    with pytest.raises(RequestError, match="different engines"):
        merge_rows([results([row(0, "dpm")]), results([row(1, "dpm")], "b", "f" * 64)])


def test_one_answer_in_two_folders_is_refused_and_two_answers_are_not() -> None:
    with pytest.raises(RequestError, match="case-0"):
        merge_rows([results([row(0, "dpm")]), results([row(0, "dpm")], "b")])
    assert len(merge_rows([results([row(0, "dpm")]), results([row(1, "dpm")], "b")])) == 2


def test_a_folder_says_of_which_experiment_it_is(tmp_path: Path) -> None:
    with Journal.open(tmp_path, schema=COST, version=SCHEMA_VERSION, parameters={"engine_identity": "e"}):
        pass
    assert find_schema(tmp_path) == COST


def test_a_folder_without_results_or_with_strange_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read_results(tmp_path, QUALITY)
    with Journal.open(tmp_path, schema=QUALITY, version=SCHEMA_VERSION, parameters=HEADER) as journal:
        journal.append("a", {"case_id": "x"})
    with pytest.raises(RequestError, match="no row that this version writes"):
        read_results(tmp_path, QUALITY)
