"""Sets of characters, as ranges of code points."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

Ranges = tuple[tuple[int, int], ...]
"""Ascending, apart from each other, both ends included; never a surrogate, which no text can hold."""

LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)


def ranges_of(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """The set that these ranges, in any order, make up."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(part for pair in pairs for part in _without_surrogates(*pair)):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(part for pair in merged for part in _without_surrogates(*pair))


def complement(ranges: Ranges) -> Ranges:
    """Every other character."""
    starts = [0, *(high + 1 for _, high in ranges)]
    ends = [*(low - 1 for low, _ in ranges), LAST]
    return ranges_of((start, end) for start, end in zip(starts, ends, strict=True) if start <= end)


@lru_cache(maxsize=4096)
def overlap(left: Ranges, right: Ranges) -> bool:
    """Whether the two sets have a character in common."""
    return any(low <= high2 and low2 <= high for low, high in left for low2, high2 in right)


@lru_cache(maxsize=1024)
def lead_bytes(ranges: Ranges) -> int:
    """The first bytes of these characters in UTF-8, as a number with one bit for each byte."""
    bits = 0
    for low, high in ranges:
        # First bytes grow with the code point, and leave no gap but at the end of ASCII.
        for start, end in ((low, min(high, 0x7F)), (max(low, 0x80), high)):
            if start <= end:
                bits |= (2 << _lead(end)) - (1 << _lead(start))
    return bits


def _lead(code: int) -> int:
    return chr(code).encode()[0]


def _without_surrogates(low: int, high: int) -> list[tuple[int, int]]:
    first, last = _SURROGATES
    parts = [(low, min(high, first - 1)), (max(low, last + 1), high)]
    return [(start, end) for start, end in parts if start <= end]
