"""A rule of the configuration checker, and what it says when it is broken.

A rule is a value: what it looks for is a pure function of the facts, and why it exists stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from inference.effective import Effective


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing in a configuration that would, or might, break determinism.

    found: what was found. reason: why that is a violation. remedy: what to do.
    reference: the public issue, `vllm-project/vllm#NNNNN`; None where there is none.
    """

    rule: str
    found: str
    reason: str
    remedy: str
    reference: str | None


@dataclass(frozen=True, slots=True)
class Rule:
    """Finds its violations in the facts.

    find: yields, per violation, what was found.
    issue: number of vLLM's public issue.
    """

    id: str
    find: Callable[[Effective], Iterable[str]]
    reason: str
    remedy: str
    issue: int | None = None

    def violations(self, effective: Effective) -> tuple[Violation, ...]:
        reference = None if self.issue is None else f"vllm-project/vllm#{self.issue}"
        return tuple(Violation(self.id, found, self.reason, self.remedy, reference) for found in self.find(effective))


def refused_arguments(rule_id: str, names: tuple[str, ...], reason: str, issue: int | None = None) -> Rule:
    """A rule that refuses vLLM's arguments of these names, and those under them, when they are not the default."""
    return Rule(
        rule_id, lambda effective: effective.changed_under(*names), reason, "Take it out of vllm_arguments.", issue
    )
