"""`localspec import`: GGUF files that lie elsewhere on this disk, into the store."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from localspec.checks import user_path
from localspec.cli.completion import files as complete_files
from localspec.cli.options import json_option, quiet_option
from localspec.cli.terminal import say, write_json
from localspec.errors import InvalidRequest

if TYPE_CHECKING:
    from localspec.store.store import Store
    from localspec.system.progress import ProgressCallback

UNKNOWN = 1


@click.command(name="import", short_help="Take in GGUF files from elsewhere.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=complete_files)
@click.option("--name", help="Make a pair of this name of the files: the target, and perhaps its draft.")
@click.option("--summary", default="", help="What the pair is, in a line, with --name.")
@click.option("--licence", default="", help="The models' licence, with --name.  [default: as the file says]")
@json_option
@quiet_option
@click.pass_context
def import_files(
    ctx: click.Context,
    files: tuple[str, ...],
    name: str | None,
    summary: str,
    licence: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Take GGUF files that were downloaded elsewhere into localspec's folder.

    Files of known pairs are recognised by their sha256. For others --name makes a pair of your own, target first,
    draft second. They are hard-linked where the disk allows it, which takes no room, else copied; the originals stay.
    """
    from localspec.cli.download_progress import progress_display
    from localspec.store.store import Store

    paths = [_path(file) for file in files]
    if name is not None and len(paths) > 2:
        raise click.UsageError("--name takes one or two files: the target, and its draft.")
    if name is None and (summary or licence):
        raise click.UsageError("--summary and --licence go with --name.")
    store = Store()
    with ExitStack() as stack:
        show = stack.enter_context(progress_display(quiet))
        if name is None:
            taken, unknown = _recognised(paths, store, show)
        else:
            taken, unknown = _named(name, paths, store, show, summary, licence), []
    for path in unknown:
        say(_unknown(path))
    _report(name, taken, unknown, as_json)
    if unknown:
        ctx.exit(UNKNOWN)


def _path(file: str) -> Path:
    if not file.strip():
        raise click.UsageError("The name of a file is empty.")
    return user_path(file)


def _unknown(path: Path) -> str:
    """What to say of a file that no known pair has: it may be no model at all."""
    from localspec.errors import ModelFileError
    from localspec.gguf.metadata import read_metadata

    try:
        read_metadata(path)
    except ModelFileError as error:
        return str(error)
    return f"{path} is no file of a known pair.\nGive it a pair of its own with --name NAME."


def _recognised(
    paths: list[Path], store: Store, show: ProgressCallback | None
) -> tuple[dict[Path, Path], list[Path]]:
    """Where each known file lies now, and the files that are not known."""
    from localspec.store.importing import checked_size, recognised, take_over
    from localspec.store.known import known_files
    from localspec.system.progress import Reporter

    known, taken, unknown = known_files(store), {}, []
    for path in paths:
        checked_size(path)
    for path in paths:
        report = Reporter(path.name, checked_size(path), show)
        file = recognised(path, known, report)
        if file is None:
            unknown.append(path)
        else:
            taken[path] = take_over(file, path, store, report)
    return taken, unknown


def _named(
    name: str, paths: list[Path], store: Store, show: ProgressCallback | None, summary: str, licence: str
) -> dict[Path, Path]:
    """Where the files of the new pair lie now."""
    from localspec.gguf.metadata import read_metadata
    from localspec.pairs.check import check_pair
    from localspec.store.importing import take_over
    from localspec.store.known import known_files
    from localspec.store.own import check_name, keep_pair, own_file, own_pair
    from localspec.system.progress import Reporter

    check_name(name, store)
    metadata = [read_metadata(path) for path in paths]
    if len(paths) == 2:
        check_pair(*metadata)
        if paths[0].samefile(paths[1]):
            raise InvalidRequest(
                f"{paths[0]} is given twice.", "Give a target and another file as its draft."
            )
    known = known_files(store)
    files = [own_file(path, show, known) for path in paths]
    pair = own_pair(name, files, metadata, summary=summary, licence=licence)
    taken = {
        piece.local_paths[0]: take_over(
            piece, piece.local_paths[0], store, Reporter(piece.file, piece.bytes, show)
        )
        for piece in pair.pieces
    }
    keep_pair(pair, store)
    return taken


def _report(name: str | None, taken: dict[Path, Path], unknown: list[Path], as_json: bool) -> None:
    if as_json:
        entries = [{"file": str(path), "path": str(place)} for path, place in taken.items()]
        write_json({"pair": name, "files": entries, "unknown": [str(path) for path in unknown]})
        return
    for path, place in taken.items():
        click.echo(f"{path.name} is now {place}")
    if name is not None:
        click.echo(f"{name} is ready: localspec chat {name}")
