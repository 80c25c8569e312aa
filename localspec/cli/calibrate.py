"""`localspec calibrate`: what a pass of each model costs on this machine."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from localspec.cli import opening
from localspec.cli.interrupts import skippable
from localspec.cli.model_options import ModelOptions
from localspec.cli.options import json_option, loading_options, offline_option, quiet_option, yes_option
from localspec.cli.tables import show_table
from localspec.cli.terminal import busy, say, tell, write_json

if TYPE_CHECKING:
    from localspec.decoding.costs import CostTable
    from localspec.engine.measured_costs import Costs
    from localspec.llm import LLM


@click.command(short_help="Show what passes cost on this machine.")
@loading_options
@click.option("--redo", is_flag=True, help="Measure again, also where the costs are known.")
@json_option
@quiet_option
@yes_option
@offline_option
def calibrate(
    options: ModelOptions, redo: bool, as_json: bool, quiet: bool, yes: bool, offline: bool
) -> None:
    """Show what passes of PAIR's models cost here, by the number of tokens in them.

    They are measured now (some seconds), as far as that was not done while the machine was quiet, and kept; --redo
    measures all of them again. Without this command they are assumed at first, learned from answers and measured in
    idle moments. Ctrl-C skips what is left.
    """
    options.check()
    with opening.engine(options, opening.Consent(yes=yes, offline=offline, quiet=quiet)) as llm:
        costs = costs_of(llm, redo=redo, quiet=quiet)
        tables = {"target": (llm.engine.target, costs.target)}
        if llm.engine.draft and costs.draft:
            tables["draft"] = (llm.engine.draft, costs.draft)
        if as_json:
            described = {
                role: {
                    "file": str(context.weights.path),
                    "build": context.weights.build,
                    **table.to_dict(),
                }
                for role, (context, table) in tables.items()
            }
            write_json(described)
        else:
            for role, (context, table) in tables.items():
                by = f"{context.threads} threads, {llm.engine.library.name}"
                _show(f"{role}: {context.weights.path.name}, {by}", table)


def costs_of(llm: LLM, *, redo: bool = False, quiet: bool = False) -> Costs:
    """What passes cost here, measured as far as that is not certain; Ctrl-C goes on with what is known by then.

    Raises `InvalidRequest` for a model that cannot be drafted for.
    """
    from localspec.errors import InvalidRequest

    reason = llm.engine.no_draft_reason
    if reason and reason != "asked for":
        raise InvalidRequest(
            f"Nothing can be drafted for this model: {reason}.",
            "It decodes token by token, whatever a pass costs.",
        )
    with skippable() as skip, contextlib.nullcontext() if quiet else busy("measuring what passes cost"):
        return llm.calibrate(redo=redo, notify=(lambda _sentence: None) if quiet else say, skip=skip)


def _show(title: str, table: CostTable) -> None:
    rows = [
        (str(width), f"{1000 * seconds:.2f}", f"{seconds / table.seconds[1]:.2f}")
        for width, seconds in table.seconds.items()
    ]
    show_table(("tokens in a pass", "ms", "of one token's"), rows, title=title)
    per_token, per_row = 1e6 * table.slope, 1e6 * table.row_slope
    tell(
        f"Each 1000 tokens of context add {per_token:.2f} ms, and {per_row:.2f} ms for each further token.\n"
    )
