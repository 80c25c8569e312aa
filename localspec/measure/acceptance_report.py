"""Acceptance figures of recorded places, ready for JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from localspec.measure.acceptance import Drafted

Figure = dict[str, float | None]
"""A mean and its standard error, as if places were independent; None where there are too few for one."""


def figures(places: Sequence[Drafted]) -> dict[str, Any]:
    """The figures of one scenario, or of all together.

    acceptance:       the chance that one drafted token stands behind the true text.
    by_position:      the same for the i-th token of a draft, behind the i - 1 drafted before it.
    tokens_per_round: what stands of a draft and the token after it.
    block_drawn:      tokens per round under block, found another way: E[tau] of each whole draft. Noisier, same mean.
    block_gain:       block less rejection, place by place. Never negative.
    """
    return {
        "places": len(places),
        "acceptance": {
            "rejection": _figure(place.drawn.overlap[0] for place in places),
            "coupled": _figure(place.drawn.agreement[0] for place in places),
            "argmax": _figure(place.best[0] for place in places),
        },
        "by_position": {
            "rejection": _by_position(places, lambda place: place.drawn.overlap),
            "coupled": _by_position(places, lambda place: place.drawn.agreement),
            "argmax": _by_position(places, lambda place: place.best),
        },
        "tokens_per_round": {
            "block": _figure(1 + sum(place.drawn.block) for place in places),
            "rejection": _figure(1 + sum(place.drawn.rejection) for place in places),
            "coupled": _figure(1 + sum(place.drawn.coupled) for place in places),
            "argmax": _figure(1 + sum(place.best_kept) for place in places),
        },
        "block_drawn": _figure(1 + place.drawn.block_drawn for place in places),
        "block_gain": _figure(sum(place.drawn.block) - sum(place.drawn.rejection) for place in places),
    }


def report(
    pair: str, settings: Mapping[str, Any], recorded: Iterable[tuple[str, Sequence[Drafted]]]
) -> dict[str, Any]:
    """The whole result: every scenario, and all of them together."""
    scenarios: dict[str, list[Drafted]] = {}
    for name, places in recorded:
        scenarios.setdefault(name, []).extend(places)
    everything = [place for places in scenarios.values() for place in places]
    return {
        "pair": pair,
        **settings,
        "scenarios": {name: figures(places) for name, places in scenarios.items()},
        "all": figures(everything),
    }


def _by_position(places: Sequence[Drafted], numbers: Callable[[Drafted], tuple[float, ...]]) -> list[Figure]:
    """Drafts that ended early, at an end of generation, have fewer positions."""
    longest = max((len(numbers(place)) for place in places), default=0)
    return [
        _figure(numbers(place)[index] for place in places if index < len(numbers(place)))
        for index in range(longest)
    ]


def _figure(values: Iterable[float]) -> Figure:
    known = [float(value) for value in values]
    return {
        "mean": round(fmean(known), 4) if known else None,
        "error": round(stdev(known) / sqrt(len(known)), 4) if len(known) > 1 else None,
    }
