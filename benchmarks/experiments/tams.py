"""TAMS, the paper's rule for choosing a memory architecture, with its caveats and the evidence for each branch.

    if the deployment needs deterministic replay, an audit-ready rationale or multi-tenant isolation: DPM
    else if trajectory characters / budget characters exceeds the threshold: DPM
    else: either; choose by operational preference

Source: paper, section 9. The paper quotes a threshold of "roughly 10x"; where results of one's own exist, the threshold
that they measured takes its place, and both are named. The rule is a heuristic and says nothing about an architecture
that was not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.experiments.published import TAMS_LONG_TRAJECTORY_CHARS, TAMS_RATIO
from projection.errors import RequestError

Branch = Literal["enterprise_properties", "compression_ratio", "either"]
Choice = Literal["dpm", "either"]

MAX_CHARS = 1_000_000_000_000  # far beyond any trajectory
PROPERTY_EVIDENCE = {
    "replay": "a replay of DPM repeats 2 calls, one of n summaries repeats n + 1, each with its own chance to drift "
    "(paper, sections 3.2 and 10, Table 4)",
    "audit": "every line of a DPM view cites the event it comes from; a summary's sentence is the result of many "
    "rewritings (paper, section 3.2)",
    "isolation": "DPM keeps no memory between cases, so there is nothing to leak; a summary cache must be scoped to "
    "its tenant (paper, sections 3.1 and 10)",
}
WEAK_SUMMARISER = (
    "Derived with one modern summariser (Claude Haiku 4.5). With a weaker or slower one, derive the threshold again: "
    "dpm bench quality, then dpm tams --results DIR."
)
ADVERSARIAL = (
    "Not derived on adversarial content (prompt injection, swapped numbers). There the audit surface is a matter of "
    "security, whatever the ratio."
)
TWO_ARCHITECTURES = (
    "The rule covers DPM and incremental summarisation only, from ten cases a cell, two domains and trajectories of "
    "26,000 to 28,000 characters."
)
LONG_TRAJECTORY = (
    f"The trajectory is longer than {TAMS_LONG_TRAJECTORY_CHARS:,} characters: the paper asks for the rule to be "
    "derived again there, and one projection call must still fit the model's context."
)


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a deployment needs, and how long its trajectories and memory budget are, in characters."""

    needs_replay: bool
    needs_audit: bool
    needs_isolation: bool
    trajectory_chars: int
    budget_chars: int

    @property
    def ratio(self) -> float:
        return self.trajectory_chars / self.budget_chars

    @property
    def needs(self) -> tuple[str, ...]:
        wanted = {"replay": self.needs_replay, "audit": self.needs_audit, "isolation": self.needs_isolation}
        return tuple(name for name, is_needed in wanted.items() if is_needed)


@dataclass(frozen=True, slots=True)
class MeasuredThreshold:
    """What results of one's own say of the threshold.

    ratio: the least measured ratio from which on, at every higher measured one, DPM was ahead on `axis` with a
        Holm-adjusted p-value below 0.05; None where there is none.
    """

    source: str
    axis: str
    ratio: float | None
    measured_ratios: tuple[float, ...]
    num_cases: int


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Which architecture, by which branch of the rule, on what evidence, and what the rule does not cover."""

    choice: Choice
    branch: Branch
    ratio: float
    threshold: float
    threshold_source: str
    evidence: tuple[str, ...]
    caveats: tuple[str, ...]


def recommend(deployment: Deployment, measured: Sequence[MeasuredThreshold] = ()) -> Recommendation:
    """Apply the rule.

    measured: thresholds from results of one's own; of several the largest ratio counts, which is the cautious one.

    Raises:
        RequestError: a length that is not positive, or beyond `MAX_CHARS`.
    """
    if not all(1 <= length <= MAX_CHARS for length in (deployment.trajectory_chars, deployment.budget_chars)):
        raise RequestError(
            f"trajectory and budget are lengths in characters: give positive numbers up to {MAX_CHARS:,}"
        )
    known = [found for found in measured if found.ratio is not None]
    best = max(known, key=lambda found: found.ratio or 0.0, default=None)
    threshold = float(TAMS_RATIO) if best is None or best.ratio is None else best.ratio
    branch = _branch(deployment, threshold, is_measured=best is not None)
    return Recommendation(
        choice="either" if branch == "either" else "dpm",
        branch=branch,
        ratio=deployment.ratio,
        threshold=threshold,
        threshold_source="the paper, section 9" if best is None else best.source,
        evidence=(*_branch_evidence(branch, deployment), *map(_describe, measured)),
        caveats=_caveats(deployment),
    )


def _branch(deployment: Deployment, threshold: float, *, is_measured: bool) -> Branch:
    """The paper's threshold must be exceeded; a measured one is a ratio at which the difference was seen."""
    if deployment.needs:
        return "enterprise_properties"
    if deployment.ratio > threshold or (is_measured and deployment.ratio == threshold):
        return "compression_ratio"
    return "either"


def _branch_evidence(branch: Branch, deployment: Deployment) -> list[str]:
    match branch:
        case "enterprise_properties":
            return [f"{name}: {PROPERTY_EVIDENCE[name]}" for name in deployment.needs]
        case "compression_ratio":
            return [
                "the paper saw DPM ahead at 20x (FRP +0.515, RCS +0.533) and no significant difference at 5x and 2x; "
                "it measured nothing between 5x and 20x (Table 1)"
            ]
        case _:
            return ["the paper saw no significant difference on any axis at 5x and 2x (Table 1)"]


def _describe(found: MeasuredThreshold) -> str:
    ratios = ", ".join(f"{ratio:g}x" for ratio in found.measured_ratios)
    where = f"{found.source}: {found.num_cases} cases, measured at {ratios}"
    if found.ratio is None:
        return f"{where}; DPM was not significantly ahead on {found.axis} at the highest of them"
    return f"{where}; DPM was significantly ahead on {found.axis} from {found.ratio:g}x on"


def _caveats(deployment: Deployment) -> tuple[str, ...]:
    is_long = deployment.trajectory_chars > TAMS_LONG_TRAJECTORY_CHARS
    return (TWO_ARCHITECTURES, WEAK_SUMMARISER, ADVERSARIAL, *([LONG_TRAJECTORY] if is_long else []))
