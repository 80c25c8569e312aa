"""Tables for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import click

from localspec.cli.terminal import LEAST_COLUMNS, columns_of, wrapped
from localspec.text.controls import printable

WIDE = 120
"""Columns where no window limits them."""
ENDLESS = 100_000
"""Columns that no table fills: what one would take is measured in them."""


def show_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "", err: bool = False
) -> None:
    """Print a table on standard output or, with `err`, on standard error; columns after the first are right-aligned.

    Where the window is too narrow for it, each row is a block, as in `table`: no name is broken.
    """
    from rich import box
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    rows = [[printable(cell) for cell in row] for row in rows]
    grid = Table(box=box.SIMPLE)
    for index, heading in enumerate(headings):
        grid.add_column(Text(heading), justify="right" if index else "left", overflow="fold")
    for row in rows:
        grid.add_row(*map(Text, row))
    stream = sys.stderr if err else sys.stdout
    columns = columns_of(stream)
    console = Console(file=stream, width=columns or WIDE, highlight=False)
    needed = Measurement.get(console, console.options.update(width=ENDLESS), grid).maximum
    if columns is not None and needed > columns:
        lines = [line for row in rows for line in _block(headings, row, columns)]
        click.echo("\n".join([*([wrapped(printable(title), columns)] if title else []), *lines]), err=err)
        return
    console.print(*([Text(printable(title))] if title else []), grid, sep="\n")


def table(rows: Sequence[Sequence[str]], columns: int | None) -> list[str]:
    """Lines of a table whose first row holds the headings; one block per row where `columns` are too few.

    The last column is a text without a heading there.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    if columns is None or max(map(len, lines)) <= columns:
        return lines
    return [
        line
        for row in rows[1:]
        for line in [*_block(rows[0][:-1], row, columns), *_indented(row[-1], columns)]
    ]


def _block(headings: Sequence[str], row: Sequence[str], columns: int) -> list[str]:
    """The row's name in a line of its own, and below it what the columns say of it; what is empty is left out."""
    name, *cells = row
    named = ", ".join(
        f"{heading.lower()} {cell}".strip()
        for heading, cell in zip(headings[1:], cells, strict=False)
        if cell
    )
    return [f"{headings[0]} {name}" if name.isdigit() else name, *_indented(named, columns)]


def _indented(text: str, columns: int) -> list[str]:
    return [f"  {line}" for line in wrapped(text, max(columns - 2, LEAST_COLUMNS)).split("\n") if line]
