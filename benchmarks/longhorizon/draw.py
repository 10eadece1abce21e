"""Draws: integers from a seed, the same on every machine.

SHA-256 in counter mode gives 64-bit words, and rejection makes them uniform. No float, no `random`, no platform.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TypeVar

_T = TypeVar("_T")
_TAG = "dpm/longhorizon/v1"
_WORD = 1 << 64


class Draw:
    """A stream of draws that is named by its key: equal keys give equal streams."""

    __slots__ = ("_words",)

    def __init__(self, *key: int | str) -> None:
        self._words = _word_stream("\0".join([_TAG, *map(str, key)]).encode())

    def below(self, n: int) -> int:
        """A uniform integer of 0 to n - 1."""
        limit = _WORD - _WORD % n
        word = next(self._words)
        while word >= limit:
            word = next(self._words)
        return word % n

    def between(self, low: int, high: int) -> int:
        """A uniform integer of low to high, both included."""
        return low + self.below(high - low + 1)

    def chance(self, percent: int) -> bool:
        """True in `percent` of 100 draws."""
        return self.below(100) < percent

    def choice(self, items: Sequence[_T]) -> _T:
        """One of the items."""
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[_T]) -> list[_T]:
        """The items in a random order (Fisher-Yates)."""
        mixed = list(items)
        for last in range(len(mixed) - 1, 0, -1):
            other = self.below(last + 1)
            mixed[last], mixed[other] = mixed[other], mixed[last]
        return mixed


def _word_stream(key: bytes) -> Iterator[int]:
    prefix = hashlib.sha256(key).digest()
    counter = 0
    while True:
        block = hashlib.sha256(prefix + counter.to_bytes(8, "big")).digest()
        for start in range(0, 32, 8):
            yield int.from_bytes(block[start : start + 8], "big")
        counter += 1
