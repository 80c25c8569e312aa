"""`localspec bench`: what drafting gains on this machine, by kind of text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from localspec.cli import opening
from localspec.cli.calibrate import costs_of
from localspec.cli.model_options import ModelOptions
from localspec.cli.options import (
    Bounded,
    Seconds,
    model_options_with,
    offline_option,
    quiet_option,
    yes_option,
)
from localspec.cli.progress import progress_of
from localspec.cli.tables import show_table
from localspec.cli.terminal import say
from localspec.errors import LocalspecError
from localspec.measure.bench_table import summary, tables


class DraftLengths(click.ParamType):  # type: ignore[type-arg]
    """`auto`, or whole numbers with commas between them."""

    name = "auto|N,N,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text, checked, in small letters and without blanks."""
        text = str(value).replace(" ", "").lower()
        numbers = text.split(",")
        if text != "auto" and not all(n.isascii() and n.isdigit() and 0 < int(n) <= 31 for n in numbers):
            self.fail(f"{value!r} is not auto or whole numbers from 1 to 31, such as 1,3,5,8.", param, ctx)
        return text

    def get_metavar(self, *_args: object, **_kwargs: object) -> str:
        """What the help page shows."""
        return f"[{self.name}]"


_OPTIONS: dict[str, dict[str, Any]] = {
    "draft_tokens": {
        "type": DraftLengths(),
        "help": "Fixed lengths to measure besides auto, such as 1,3,5,8.",
    },
    "max_tokens": {
        "type": click.IntRange(min=2),
        "default": 128,
        "help": "Longest answer, in tokens.",
    },
    "temp": {"default": 0.0},
}


@click.command(short_help="Measure plain decoding against localspec.")
@model_options_with(_OPTIONS)
@click.option(
    "--scenario", "scenarios", multiple=True, metavar="NAME", help="Only this kind of text (repeatable)."
)
@click.option(
    "--precision",
    type=Bounded(0.001, 1.0),
    default=0.02,
    show_default=True,
    metavar="SHARE",
    help="Repeat a kind of text until its speedups are known this well (half of the 95 % interval).",
)
@click.option(
    "--max-time",
    type=Seconds(),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds for a kind of text; begin no run that would not fit. The first is made in any case.",
)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Runs of each answer, at most.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Prompts of a scenario.  [default: all]")
@click.option(
    "--prompts",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="JSONL file with prompts of your own, instead of the built-in ones.",
)
@quiet_option
@yes_option
@offline_option
def bench(
    options: ModelOptions,
    scenarios: tuple[str, ...],
    precision: float,
    max_time: float,
    runs: int,
    limit: int | None,
    prompts: Path | None,
    quiet: bool,
    yes: bool,
    offline: bool,
) -> None:
    """Measure PAIR: plain decoding against localspec, some 16 tokens each in turn, on prompts of several kinds.

    Beside each speedup stands its 95 % interval; it is against the fastest plain decoding of the libraries there are.
    Prints a table and the progress on standard error, and the result as one line of JSON on standard output.
    Built-in scenarios: code, edit, technical, creative, math, summary, chat, rag. A line of a prompts file is
    {"scenario", "user", "system"} or {"question_id", "category", "turns"}. What else runs on
    the machine disturbs both sides alike, and makes the intervals wider. After Ctrl-C, or an error, the kinds that
    were finished are shown.
    """
    options.check()
    lengths = _lengths(str(options.draft_tokens))
    options = replace(options, draft_tokens="auto")
    from localspec.measure.prompts import builtin_prompts, choose, read_prompts

    chosen = choose(builtin_prompts() if prompts is None else read_prompts(prompts), scenarios, limit)
    with opening.engine(options, opening.Consent(yes=yes, offline=offline, quiet=quiet)) as llm:
        from localspec.measure.bench import Bench, BenchOptions, Measured
        from localspec.measure.lanes import trusted_libraries
        from localspec.measure.report import report

        costs = None if llm.engine.no_draft_reason else costs_of(llm, quiet=quiet)
        bench_options = BenchOptions(options.sampling(), runs, lengths, precision, max_time)
        tell = (lambda _sentence: None) if quiet else say
        with progress_of(quiet) as progress:
            bench = Bench(
                llm,
                bench_options,
                costs=costs,
                libraries=trusted_libraries(llm.engine, tell),
                notify=tell,
                progress=progress,
            )
            measured: dict[str, Measured] = {}
            ended: BaseException | None = None
            try:
                measured.update(bench.run(chosen))
            except (KeyboardInterrupt, LocalspecError) as error:
                if not measured:
                    raise
                ended = error
        result = report(opening.pair_title(options, llm), llm, measured)
    if not quiet:
        _show(result)
    click.echo(json.dumps(result))
    if ended is not None:
        raise ended


def _lengths(text: str) -> tuple[int, ...]:
    return () if text == "auto" else tuple(dict.fromkeys(int(number) for number in text.split(",")))


def _show(result: Mapping[str, Any]) -> None:
    for table in tables(result):
        show_table(table.headings, table.rows, title=table.title, err=True)
    for sentence in summary(result):
        say(sentence)
