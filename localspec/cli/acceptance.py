"""`localspec acceptance`: how much of a draft each accept rule keeps on a pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from localspec.cli import opening
from localspec.cli.model_options import ModelOptions
from localspec.cli.options import json_option, model_options_with, offline_option, quiet_option, yes_option
from localspec.cli.progress import progress_of
from localspec.cli.tables import show_table
from localspec.cli.terminal import tell, write_json

_OPTIONS: dict[str, dict[str, Any]] = {
    "draft_tokens": {
        "type": click.IntRange(1, 31),
        "default": 4,
        "help": "K, the tokens of a draft.",
    },
    "max_tokens": {"type": click.IntRange(min=2), "default": 128, "help": "Longest answer, in tokens."},
    "seed": {
        "default": 0,
        "help": "Seed of the answers and the drafts.",
        "type": click.IntRange(0, 2**64 - 1),
    },
    "temp": {"default": 1.0},
    "top_k": {"default": 0},
    "top_p": {"default": 1.0},
    "min_p": {"default": 0.0},
}
_FIXED = frozenset(
    ("no_draft", "verify", "grammar", "grammar_file", "json_schema", "json_schema_file", "stop")
)


@click.command(short_help="Show how much of a draft each rule keeps.")
@model_options_with(_OPTIONS, leave_out=_FIXED)
@click.option(
    "--scenario", "scenarios", multiple=True, metavar="NAME", help="Only this kind of text (repeatable)."
)
@click.option("--limit", type=click.IntRange(min=1), help="Prompts of a scenario.  [default: all]")
@json_option
@quiet_option
@yes_option
@offline_option
def acceptance(
    options: ModelOptions,
    scenarios: tuple[str, ...],
    limit: int | None,
    as_json: bool,
    quiet: bool,
    yes: bool,
    offline: bool,
) -> None:
    """Show how much of a draft each accept rule keeps on PAIR, by kind of text.

    The target answers built-in prompts alone. At every (K+1)-th place of an answer the draft model drafts K tokens
    behind the true text, and the target gives its rows for them. From these every column is computed without drawing
    lots. p is the target's probability of a token, q the draft's, both with the sampling options below.

    \b
    one token   the chance that the first drafted token stands
      rejection   sum of min(p, q); the same under block
      coupled     target and draft draw with the same noise and agree
      argmax      the draft's likeliest token, kept if the target draws it
    per round   tokens from one pass of the target: what stands, and one more
      block       --verify block: the draft is judged as a whole; never less than rejection
      rejection   --verify rejection: token by token
      coupled     --verify coupled: what --seed uses, the same text with any draft
      argmax      a draft of likeliest tokens, each compared with the target's draw

    Behind ± is the standard error of a mean over places.
    """
    options.check()
    from localspec.measure.prompts import builtin_prompts, choose

    chosen = choose(builtin_prompts(), scenarios, limit)
    with opening.engine(options, opening.Consent(yes=yes, offline=offline, quiet=quiet)) as llm:
        from localspec.measure.acceptance import Recorder
        from localspec.measure.acceptance_report import report

        length = int(options.draft_tokens)
        recorder = Recorder(llm, options.sampling(), length)
        settings = {"draft_tokens": length, "temperature": options.temp, "seed": options.seed}
        with progress_of(quiet, "reading") as progress:
            result = report(opening.pair_title(options, llm), settings, recorder.run(chosen, progress))
    if as_json:
        write_json(result)
    else:
        _show(result)


def _show(result: Mapping[str, Any]) -> None:
    entries = {**result["scenarios"], "all": result["all"]}
    tell(
        f"{result['pair']} at temperature {result['temperature']:g}; "
        f"a round drafts {result['draft_tokens']} tokens, ± is the standard error"
    )
    _show_figures("one token", "acceptance", 3, entries)
    _show_figures("per round", "tokens_per_round", 2, entries)


def _show_figures(what: str, kind: str, digits: int, entries: Mapping[str, Mapping[str, Any]]) -> None:
    rows = [
        (name, str(entry["places"]), *(_shown(figure, digits) for figure in entry[kind].values()))
        for name, entry in entries.items()
    ]
    show_table((what, "places", *entries["all"][kind]), rows)


def _shown(figure: Mapping[str, float | None], digits: int) -> str:
    mean, error = figure["mean"], figure["error"]
    if mean is None:
        return "-"
    return f"{mean:.{digits}f}" + ("" if error is None else f" ±{error:.{digits}f}")
