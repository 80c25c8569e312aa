"""Report: a bench's figures, ready for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from localspec.llm import LLM
from localspec.measure.bench import LOCALSPEC, Measured, Record
from localspec.measure.interval import Estimate, mean, rate
from localspec.measure.machine import machine, versions
from localspec.measure.timing import Tally


def report(pair: str, llm: LLM, scenarios: Mapping[str, Measured]) -> dict[str, Any]:
    """The whole result. The means and the least speedup are over scenarios.

    What ends in `_interval` is the 95 % interval of the figure so called, [low, high], or None where too little was
    measured to say. `plain` has each library's plain decoding; `speedup` is against the fastest of each scenario.
    """
    figures = {name: scenario_figures(measured) for name, measured in scenarios.items()}
    against = [measured.speedup(LOCALSPEC, fastest(measured)) for measured in scenarios.values()]
    libraries = next(iter(scenarios.values())).plain
    return {
        "pair": pair,
        "machine": machine(llm),
        "versions": versions(),
        "scenarios": figures,
        **_figure("mean_speedup", mean(against)),
        "min_speedup": min(entry["speedup"] for entry in figures.values()),
        "mean_oracle_share": round(fmean(entry["oracle_share"] for entry in figures.values()), 3),
        "plain": {library: _mean_against(library, scenarios) for library in libraries},
    }


def _mean_against(library: str, scenarios: Mapping[str, Measured]) -> dict[str, Any]:
    return _figure(
        "mean_speedup", mean([measured.speedup(LOCALSPEC, library) for measured in scenarios.values()])
    )


def fastest(measured: Measured) -> str:
    """The library whose plain decoding is the fastest, of those that drafted lanes are compared with."""
    return max(measured.plain, key=lambda library: rate(measured.plain[library].segments).value)


def scenario_figures(measured: Measured) -> dict[str, Any]:
    """Speeds over all runs together, as are acceptance and shares; `fixed` is there where it was asked for.

    oracle_share: of the oracle's speedup, which is against the plain decoding of the library that drafts.
    ttft_ratio: localspec's time to the first token / that of plain decoding.
    """
    against = fastest(measured)
    plain, ours = measured.plain[against], measured.drafted[LOCALSPEC]
    together = sum(ours.tallies, Tally())
    own = measured.speedup(LOCALSPEC, measured.own_plain).value
    figures: dict[str, Any] = {
        "against": against,
        **_figure("plain_tps", rate(plain.segments), 2),
        **_figure("localspec_tps", rate(ours.segments), 2),
        **_figure("speedup", measured.speedup(LOCALSPEC, against)),
        "oracle_speedup": round(measured.oracle_speedup, 3),
        "oracle_share": round(own / measured.oracle_speedup, 3),
        **_acceptance(together),
        "ttft_ms": _ttft_ms(ours),
        "share": shares(together),
        "plain": {library: _plain(measured, library) for library in measured.plain},
        "runs": [
            {"plain_tps": round(before.tps, 2), "localspec_tps": round(after.tps, 2), "tokens": after.tokens}
            for before, after in zip(plain.tallies, ours.tallies, strict=True)
        ],
        "ended_by": measured.ended_by,
    }
    lengths = [mode for mode in measured.drafted if isinstance(mode, int)]
    if lengths:
        figures["fixed"] = {str(length): _fixed(measured, length, against) for length in lengths}
    return figures


def shares(tally: Tally) -> dict[str, float]:
    """Of the time after the first token: in passes of the target and of the draft, and outside both."""
    total = tally.seconds or 1.0
    target, draft = tally.target_seconds / total, tally.draft_seconds / total
    other = 1 - target - draft if tally.seconds else 0.0
    return {"target": round(target, 4), "draft": round(draft, 4), "other": round(other, 4)}


def _plain(measured: Measured, library: str) -> dict[str, Any]:
    found = measured.plain[library]
    return {
        **_figure("tps", rate(found.segments), 2),
        **_figure("speedup", measured.speedup(LOCALSPEC, library)),
        "ttft_ms": _ttft_ms(found),
        **_figure("ttft_ratio", measured.ttft_ratio(library)),
    }


def _fixed(measured: Measured, length: int, against: str) -> dict[str, Any]:
    found = measured.drafted[length]
    return {
        **_figure("tps", rate(found.segments), 2),
        **_figure("speedup", measured.speedup(length, against)),
        **_acceptance(sum(found.tallies, Tally())),
    }


def _figure(name: str, estimate: Estimate, digits: int = 3) -> dict[str, float | Sequence[float] | None]:
    known = math.isfinite(estimate.half_width)
    interval = [round(bound, digits) for bound in estimate.interval] if known else None
    return {name: round(estimate.value, digits), f"{name}_interval": interval}


def _acceptance(tally: Tally) -> dict[str, float | None]:
    return {
        "acceptance_rate": round(tally.accepted / tally.drafted, 4) if tally.drafted else None,
        "mean_acceptance_length": round(tally.committed / tally.rounds, 3) if tally.rounds else 0.0,
    }


def _ttft_ms(found: Record) -> float:
    return round(1000 * median(seconds for tally in found.tallies for seconds in tally.ttfts), 1)
