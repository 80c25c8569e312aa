"""`localspec verify`: whether the bytes on this disk are still the models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from localspec.cli.completion import pair_names
from localspec.cli.options import json_option, quiet_option, yes_option
from localspec.cli.terminal import ask, can_ask, say, write_json

if TYPE_CHECKING:
    from localspec.store.store import Store
    from localspec.store.verifying import StoredFile

DAMAGED = 1


@click.command(short_help="Read the model files again and check their sha256.")
@click.argument("name", required=False, shell_complete=pair_names)
@json_option
@quiet_option
@yes_option
@click.pass_context
def verify(ctx: click.Context, name: str | None, as_json: bool, quiet: bool, yes: bool) -> None:
    """Read every model file again, or those of the pair NAME, and compare its sha256.

    Exits with code 1 if a file is damaged, or one of NAME's is missing, and says how to get it again. A damaged file of
    the store is moved to the folder `damaged` beside it only if you say so, or with -y; `localspec prune` deletes it
    there. Files of your own are never moved.
    """
    from localspec.cli.download_progress import progress_display
    from localspec.store.known import known_pair
    from localspec.store.store import Store
    from localspec.store.verifying import stored_files

    store = Store()
    chosen = None if name is None else known_pair(name, store)
    files = stored_files(store, None if chosen is None else [chosen])
    there = {file.sha256 for file in files}
    missing = [file.file for file in chosen.pieces if file.sha256 not in there] if chosen else []
    with progress_display(quiet) as show:
        faults = {file.path: file.fault(show) for file in files}
    damaged = [file for file in files if faults[file.path]]
    moved = {}
    for file in damaged:
        say(f"{file.path} is damaged: {faults[file.path]}.")
        if not file.own and _may_move(file, yes, as_json):
            moved[file.path] = _moved(file, store)
        say(_remedy(file))
    for label in missing:
        say(f"{label} of the pair {name} is not on this disk.\nRun `localspec pull {name}`.")
    if as_json:
        entries = [_entry(file, faults[file.path], moved.get(file.path)) for file in files]
        write_json({"files": entries, "damaged": len(damaged), "missing": missing})
    else:
        click.echo(_summary(len(files), len(damaged), len(missing)))
    if damaged or missing:
        ctx.exit(DAMAGED)


def _may_move(file: StoredFile, yes: bool, as_json: bool) -> bool:
    if yes:
        return True
    return not as_json and can_ask() and ask(f"Move {file.path.name} out of the way?", default=False)


def _moved(file: StoredFile, store: Store) -> str:
    from localspec.store.verifying import set_aside

    aside = set_aside(file, store)
    say(f"It was moved to {aside}.")
    return str(aside)


def _remedy(file: StoredFile) -> str:
    if file.own:
        return "Put back the file that was added, or remove the pair and add it again."
    if not file.pairs:
        return "No known pair needs it: `localspec prune` removes it."
    return "\n".join(f"Run `localspec pull {name}`." for name in file.pairs)


def _entry(file: StoredFile, fault: str, moved: str | None) -> dict[str, object]:
    return {
        "path": str(file.path),
        "sha256": file.sha256,
        "pairs": list(file.pairs),
        "ok": not fault,
        "fault": fault or None,
        "moved_to": moved,
    }


def _summary(files: int, damaged: int, missing: int) -> str:
    if not files and not missing:
        return "No model file is on this disk."
    missed = f", {missing} missing" if missing else ""
    return f"{files} file{'' if files == 1 else 's'} checked, {damaged} damaged{missed}."
