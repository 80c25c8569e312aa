"""Seeds that follow from a seed."""

from __future__ import annotations

_STEP = 0x9E3779B97F4A7C15  # odd, so that attempts never share a seed within 64 bits


def attempt_seed(seed: int | None, attempt: int) -> int | None:
    """The seed of an answer's `attempt`-th regeneration, or of another choice: the same ones in every run."""
    return None if seed is None else (seed + attempt * _STEP) % 2**64
