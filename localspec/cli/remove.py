"""`localspec rm`: a pair off this disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from localspec.cli.options import yes_option
from localspec.cli.terminal import ask, can_ask

if TYPE_CHECKING:
    from localspec.hub.pair import Pair


@click.command(name="rm")
@click.argument("name")
@yes_option
def remove(name: str, yes: bool) -> None:
    """Remove the model pair NAME from this disk, with what was prepared from its draft.

    Files that another pair needs stay, and so do files of one's own where they lie. A pair that was made with
    `localspec add` or `import` is forgotten too.
    """
    from localspec.hub.catalogue import pair
    from localspec.hub.own import forget_pair
    from localspec.hub.progress import readable
    from localspec.hub.store import Store

    store = Store()
    chosen = pair(name, store.home)
    if not yes:
        if not can_ask():
            raise click.UsageError("Without a terminal to ask on, rm needs -y/--yes.")
        if not ask(f"Remove {name} from this disk?", default=False):
            click.echo("Nothing was removed.", err=True)
            return
    kept = _own_files(chosen)
    freed = store.remove(chosen)
    forgotten = forget_pair(name, store)
    if freed or forgotten:
        click.echo(f"Removed {name}, {readable(freed)} freed.")
    else:
        click.echo(f"Nothing of {name} was here.")
    for path in kept:
        click.echo(f"{path} stays where it is.", err=True)


def _own_files(pair: Pair) -> list[str]:
    return [str(path) for file in pair.files for path in file.local_paths if path.is_file()]
