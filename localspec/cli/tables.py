"""Tables for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from localspec.cli.terminal import is_terminal, printable

WIDE = 120
"""Columns where no window limits them."""


def show_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "", err: bool = False
) -> None:
    """Print a table on standard output or, with `err`, on standard error; columns after the first are right-aligned.

    Where the window is too narrow, what does not fit goes on in the next line: nothing is cut off.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE)
    for index, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    stream = sys.stderr if err else sys.stdout
    width = None if is_terminal(stream) else WIDE
    console = Console(file=stream, width=width, highlight=False)
    console.print(*([Text(printable(title))] if title else []), table, sep="\n")
