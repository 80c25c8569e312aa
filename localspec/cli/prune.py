"""`localspec prune`: left-overs off this disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from localspec.cli.holdings import warn_of_pair_files
from localspec.cli.options import json_option, yes_option
from localspec.cli.terminal import ask, can_ask, say, write_json

if TYPE_CHECKING:
    from localspec.store.pruning import LeftOver


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@json_option
@yes_option
def prune(dry_run: bool, as_json: bool, yes: bool) -> None:
    """Remove what nothing needs from localspec's folder.

    These are partial files of models that are complete or that no pair has, prepared drafts and cut-down copies whose
    model is gone, damaged files set aside, and stale locks. Whole models of no known pair are removed only if you say
    so, or with -y. What a stopped `localspec pull` can go on from stays; and where a pair file cannot be read, every
    model does.
    """
    from localspec.store.pruning import knows_all, left_overs, remove_left_over
    from localspec.store.store import Store
    from localspec.system.progress import readable

    store = Store()
    warn_of_pair_files(store)
    found = left_overs(store)
    if not knows_all(store):
        say("Models and partial files of no known pair stay: not every pair can be read.")
    removed = []
    for item in found:
        wanted = dry_run or not item.precious or _agreed(item, yes, as_json)
        if not wanted:
            say(f"{item.path} stays: it is {item.reason}, {readable(item.bytes)}.")
        elif dry_run or remove_left_over(item, store):
            removed.append(item)
        else:
            say(f"{item.path} stays: another process is at work on it.")
    if as_json:
        entries = [{"path": str(item.path), "bytes": item.bytes, "reason": item.reason} for item in removed]
        write_json({"removed": [] if dry_run else entries, "would_remove": entries if dry_run else []})
        return
    for item in removed:
        click.echo(f"{item.path}: {item.reason}, {readable(item.bytes)}")
    freed = readable(sum(item.bytes for item in removed))
    if not removed:
        click.echo("Nothing to remove.")
    else:
        click.echo(f"{freed} would be freed." if dry_run else f"{freed} freed.")


def _agreed(item: LeftOver, yes: bool, as_json: bool) -> bool:
    from localspec.system.progress import readable

    if yes:
        return True
    question = f"Remove {item.path.name}, {item.reason} ({readable(item.bytes)})?"
    return not as_json and can_ask() and ask(question, default=False)
