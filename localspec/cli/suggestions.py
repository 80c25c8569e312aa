"""What `localspec suggest` found, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from localspec.cli.tables import show_table
from localspec.cli.terminal import printable


def show_drafts(result: Mapping[str, Any]) -> None:
    """Drafts for a target, best first, and what to run."""
    from localspec.measure.suggest import ASSUMED
    from localspec.system.progress import readable

    if result["no_draft"]:
        click.echo(f"{result['no_draft']}\nRun: {result['run']}")
        return
    drafts = result["drafts"]
    if drafts:
        rows = [
            (
                one["draft"],
                readable(one["bytes"]),
                one["origin"],
                _gain(one["expected_speedup"]),
                one["verdict"],
            )
            for one in drafts
        ]
        title = f"Drafts for {result['target']} ({readable(result['bytes'])}), best first"
        show_table(("draft", "size", "where", "expected here", "verdict"), rows, title=title)
        click.echo(
            f"Expected: the speedup if {ASSUMED:.0%} of drafted tokens stand. What is not measured stands by size; "
            "`localspec calibrate` measures."
        )
        for one in drafts:
            if one["verdict"] != "fits":
                click.echo(one["sentence"])
    else:
        click.echo(
            f"No draft for {result['target']} was found; text that repeats itself is drafted without one."
        )
    click.echo(f"Run: {result['run']}")
    _show_left_out(result, "draft")


def _gain(speedup: float | None) -> str:
    if speedup is None:
        return "not measured"
    return f"{speedup:.2f}x" if speedup > 1 else "does not pay"


def show_pairs(result: Mapping[str, Any]) -> None:
    """Pairs that fit this machine, and what to run."""
    from localspec.system.progress import readable

    found = result["pairs"]
    memory = f"{readable(result['free_bytes'])} of {readable(result['memory_bytes'])} are free"
    if found:
        rows = [
            (
                one["pair"],
                ("" if one["memory_is_exact"] else "about ") + readable(one["memory_bytes"]),
                one["room"],
                "yes" if one["on_disk"] else f"no ({readable(one['bytes'])})",
            )
            for one in found
        ]
        title = f"Pairs for {result['context']} tokens of context, largest target first; {memory}"
        show_table(("pair", "memory", "room", "on disk"), rows, title=title)
        click.echo(
            "A larger target answers better and slower. `localspec bench PAIR` measures how fast it is here."
        )
        click.echo(f"Run: {found[0]['run']}")
    else:
        click.echo(f"No pair fits: {memory}. A smaller -c/--ctx-size needs less.")
    _show_left_out(result, "pair")


def _show_left_out(result: Mapping[str, Any], key: str) -> None:
    if "left_out" in result:
        for one in result["left_out"]:
            click.echo(printable(f"Left out: {one[key]}: {one['reason']}."))
    elif result["left_out_count"]:
        click.echo(f"{result['left_out_count']} left out; --all says why.")
