"""`localspec rm`: a pair, or a hub's model, off this disk."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from localspec.cli.completion import pair_names
from localspec.cli.options import yes_option
from localspec.cli.terminal import ask, can_ask, say

if TYPE_CHECKING:
    from pathlib import Path

    from localspec.pairs.pair import Pair
    from localspec.store.store import Store


@click.command(name="rm", short_help="Remove a pair's files, or a pulled model's.")
@click.argument("name", shell_complete=pair_names)
@yes_option
def remove(name: str, yes: bool) -> None:
    """Remove the model pair, or org/repo:quant, NAME from this disk, with the copies made of its models.

    Files that another pair needs stay, and so do your own files where they lie. A pair that was made with
    `localspec add` or `import` is forgotten too.
    """
    from localspec.errors import StoreError
    from localspec.hub.hubmodels import remove_reference
    from localspec.pairs.catalogue import pair
    from localspec.pairs.pins import Pins
    from localspec.pairs.reference import parse_reference
    from localspec.store.store import Store
    from localspec.system.progress import readable

    store = Store()
    reference = parse_reference(name)
    chosen = None if reference else pair(name, store.home)
    if not yes:
        if not can_ask():
            raise click.UsageError("Without a terminal to ask on, rm needs -y/--yes.")
        if not ask(f"Remove {name} from this disk?", default=False):
            click.echo("Nothing was removed.", err=True)
            return
    if reference:
        with suppress(StoreError):  # a damaged pin is removed all the same
            chosen = Pins(store.home).get(str(reference))
    before = {} if chosen is None else _linked(chosen, store)
    freed, forgotten = 0, False
    if reference:
        freed = remove_reference(reference, store)
    elif chosen:
        freed, forgotten = _remove(chosen, store)
    linked = sum(size for path, size in before.items() if not path.exists())
    if not (freed or forgotten or linked):
        click.echo(f"Nothing of {name} was here.")
        return
    kept = f"; {readable(linked)} stay in use, because the same files have other names too" if linked else ""
    click.echo(f"Removed {name}, {readable(freed)} freed{kept}.")


def _linked(pair: Pair, store: Store) -> dict[Path, int]:
    """Files of the pair in the store that have other names on the disk (hard links), and their bytes."""
    from localspec.system.disk import own_bytes

    paths = [path for piece in pair.pieces if (path := store.place_of(piece)).is_file()]
    return {path: path.stat().st_size for path in paths if not own_bytes(path)}


def _remove(pair: Pair, store: Store) -> tuple[int, bool]:
    """Bytes freed, and whether it was a pair of the user's own."""
    from localspec.store.own import forget_pair

    kept = [path for piece in pair.pieces for path in piece.local_paths if path.is_file()]
    freed = store.remove(pair)
    forgotten = forget_pair(pair.name, store) is not None
    for path in kept:
        say(f"{path} stays where it is.")
    return freed, forgotten
