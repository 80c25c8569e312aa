"""Report: a bench's figures, ready for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean, median
from typing import Any

from localspec.llm import LLM
from localspec.measure.bench import LOCALSPEC, PLAIN, Measured
from localspec.measure.machine import machine, versions
from localspec.measure.timing import Tally


def report(pair: str, llm: LLM, scenarios: Mapping[str, Measured]) -> dict[str, Any]:
    """The whole result. The mean and the least speedup are over scenarios."""
    figures = {name: scenario_figures(measured) for name, measured in scenarios.items()}
    speedups = [entry["speedup"] for entry in figures.values()]
    return {
        "pair": pair,
        "machine": machine(llm),
        "versions": versions(),
        "scenarios": figures,
        "mean_speedup": round(fmean(speedups), 3),
        "min_speedup": min(speedups),
    }


def scenario_figures(measured: Measured) -> dict[str, Any]:
    """Medians over runs; acceptance and shares over all of them together. `fixed` is there where it was asked for."""
    plain, ours = measured.tallies[PLAIN], measured.tallies[LOCALSPEC]
    together = sum(ours, Tally())
    figures: dict[str, Any] = {
        "plain_tps": round(_median_tps(plain), 2),
        "localspec_tps": round(_median_tps(ours), 2),
        "speedup": _speedup(plain, ours),
        "oracle_speedup": round(measured.oracle_speedup, 3),
        **_acceptance(together),
        "ttft_ms": round(1000 * median(together.ttfts), 1),
        "share": shares(together),
        "runs": [
            {"plain_tps": round(before.tps, 2), "localspec_tps": round(after.tps, 2), "tokens": after.tokens}
            for before, after in zip(plain, ours, strict=True)
        ],
    }
    lengths = [mode for mode in measured.tallies if isinstance(mode, int)]
    if lengths:
        figures["fixed"] = {str(length): _fixed(plain, measured.tallies[length]) for length in lengths}
    return figures


def shares(tally: Tally) -> dict[str, float]:
    """Of the time after the first token: in llama_decode of the target and of the draft, and outside both."""
    total = tally.seconds or 1.0
    target, draft = tally.target_seconds / total, tally.draft_seconds / total
    other = 1 - target - draft if tally.seconds else 0.0
    return {"target": round(target, 4), "draft": round(draft, 4), "other": round(other, 4)}


def _fixed(plain: list[Tally], runs: list[Tally]) -> dict[str, Any]:
    return {
        "tps": round(_median_tps(runs), 2),
        "speedup": _speedup(plain, runs),
        **_acceptance(sum(runs, Tally())),
    }


def _acceptance(tally: Tally) -> dict[str, float | None]:
    return {
        "acceptance_rate": round(tally.accepted / tally.drafted, 4) if tally.drafted else None,
        "mean_acceptance_length": round(tally.committed / tally.rounds, 3) if tally.rounds else 0.0,
    }


def _median_tps(runs: Iterable[Tally]) -> float:
    return median(tally.tps for tally in runs)


def _speedup(plain: list[Tally], ours: list[Tally]) -> float:
    before = _median_tps(plain)
    return round(_median_tps(ours) / before, 3) if before else 0.0
