"""`localspec list`: the pairs that are known, and what is on this disk."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from localspec.cli.holdings import day, described, formats, is_calibrated, warn_of_pair_files
from localspec.cli.options import json_option
from localspec.cli.tables import table
from localspec.cli.terminal import columns_of, say, write_json
from localspec.text.controls import printable

if TYPE_CHECKING:
    from localspec.store.holding import Holding

HEADINGS = (
    "NAME", "SIZE", "ON DISK", "FORMAT", "PREPARED", "CALIBRATED", "LAST USED", "LICENCE", "TAGS", "WHAT IT IS",
)  # fmt: skip


@click.command(name="list", short_help="List model pairs: size, on disk, last used.")
@click.option("--installed", is_flag=True, help="Only what is whole on this disk.")
@json_option
def list_pairs(installed: bool, as_json: bool) -> None:
    """List the model pairs that can be run, models pulled from a hub by name, and how much of them is on this disk.

    PREPARED is the size of the faster copies of the draft made for this machine (shared: on the disk once for all pairs
    with that draft); CALIBRATED says whether the cost of
    passes was measured here. `localspec show NAME` tells more about one.
    """
    from localspec.engine.measured_costs import calibrated_files
    from localspec.store.holding import holding
    from localspec.store.known import known_pairs
    from localspec.store.store import Store

    store = Store()
    warn_of_pair_files(store)
    calibrated = calibrated_files(store.home)
    held = [holding(pair, store) for pair in known_pairs(store)]
    sharing = _sharing(held)
    if installed:
        held = [item for item in held if item.presence == "yes"]
    if as_json:
        write_json(
            [
                {**described(item, store, calibrated), "prepared_shared_with": _others(item, sharing)}
                for item in held
            ]
        )
        return
    if not held:
        say("No pair is on this disk: `localspec list` names those that can be pulled.")
        return
    rows = [_row(item, calibrated, shared=bool(_others(item, sharing))) for item in held]
    for line in table([HEADINGS, *rows], columns_of(sys.stdout)):
        click.echo(printable(line))


def _sharing(held: Sequence[Holding]) -> dict[str, list[str]]:
    """The draft of each prepared copy -> names of the pairs that it serves."""
    found: dict[str, list[str]] = {}
    for item in held:
        if item.prepared_bytes and item.prepared:
            found.setdefault(item.prepared.source.key, []).append(item.pair.name)
    return found


def _others(held: Holding, sharing: Mapping[str, list[str]]) -> list[str]:
    """Other pairs that its prepared copy serves."""
    names = sharing.get(held.prepared.source.key, []) if held.prepared else []
    return [name for name in names if name != held.pair.name]


def _row(held: Holding, calibrated: Collection[tuple[str, int]], *, shared: bool = False) -> tuple[str, ...]:
    from localspec.system.progress import readable

    pair, here = held.pair, held.presence == "yes"
    return (
        pair.name,
        readable(pair.bytes),
        held.presence,
        formats(held),
        readable(held.prepared_bytes) + (" shared" if shared else "") if held.prepared_bytes else "",
        ("yes" if is_calibrated(held, calibrated) else "no") if here else "",
        day(held.last_used) if here else "",
        pair.licence,
        ", ".join(pair.tags),
        pair.summary,
    )
