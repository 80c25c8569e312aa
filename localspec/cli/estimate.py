"""`localspec estimate`: what drafting should gain, from numbers or from a calibrated pair."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localspec.cli import opening
from localspec.cli.calibrate import costs_of
from localspec.cli.model_options import ModelOptions
from localspec.cli.options import json_option, loading_options, offline_option, quiet_option, yes_option
from localspec.cli.tables import show_table
from localspec.cli.terminal import tell, write_json

if TYPE_CHECKING:
    from localspec.measure.estimate import Estimator


class VerifyCost(click.ParamType):  # type: ignore[type-arg]
    """COST@WIDTH, several with commas between them; becomes a mapping of width to cost."""

    name = "COST@WIDTH,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[int, float]:
        """Fails naming the item that is not of this form."""
        costs: dict[int, float] = {}
        for item in str(value).split(","):
            cost, _, width = item.partition("@")
            try:
                costs[int(width)] = float(cost)
            except ValueError:
                self.fail(f"{item!r} is not COST@WIDTH, such as 1.6@4.", param, ctx)
        return costs


@click.command(short_help="Estimate the speedup by draft length.")
@loading_options
@click.option("--acceptance", type=float, help="Chance that a drafted token stands.  [default: .5 to .9]")
@click.option("--cost-ratio", type=float, help="Draft pass / target pass, instead of measuring PAIR.")
@click.option(
    "--verify-cost",
    type=VerifyCost(),
    help="What a pass over WIDTH tokens costs, in passes over one; beyond the largest WIDTH it is taken to grow with "
    "the tokens.  [default: always 1]",
)
@click.option("--draft-tokens", type=click.IntRange(1, 31), help="A draft length to judge besides.")
@click.option("--plot", metavar="FILE", type=click.Path(path_type=Path), help="Draw the curves, as FILE.png.")
@json_option
@quiet_option
@yes_option
@offline_option
def estimate(
    options: ModelOptions,
    acceptance: float | None,
    cost_ratio: float | None,
    verify_cost: dict[int, float] | None,
    draft_tokens: int | None,
    plot: Path | None,
    as_json: bool,
    quiet: bool,
    yes: bool,
    offline: bool,
) -> None:
    """Estimate the speedup of drafting by draft length, and the acceptance above which it pays.

    With --cost-ratio nothing is loaded. Otherwise the costs are those measured for PAIR on this machine. Drafted tokens
    are taken to stand independently of each other, which real ones do not: a bench has the last word.
    """
    from localspec.measure.estimate import ACCEPTANCES, LONGEST, check_acceptances, from_numbers
    from localspec.measure.estimate import estimate as estimated

    longest = max(LONGEST, draft_tokens or 0)
    acceptances = ACCEPTANCES if acceptance is None else (acceptance,)
    check_acceptances(acceptances)
    if plot is not None:
        from localspec.measure.plot import check_plot, plot_curves

        check_plot(plot)
    if cost_ratio is not None:
        if options.pair is not None or options.target is not None:
            raise click.UsageError(
                "--cost-ratio and a pair exclude each other: the pair's costs are measured."
            )
        estimator = from_numbers(cost_ratio, verify_cost, longest)
    else:
        if verify_cost is not None:
            raise click.UsageError("--verify-cost goes with --cost-ratio.")
        estimator = _from_pair(options, opening.Consent(yes=yes, offline=offline, quiet=quiet), longest)
    result = estimated(estimator, acceptances, draft_tokens)
    if plot is not None:
        plot_curves(result, plot)
    if as_json:
        write_json(result)
    else:
        _show(result)


def _from_pair(options: ModelOptions, consent: opening.Consent, longest: int) -> Estimator:
    from localspec.measure.estimate import from_costs

    options.check()
    with opening.engine(options, consent) as llm:
        return from_costs(costs_of(llm, quiet=consent.quiet), longest)


def _show(result: Mapping[str, Any]) -> None:
    estimates = result["estimates"]
    acceptances = [f"at {entry['acceptance']:g}" for entry in estimates]
    curves = zip(*(entry["curve"] for entry in estimates), strict=True)
    rows = [
        (
            str(points[0]["draft_tokens"]),
            f"{points[0]['cost']:.2f}",
            *(f"{p['speedup']:.2f}x" for p in points),
        )
        for points in curves
    ]
    title = (
        f"Speedup by draft length and acceptance; a draft pass costs {result['cost_ratio']:g} target passes"
    )
    show_table(("drafted tokens", "cost of a round", *acceptances), rows, title=title)
    if (known := result["known_draft_tokens"]) is not None:
        click.echo(
            f"Beyond {known} drafted tokens a pass over more than {known + 1} tokens is needed, whose cost is not "
            "known here: it is taken to grow with the tokens."
        )
    for entry in estimates:
        best = entry["best_draft_tokens"]
        what = f"draft {best}: {entry['speedup']:.2f}x" if best else "do not draft"
        tell(f"Acceptance {entry['acceptance']:g}: {what}{_asked(result, entry)}")
    tell(f"Drafting pays above an acceptance of {_number(result['break_even_acceptance'])}.")


def _asked(result: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    if "draft_tokens" not in result:
        return ""
    even = _number(result["break_even_at_draft_tokens"])
    speedup = entry["speedup_at_draft_tokens"]
    return f"; with {result['draft_tokens']}: {speedup:.2f}x, which pays above {even}"


def _number(value: float | None) -> str:
    return "1 (never)" if value is None else f"{value:.2f}"
