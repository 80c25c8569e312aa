"""`localspec export`: a pair as a folder that an application can ship."""

from __future__ import annotations

import click

from localspec.checks import user_path
from localspec.cli.completion import folders, pair_names
from localspec.cli.options import json_option, quiet_option
from localspec.cli.terminal import say, write_json
from localspec.errors import InvalidRequest


@click.command()
@click.argument("pair", shell_complete=pair_names)
@click.argument("folder", metavar="DIR", shell_complete=folders)
@click.option("--prepared", is_flag=True, help="Ship the copy of the draft that is faster on this machine.")
@json_option
@quiet_option
def export(pair: str, folder: str, prepared: bool, as_json: bool, quiet: bool) -> None:
    """Copy PAIR into the folder DIR, for an application to ship.

    It holds the model files, a pair file with relative names, a licence note and a README; `LLM.from_folder(DIR)` loads
    it without a network and without anything else on the disk. A copy that was stopped goes on where it was.
    """
    from localspec.cli.download_progress import progress_display
    from localspec.pairs import catalogue
    from localspec.pairs.reference import parse_reference
    from localspec.store.exporting import export as export_pair
    from localspec.store.store import Store

    if not folder.strip():
        raise click.UsageError("DIR is empty: give the path of a folder.")
    if parse_reference(pair):
        raise InvalidRequest(
            f"{pair} has no name of its own.", f"Run `localspec add NAME -m {pair}`, and export NAME."
        )
    store = Store()
    chosen = catalogue.pair(pair, store.home)
    try:
        with progress_display(quiet) as show:
            path = export_pair(chosen, user_path(folder), store, prepared=prepared, progress=show)
    except KeyboardInterrupt:
        say("Stopped. The same command goes on from here.")
        raise
    if as_json:
        write_json({"pair": pair, "folder": str(path.parent), "pair_file": str(path)})
    else:
        click.echo(f"{pair} is in {path.parent}: LLM.from_folder loads it.")
