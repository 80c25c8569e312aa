"""How far a long measurement is."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from localspec.cli.terminal import is_terminal, say

if TYPE_CHECKING:
    from localspec.measure.bench import Progress


@contextlib.contextmanager
def shown_progress(quiet: bool) -> Iterator[Progress]:
    """A callback that shows how far a measurement is on standard error: a bar, or a line at every new label."""
    if quiet:
        yield lambda label, share: None
    elif is_terminal(sys.stderr):
        from rich import progress as rich
        from rich.console import Console

        columns = (
            rich.TextColumn("{task.description}", markup=False),
            rich.BarColumn(bar_width=30),
            rich.TaskProgressColumn(),
            rich.TimeRemainingColumn(elapsed_when_finished=True),
        )
        with rich.Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            task = bars.add_task("warm-up", total=1.0)
            yield lambda label, share: bars.update(task, description=label, completed=share)
    else:
        yield _Lines()


class _Lines:
    """Progress as plain lines."""

    def __init__(self) -> None:
        self._shown = ""

    def __call__(self, label: str, share: float) -> None:
        if label != self._shown:
            self._shown = label
            say(f"{share:4.0%} {label}")
