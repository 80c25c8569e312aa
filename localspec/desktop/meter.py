"""Meter: the line about how fast an answer comes, and what drafting does for it."""

from __future__ import annotations

from localspec import Completion
from localspec.decoding.stats import Stats


def meter(stats: Stats, completion: Completion | None = None) -> str:
    """Of an answer that runs, or of a whole one with its end and what was drafted and why."""
    parts = [f"{stats.tokens} tokens"]
    if completion is not None and completion.finish_reason != "stop":
        parts.append({"cancelled": "stopped", "length": "cut off"}[completion.finish_reason])
    if stats.tokens_per_second:
        parts.append(f"{stats.tokens_per_second:.1f} tokens/s")
    if stats.speedup_estimate is not None:
        parts.append(f"about {stats.speedup_estimate:.2f}x plain")
    if stats.acceptance_rate is not None:
        parts.append(f"{stats.acceptance_rate:.0%} of {stats.drafted} drafted accepted")
    if completion is not None:
        parts.append(f"drafting {completion.drafting}")
    return " · ".join(parts)
