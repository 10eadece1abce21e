"""The sizes of a case: how many events and characters, and how they are spread over days."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.longhorizon.case import Size


@dataclass(frozen=True, slots=True)
class Layout:
    """Bounds of a trajectory, both included. aim: what the writer goes for, inside the bounds.

    opens: whether a document that carries a value also has its usual opening.
    """

    min_events: int
    max_events: int
    min_chars: int
    max_chars: int
    aim_min: int
    aim_max: int
    num_days: int
    jitter_percent: tuple[int, int]
    opens: bool

    def with_chars(self, chars: int) -> Layout:
        """The layout of a long trajectory of about this many characters."""
        events = chars // _LONG_EVENT_CHARS
        return replace(
            self,
            min_events=events,
            max_events=events,
            min_chars=chars - chars // 50,
            max_chars=chars,
            aim_min=chars - chars // 100,
            aim_max=chars - chars // 100,
        )


_LONG_EVENT_CHARS = 400
LAYOUTS: Mapping[Size, Layout] = {
    "small": Layout(16, 22, 2_150, 2_650, 2_380, 2_420, 40, (70, 130), False),
    "paper": Layout(82, 96, 26_000, 28_000, 26_500, 27_500, 75, (55, 150), True),
    "long": Layout(0, 0, 0, 0, 0, 0, 90, (55, 150), True),
}
