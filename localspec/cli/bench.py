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
    scenarios: Mapping[str, Mapping[str, Any]] = result["scenarios"]
    rows = [
        (
            name,
            f"{figures['plain_tps']:.1f}",
            f"{figures['localspec_tps']:.1f}",
            _with_interval(figures, "speedup"),
            f"{figures['oracle_speedup']:.2f}x",
            _rate(figures["acceptance_rate"]),
            f"{figures['mean_acceptance_length']:.2f}",
            f"{figures['ttft_ms']:.0f} ms",
            "/".join(f"{100 * figures['share'][model]:.0f}" for model in ("target", "draft")),
            f"{len(figures['runs'])}, {figures['ended_by']}",
        )
        for name, figures in scenarios.items()
    ]
    headings = ("", "plain", "localspec", "speedup", "oracle", "accepted", "length", "first token",
                "target/draft", "runs")  # fmt: skip
    show_table(headings, rows, title=f"{result['pair']}, tokens/s", err=True)
    if len(result["plain"]) > 1:
        _show_plain(scenarios)
        for library, figures in result["plain"].items():
            say(f"against plain decoding by {library}: mean {_with_interval(figures, 'mean_speedup')}")
    say(
        f"speedup: mean {_with_interval(result, 'mean_speedup')}, least {result['min_speedup']:.2f}x, "
        f"{result['mean_oracle_share']:.0%} of the oracle's"
    )
    fixed = {name: figures["fixed"] for name, figures in scenarios.items() if "fixed" in figures}
    if fixed:
        _show_fixed(fixed)


def _show_plain(scenarios: Mapping[str, Mapping[str, Any]]) -> None:
    libraries = list(next(iter(scenarios.values()))["plain"])
    rows = [
        (name, *(_plain(figures["plain"][library]) for library in libraries))
        for name, figures in scenarios.items()
    ]
    title = "Plain decoding: tokens/s, first token, localspec against it"
    show_table(("", *libraries), rows, title=title, err=True)


def _plain(figures: Mapping[str, Any]) -> str:
    return (
        f"{_with_interval(figures, 'tps')} {figures['ttft_ms']:.0f} ms {_with_interval(figures, 'speedup')}"
    )


def _show_fixed(scenarios: Mapping[str, Mapping[str, Any]]) -> None:
    lengths = list(next(iter(scenarios.values())))
    rows = [
        (name, *(_fixed(by_length[length]) for length in lengths)) for name, by_length in scenarios.items()
    ]
    title = "Fixed draft lengths: speedup, accepted"
    show_table(("", *(f"{length} drafted" for length in lengths)), rows, title=title, err=True)


def _fixed(figures: Mapping[str, Any]) -> str:
    return f"{_with_interval(figures, 'speedup')} {_rate(figures['acceptance_rate'])}"


def _with_interval(figures: Mapping[str, Any], name: str) -> str:
    """A figure and its interval, such as 1.31x (1.28-1.34) for a speedup and 14.2 (13.9-14.5) for a speed."""
    form, unit = (".1f", "") if name == "tps" else (".2f", "x")
    interval = figures[f"{name}_interval"]
    between = "?" if interval is None else "-".join(format(bound, form) for bound in interval)
    return f"{figures[name]:{form}}{unit} ({between})"


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.2f}"
