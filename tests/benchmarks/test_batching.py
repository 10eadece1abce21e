"""Eight cases beside two: their rows are compared, and a neighbour that changes a row ends the measurement."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest

from baseline.architectures import load_architecture
from benchmarks.batching import measure
from benchmarks.longhorizon.generator import generate_cases
from inference.scripted_engine import ScriptedEngine
from projection.grammar import Grammar
from projection.view_grammar import Profile

CASES = list(generate_cases("mortgage", "small", count=9))


class DependentEngine(ScriptedEngine):
    """Answers otherwise after six calls, as an engine does whose answers depend on what else it does."""

    num_calls = 0

    def script(self, prompt_token_ids: Sequence[int], grammar: Grammar | None) -> tuple[int, ...]:
        self.num_calls += 1
        seen = [*prompt_token_ids, *[0] * (self.num_calls > 6)]
        return super().script(seen, grammar)


def test_the_rows_of_two_cases_are_the_same_among_eight() -> None:
    found = measure(load_architecture("dpm"), ScriptedEngine(), Profile(2), CASES, Fraction(5))
    assert (found["num_cases"], found["are_rows_equal"], found["statuses"]) == ([2, 8], True, ["scored"])
    assert found["num_completion_tokens"][0] < found["num_completion_tokens"][1]


def test_an_engine_whose_answers_depend_on_its_neighbours_is_not_timed() -> None:
    with pytest.raises(SystemExit, match="these timings mean nothing"):
        measure(load_architecture("dpm"), DependentEngine(), Profile(2), CASES, Fraction(5))
