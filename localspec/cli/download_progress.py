"""Downloads models while showing how far it is: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from localspec.cli.terminal import is_terminal, say

if TYPE_CHECKING:
    from pathlib import Path

    from localspec.pairs.reference import Reference
    from localspec.system.progress import Progress, ProgressCallback

LINES_PER_STAGE = 10


def pull_pair(
    name: str, *, source: str = "auto", offline: bool = False, quiet: bool = False
) -> tuple[Path, Path | None]:
    """Fetch what is missing of the pair; returns its target and draft. Raises what `hub.fetching.pull` raises."""
    from localspec.hub.fetching import pull
    from localspec.pairs.catalogue import pair
    from localspec.store.store import Store

    chosen = pair(name)
    with _stoppable(name), progress_display(quiet) as show:
        return pull(chosen, store=Store(), source=source, offline=offline, progress=show)


def pull_hub_models(
    references: Sequence[Reference],
    *,
    source: str = "auto",
    offline: bool = False,
    quiet: bool = False,
    update: bool = False,
) -> tuple[Path, Path | None]:
    """Fetch and pin what is missing of a hub's model, or of two: target and draft. Returns their paths.

    Raises what `hub.hubmodels.pull_references` raises.
    """
    from localspec.hub.hubmodels import command_words, pull_references
    from localspec.store.store import Store

    words = command_words(references) + (" --update" if update else "")
    with _stoppable(words), progress_display(quiet) as show:
        return pull_references(
            references, store=Store(), source=source, offline=offline, update=update, progress=show
        )


@contextlib.contextmanager
def _stoppable(words: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say(f"Stopped. `localspec pull {words}` goes on from here.")
        raise


@contextlib.contextmanager
def progress_display(quiet: bool) -> Iterator[ProgressCallback | None]:
    """A callback that shows progress on standard error, or None."""
    if quiet:
        yield None
    elif is_terminal(sys.stderr):
        with _bars() as show:
            yield show
    else:
        yield Lines()


class Lines:
    """Progress as plain lines: one when a file begins a stage and one at every tenth of it."""

    def __init__(self) -> None:
        self._shown: dict[tuple[str, str], int] = {}

    def __call__(self, progress: Progress) -> None:
        """Print a line if there is something new to say."""
        key = (progress.file, progress.stage)
        tenth = int(LINES_PER_STAGE * progress.fraction)
        if self._shown.get(key, -1) < tenth:
            self._shown[key] = tenth
            say(progress.sentence)


@contextlib.contextmanager
def _bars() -> Iterator[ProgressCallback]:
    """One bar per file, which starts again when the file begins another stage."""
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(bar_width=20),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        rich.TimeRemainingColumn(),
    )
    tasks: dict[str, rich.TaskID] = {}
    stages: dict[str, str] = {}
    with rich.Progress(*columns, console=Console(stderr=True)) as bars:

        def show(progress: Progress) -> None:
            if progress.file not in tasks:
                tasks[progress.file] = bars.add_task(_title(progress), total=progress.total)
            elif progress.stage not in ("ready", stages[progress.file]):
                bars.reset(tasks[progress.file], total=progress.total)
            stages[progress.file] = progress.stage
            bars.update(tasks[progress.file], description=_title(progress), completed=progress.done)

        yield show


def _title(progress: Progress) -> str:
    """The file, what is being done with it, and where its bytes come from."""
    return f"{progress.file} {progress.stage} ({progress.source})"
