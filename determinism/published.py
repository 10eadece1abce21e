"""The paper's Table 3 as published, to stand beside our rows. Nothing here was measured by this project.

Source: "Stateless Decision Memory for Enterprise AI Agents", section 7, Table 3: claude-haiku-4-5-20251001 at
temperature 0 over the live Anthropic API, ten replays of each case. A hash is the SHA-256 of the whole projected
memory; an edit distance is the normalised Levenshtein distance of 200-character prefixes, over pairs of replays.
"""

from __future__ import annotations

from dataclasses import dataclass

MODEL = "claude-haiku-4-5-20251001"
SOURCE = "paper, section 7, Table 3"


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One line of Table 3."""

    case: str
    condition: str
    num_replays: int
    num_unique_texts: int
    mean_prefix_distance: float
    max_prefix_distance: float
    mean_chars: int

    @property
    def min_drifted(self) -> int:
        """The fewest comparisons with the first replay that drifted: the paper does not say how often a hash came."""
        return self.num_unique_texts - 1


TABLE_3 = (
    PublishedRow("loan_L01", "DPM", 10, 10, 0.0000, 0.0000, 5_867),
    PublishedRow("loan_L04", "DPM", 10, 10, 0.0000, 0.0000, 6_019),
    PublishedRow("claim_C01", "DPM", 10, 10, 0.0000, 0.0000, 4_257),
    PublishedRow("loan_001", "DPM", 10, 6, 0.036, 0.180, 1_414),
    PublishedRow("claim_001", "DPM", 10, 6, 0.084, 0.165, 1_657),
    PublishedRow("loan_001", "Summ-only", 10, 9, 0.013, 0.065, 1_586),
    PublishedRow("claim_001", "Summ-only", 10, 5, 0.000, 0.000, 1_585),
)
