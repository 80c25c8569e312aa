"""`localspec add`: a pair of the user's own models."""

from __future__ import annotations

import click

from localspec.cli.completion import files
from localspec.cli.options import json_option, offline_option, quiet_option
from localspec.cli.terminal import write_json


@click.command(short_help="Make a pair of models of your own.")
@click.argument("name")
@click.option(
    "-m",
    "--target",
    required=True,
    metavar="FILE",
    shell_complete=files,
    help="Target model: a GGUF file or org/repo:quant of a hub.",
)
@click.option(
    "-md",
    "--draft",
    metavar="FILE",
    shell_complete=files,
    help="Draft model; without one, repeated text is drafted from.",
)
@click.option("--summary", default="", help="What it is, in a line.  [default: the models' names]")
@click.option("--licence", default="", help="The models' licence.  [default: as the target says]")
@click.option("--tag", "tags", multiple=True, metavar="TEXT", help="A word to find it by (repeatable).")
@json_option
@quiet_option
@offline_option
def add(
    name: str,
    target: str,
    draft: str | None,
    summary: str,
    licence: str,
    tags: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    offline: bool,
) -> None:
    """Make a pair NAME of models of your own; `localspec chat NAME` then runs it.

    It is written to a TOML file in localspec's folder, in the form of the built-in pairs. Files stay where they lie;
    models of a hub are fetched by `localspec pull NAME`. A draft that does not fit is refused with the reason.
    """
    from localspec.cli.download_progress import progress_display
    from localspec.hub.adding import part
    from localspec.pairs.check import check_pair
    from localspec.store.known import known_files
    from localspec.store.own import check_name, keep_pair, own_pair
    from localspec.store.store import Store

    store = Store()
    check_name(name, store)
    parts = [part(text, store, offline=offline) for text in (target, draft) if text is not None]
    check_pair(parts[0].metadata, parts[1].metadata if len(parts) == 2 else None)
    known = known_files(store)
    with progress_display(quiet) as show:
        files = [item.hashed(known, show) for item in parts]
    models = [item.metadata for item in parts]
    pair = own_pair(name, files, models, summary=summary, licence=licence, tags=tags)
    path = keep_pair(pair, store)
    here = all(store.path(file) for file in pair.files)
    if as_json:
        write_json({"pair": name, "pair_file": str(path), "on_disk": here})
    else:
        click.echo(f"{name} was added: {path}")
        click.echo(f"localspec {'chat' if here else 'pull'} {name}")
