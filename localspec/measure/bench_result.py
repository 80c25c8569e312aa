"""BenchResult: what a bench found, for Python and for a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from localspec.checks import as_integer, as_number, check_listener, shown
from localspec.decoding.params import SamplingParams
from localspec.engine.engine import Engine
from localspec.errors import InvalidRequest
from localspec.llm import LLM
from localspec.measure.bench import Bench, BenchOptions
from localspec.measure.bench_table import Table, summary, tables
from localspec.measure.lanes import trusted_libraries
from localspec.measure.prompts import builtin_prompts, choose
from localspec.measure.report import report
from localspec.system.progress import Progress, ProgressCallback, Stage

_CELL = "text-align: {}; white-space: nowrap; padding: 0.1em 0.6em"


@dataclass(frozen=True, repr=False)
class BenchResult:
    """Plain decoding against localspec. A notebook shows it as tables, and so does `print`, as text.

    figures: all of it, ready for JSON. What ends in `_interval` is the 95 % interval of the figure so called.
    """

    figures: Mapping[str, Any]

    def __repr__(self) -> str:
        lines = [line for table in tables(self.figures) for line in (*_text(table), "")]
        return "\n".join([*lines, *summary(self.figures)])

    def _repr_html_(self) -> str:
        below = "<br>".join(map(escape, summary(self.figures)))
        return "".join(map(_html, tables(self.figures))) + f"<small>{below}</small>"


def bench(
    llm: LLM,
    *,
    scenarios: Sequence[str] = (),
    limit: int | None = None,
    runs: int = 10,
    lengths: Sequence[int] = (),
    precision: float = 0.02,
    max_seconds: float = 300.0,
    params: SamplingParams | None = None,
    on_progress: ProgressCallback = lambda _progress: None,
) -> BenchResult:
    """Measure plain decoding against localspec on prompts of several kinds, some tokens each in turn.

    scenarios: kinds of text; all where none is named. limit: prompts of each, at most. A kind of text is done when its
    speedups are known to `precision` (half of the 95 % interval, as a share), after `runs` runs or `max_seconds`.
    lengths: fixed draft lengths, from 1 to 31, to measure besides. params: of every answer; greedy, 128 tokens at most,
    where None. on_progress: told what is measured, and the share that is done, as a `Progress`.
    Takes the engine until its end, minutes; what is uncertain of the costs of passes is measured first. Raises
    `InvalidRequest`, `MemoryShort`, `DecodeCancelled` after `cancel`.
    """
    options = BenchOptions(
        params or SamplingParams(temperature=0.0, max_tokens=128),
        _whole("runs", runs),
        tuple(_whole("lengths", length, 31) for length in lengths),
        _above_zero("precision", precision),
        _above_zero("max_seconds", max_seconds),
    )
    prompts = choose(builtin_prompts(), scenarios, None if limit is None else _whole("limit", limit))
    progress = check_listener("on_progress", on_progress)
    engine = llm.engine
    measuring = Bench(
        llm,
        options,
        costs=None if engine.no_draft_reason else llm.calibrate(),
        libraries=trusted_libraries(engine, lambda _sentence: None),
        progress=lambda label, share: progress(Progress(Stage.MEASURE, share, label)),
    )
    return BenchResult(report(_title(engine), llm, dict(measuring.run(prompts))))


def _title(engine: Engine) -> str:
    contexts = (engine.target, engine.draft)
    return " + ".join(dict.fromkeys(Path(context.weights.path).name for context in contexts if context))


def _whole(name: str, value: object, most: int = 1_000_000) -> int:
    number = as_integer(value)
    if number is None or not 1 <= number <= most:
        raise InvalidRequest(
            f"{name} is {shown(value)}.",
            f"It must be a whole number from 1 to {most}.",
            name=name,
            value=value,
        )
    return number


def _above_zero(name: str, value: object) -> float:
    number = as_number(value)
    if number is None or not number > 0:
        raise InvalidRequest(
            f"{name} is {shown(value)}.", "It must be a number above 0.", name=name, value=value
        )
    return number


def _text(table: Table) -> Iterator[str]:
    """Its lines, columns after the first at the right."""
    lines = [tuple(table.headings), *map(tuple, table.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    yield table.title
    for first, *others in lines:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        yield "  ".join([first.ljust(widths[0]), *cells]).rstrip()


def _html(table: Table) -> str:
    rows = [_row("th", table.headings), *(_row("td", row) for row in table.rows)]
    title = f'<caption style="text-align: left">{escape(table.title)}</caption>'
    return f"<table>{title}{''.join(rows)}</table>"


def _row(tag: str, cells: Sequence[str]) -> str:
    sides = ["left", *["right"] * (len(cells) - 1)]
    made = (
        f'<{tag} style="{_CELL.format(side)}">{escape(cell)}</{tag}>'
        for cell, side in zip(cells, sides, strict=True)
    )
    return f"<tr>{''.join(made)}</tr>"
