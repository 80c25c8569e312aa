"""The tables of a bench, cell by cell: for a terminal, a notebook or a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Figures = Mapping[str, Any]
"""Of one kind of text, as `report` gives them."""


class Table(NamedTuple):
    """What stands above the columns, the first of which names kinds of text, and in the rows."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(result: Mapping[str, Any]) -> list[Table]:
    """Of a whole result: what was gained; where there are several, each library; where there are any, fixed lengths."""
    scenarios: Mapping[str, Figures] = result["scenarios"]
    found = [_gains(result["pair"], scenarios)]
    if len(result["plain"]) > 1:
        found.append(_libraries(scenarios))
    fixed = {name: figures["fixed"] for name, figures in scenarios.items() if "fixed" in figures}
    if fixed:
        found.append(_lengths(fixed))
    return found


def summary(result: Mapping[str, Any]) -> list[str]:
    """The means, in sentences."""
    plain: Mapping[str, Figures] = result["plain"]
    against = [
        f"against plain decoding by {library}: mean {with_interval(figures, 'mean_speedup')}"
        for library, figures in plain.items()
    ]
    return [
        *(against if len(plain) > 1 else []),
        f"speedup: mean {with_interval(result, 'mean_speedup')}, least {result['min_speedup']:.2f}x, "
        f"{result['mean_oracle_share']:.0%} of the oracle's",
    ]


def with_interval(figures: Figures, name: str) -> str:
    """A figure and its interval, such as 1.31x (1.28-1.34) for a speedup and 14.2 (13.9-14.5) for a speed."""
    form, unit = (".1f", "") if name == "tps" else (".2f", "x")
    interval = figures[f"{name}_interval"]
    between = "?" if interval is None else "-".join(format(bound, form) for bound in interval)
    return f"{figures[name]:{form}}{unit} ({between})"


def _gains(pair: str, scenarios: Mapping[str, Figures]) -> Table:
    headings = ("", "plain", "localspec", "speedup", "oracle", "accepted", "length", "first token",
                "target/draft", "runs")  # fmt: skip
    rows = [
        (
            name,
            f"{figures['plain_tps']:.1f}",
            f"{figures['localspec_tps']:.1f}",
            with_interval(figures, "speedup"),
            f"{figures['oracle_speedup']:.2f}x",
            _rate(figures["acceptance_rate"]),
            f"{figures['mean_acceptance_length']:.2f}",
            f"{figures['ttft_ms']:.0f} ms",
            "/".join(f"{100 * figures['share'][model]:.0f}" for model in ("target", "draft")),
            f"{len(figures['runs'])}, {figures['ended_by']}",
        )
        for name, figures in scenarios.items()
    ]
    return Table(f"{pair}, tokens/s", headings, rows)


def _libraries(scenarios: Mapping[str, Figures]) -> Table:
    libraries = list(next(iter(scenarios.values()))["plain"])
    rows = [
        (name, *(_plain(figures["plain"][library]) for library in libraries))
        for name, figures in scenarios.items()
    ]
    return Table("Plain decoding: tokens/s, first token, localspec against it", ("", *libraries), rows)


def _plain(figures: Figures) -> str:
    speed, speedup = with_interval(figures, "tps"), with_interval(figures, "speedup")
    return f"{speed} {figures['ttft_ms']:.0f} ms {speedup}"


def _lengths(scenarios: Mapping[str, Figures]) -> Table:
    lengths = list(next(iter(scenarios.values())))
    rows = [
        (name, *(_fixed(by_length[length]) for length in lengths)) for name, by_length in scenarios.items()
    ]
    headings = ("", *(f"{length} drafted" for length in lengths))
    return Table("Fixed draft lengths: speedup, accepted", headings, rows)


def _fixed(figures: Figures) -> str:
    return f"{with_interval(figures, 'speedup')} {_rate(figures['acceptance_rate'])}"


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.2f}"
