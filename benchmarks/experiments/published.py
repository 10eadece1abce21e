"""The paper's published numbers, so that every table of ours can print them beside its own.

Source: "Stateless Decision Memory for Enterprise AI Agents", sections 5, 6, 6.1, 8, 9 and 10; Claude Haiku 4.5, ten
cases a cell. Nothing here was measured by this project. `EXACT_P_VALUES` are the exact sign-flip p-values of the
paper's released data; the printed ones come from 10,000 random resamples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Axis = Literal["FRP", "RCS", "EDA", "CRR"]
AXES: tuple[Axis, ...] = ("FRP", "RCS", "EDA", "CRR")
AXIS_NAMES: dict[Axis, str] = {
    "FRP": "factual precision",
    "RCS": "reasoning coherence",
    "EDA": "decision accuracy",
    "CRR": "compliance reconstruction",
}
BudgetName = Literal["tight", "moderate", "loose"]
MODEL = "claude-haiku-4-5-20251001"
NUM_CASES = 10
BUDGET_CHARS: dict[BudgetName, int] = {"tight": 1_338, "moderate": 5_352, "loose": 13_381}
RATIOS: dict[BudgetName, int] = {"tight": 20, "moderate": 5, "loose": 2}
TAMS_RATIO = 10  # "exceeds roughly 10x"
TAMS_LONG_TRAJECTORY_CHARS = 100_000  # above it the paper asks for the rule to be derived again


@dataclass(frozen=True, slots=True)
class QualityCell:
    """One line of Table 1."""

    budget: BudgetName
    axis: Axis
    dpm: float
    summ: float
    delta: float
    p_value: float
    cohen_h: float


@dataclass(frozen=True, slots=True)
class CostCell:
    """One line of Table 2: seconds and dollars per decision. The dollars of Summ-only are the paper's estimate."""

    budget: BudgetName
    dpm_wall_s: float
    dpm_usd: float
    summ_wall_s: float
    summ_usd: float
    speedup: float


@dataclass(frozen=True, slots=True)
class SurfaceRow:
    """One line of Table 4: how many model calls an auditor must look at, for 82 to 96 events."""

    architecture: str
    consolidation_calls: str
    projection_calls: int
    decision_calls: int
    total_surfaces: str


TABLE_1 = (
    QualityCell("tight", "FRP", 0.907, 0.392, 0.515, 0.001, 1.17),
    QualityCell("tight", "RCS", 0.800, 0.267, 0.533, 0.003, 1.13),
    QualityCell("tight", "EDA", 1.000, 0.500, 0.500, 0.065, 1.57),
    QualityCell("tight", "CRR", 0.900, 0.400, 0.500, 0.066, 1.13),
    QualityCell("moderate", "FRP", 0.907, 0.950, -0.043, 0.255, -0.17),
    QualityCell("moderate", "RCS", 0.800, 0.750, 0.050, 0.669, 0.12),
    QualityCell("moderate", "EDA", 1.000, 1.000, 0.000, 1.000, 0.00),
    QualityCell("moderate", "CRR", 1.000, 1.000, 0.000, 1.000, 0.00),
    QualityCell("loose", "FRP", 0.890, 0.922, -0.032, 0.625, -0.10),
    QualityCell("loose", "RCS", 0.817, 0.817, 0.000, 1.000, 0.00),
    QualityCell("loose", "EDA", 1.000, 1.000, 0.000, 1.000, 0.00),
    QualityCell("loose", "CRR", 1.000, 1.000, 0.000, 1.000, 0.00),
)
EXACT_P_VALUES: dict[Axis, float] = {"FRP": 0.001953, "RCS": 0.003906, "EDA": 0.0625, "CRR": 0.0625}  # tight budget
TABLE_2 = (
    CostCell("tight", 59.8, 0.014, 440.3, 0.165, 7.4),
    CostCell("moderate", 23.0, 0.020, 342.6, 0.129, 14.9),
    CostCell("loose", 86.6, 0.022, 57.4, 0.022, 0.7),
)
TABLE_4 = (
    SurfaceRow("DPM", "0", 1, 1, "2"),
    SurfaceRow("Summ-only", "82-96", 0, 1, "83-97"),
)


def find_quality(ratio: int, axis: Axis) -> QualityCell | None:
    """The paper's cell of that compression ratio and axis; None where the paper has none."""
    return next((cell for cell in TABLE_1 if RATIOS[cell.budget] == ratio and cell.axis == axis), None)


def find_cost(ratio: int) -> CostCell | None:
    """The paper's line of that compression ratio; None where the paper has none."""
    return next((cell for cell in TABLE_2 if RATIOS[cell.budget] == ratio), None)
