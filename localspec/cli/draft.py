"""`localspec draft`: copies of drafts in the format that this machine computes fastest, and of models cut down."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from localspec.cli.completion import files, pair_names
from localspec.cli.model_options import is_path, model_of
from localspec.cli.options import in_flags, json_option, library_option, quiet_option
from localspec.cli.terminal import say, write_json
from localspec.text.controls import printable

if TYPE_CHECKING:
    from localspec.compute.library import Library
    from localspec.engine.options import EngineOptions
    from localspec.store.prepared import PreparedDrafts, Record, Trial


@click.command(short_help="Show, make or remove prepared drafts.")
@click.argument("action", type=click.Choice(["show", "make", "rm"]), default="show")
@click.argument("pair", required=False, shell_complete=pair_names)
@click.option(
    "-md",
    "--draft",
    "file",
    metavar="FILE|org/repo:quant",
    shell_complete=files,
    help="A draft model, a GGUF file or one pulled from a hub, instead of PAIR's.",
)
@click.option(
    "--layers",
    metavar="0-11",
    help="Copy these layers of PAIR's target, or of a GGUF file, into a draft of its own.",
)
@click.option("-t", "--threads", type=int, help="CPU threads that will draft.  [default: physical cores]")
@library_option
@json_option
@quiet_option
def draft(
    action: str,
    pair: str | None,
    file: str | None,
    layers: str | None,
    threads: int | None,
    library: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show, make or remove prepared drafts: copies of a draft model in a format that is faster here.

    Loading a pair makes them by itself where a draft can pay. They change how fast tokens are drafted, never the
    answer. `make` tries again, for PAIR (the default one if left out) or FILE, with the library that would compute the
    pair; `show` lists all unless one is named.

    `make --layers 0-11` copies the first twelve layers of PAIR's target, or of a GGUF file in its place, into a draft
    for it. Models that were not trained for it rarely guess well with fewer layers: `localspec acceptance -m TARGET
    -md COPY` shows how well. `rm --layers` removes that one.
    """
    from localspec.engine.options import EngineOptions

    if pair is not None and file is not None:
        raise click.UsageError("PAIR and -md/--draft both name a draft: give one of them.")
    if layers is not None and action == "show":
        raise click.UsageError("--layers goes with make and rm.")
    if action == "make" and layers is not None:
        _cut_down(_model(pair, file), layers, as_json, quiet)
    elif action == "make":
        target, path = _files_of(pair, file)
        _make(target, path, EngineOptions(threads=threads, library=library), as_json, quiet)
    elif action == "rm":
        if pair is None and file is None:
            raise click.UsageError("rm needs a PAIR or -md/--draft FILE.")
        _remove(pair, file, layers, as_json)
    else:
        _show(None if pair is None and file is None else _paths(pair, file), as_json)


def _make(target: Path | None, path: Path, asked: EngineOptions, as_json: bool, quiet: bool) -> None:
    from localspec.engine.draft_copy import try_draft
    from localspec.engine.options import within_machine

    options, warnings = within_machine(asked)
    for warning in warnings:
        say(f"warning: {in_flags(warning)}")
    library = _library(target, path, options)
    trial = try_draft(path, options, None, notify=(lambda _sentence: None) if quiet else say, library=library)
    if as_json:
        write_json({"draft": str(path), **_described(trial)})
    else:
        click.echo(f"{path.name}: {sentence(trial)}")


def _cut_down(model: Path, layers: str, as_json: bool, quiet: bool) -> None:
    from localspec.engine.cut_down import cut_down
    from localspec.gguf.metadata import read_metadata
    from localspec.system.progress import readable

    copy = cut_down(model, layers, notify=(lambda _sentence: None) if quiet else say)
    size, count, of = copy.stat().st_size, read_metadata(copy).n_layer, read_metadata(model).n_layer
    if as_json:
        write_json({"target": str(model), "layers": count, "of": of, "path": str(copy), "bytes": size})
        return
    click.echo(f"{count} of {of} layers of {model.name}, {readable(size)}:")
    click.echo(f"  {copy}")
    click.echo(
        f"How well it guesses: localspec acceptance {shlex.join(['-m', str(model), '-md', str(copy)])}"
    )


def _library(target: Path | None, draft: Path, options: EngineOptions) -> Library:
    """What would compute the pair, or the draft alone where there is no target to be read."""
    from localspec.engine.choice import known_choice
    from localspec.errors import ModelFileError
    from localspec.gguf.metadata import read_metadata

    theirs = read_metadata(draft)
    with suppress(ModelFileError):
        if target is not None:
            return known_choice(read_metadata(target), theirs, options, None).library
    return known_choice(theirs, None, options, None).library


def _remove(pair: str | None, file: str | None, layers: str | None, as_json: bool) -> None:
    from localspec.engine.cut_down import forget_cut_down
    from localspec.engine.draft_copy import forget
    from localspec.system.progress import readable

    paths = _paths(pair, file)
    named = paths[-1 if layers is None else 0].name
    freed = sum(forget_cut_down(path, layers or "") for path in paths)
    if layers is None:
        freed += sum(forget(path, None) for path in paths)
    if as_json:
        write_json({"draft": str(paths[-1]), "freed": freed})
    elif freed:
        click.echo(f"Removed what was prepared from {named}, {readable(freed)} freed.")
    else:
        click.echo(f"Nothing prepared from {named} was here.")


def _show(paths: Sequence[Path] | None, as_json: bool) -> None:
    from localspec.store.prepared import CUT_DOWN, PreparedDrafts
    from localspec.store.store import Store

    home = Store().home
    drafts, cut = PreparedDrafts(home), PreparedDrafts(home, CUT_DOWN)
    records, shorter = (
        [record for record in each.records() if paths is None or any(map(record.source.is_of, paths))]
        for each in (drafts, cut)
    )
    if as_json:
        write_json(
            [entry(record, drafts) for record in records] + [_shorter(record, cut) for record in shorter]
        )
        return
    for record in records:
        click.echo(record.source.file)
        for line in trial_lines(record.trials):
            click.echo(f"  {printable(line)}")
        for name in record.copies:
            click.echo(f"  {drafts.path(record.source, name)}{_size(record, name)}")
    for record in shorter:
        click.echo(record.source.file)
        for name in record.copies:
            click.echo(f"  {name.replace('-', ' ', 1)}: {cut.path(record.source, name)}{_size(record, name)}")
    if not (records or shorter):
        click.echo(
            "No draft has been prepared." if paths is None else f"{paths[-1].name} has not been prepared."
        )


def _shorter(record: Record, cut: PreparedDrafts) -> dict[str, object]:
    """A model that was cut down, ready for JSON."""
    from localspec.engine.cut_down import layers_of

    copies = [
        {"layers": layers_of(name), "path": str(cut.path(record.source, name)), "bytes": size}
        for name, size in record.copies.items()
    ]
    return {"target": record.source.file, "bytes": record.source.bytes, "copies": copies}


def _size(record: Record, name: str) -> str:
    from localspec.system.progress import readable

    return f", {readable(record.copies[name])}"


def entry(record: Record, drafts: PreparedDrafts) -> dict[str, object]:
    """One record, ready for JSON."""
    copies = [
        {"format": name, "path": str(drafts.path(record.source, name)), "bytes": size}
        for name, size in record.copies.items()
    ]
    trials = [{"facts": dict(trial.facts), **_described(trial)} for trial in record.trials]
    return {"draft": record.source.file, "bytes": record.source.bytes, "copies": copies, "trials": trials}


def _described(trial: Trial) -> dict[str, object]:
    return {"chosen": trial.chosen, "seconds_per_token": dict(trial.seconds), "fault": trial.fault or None}


def sentence(trial: Trial) -> str:
    """What was measured and chosen, as a clause for people."""
    if trial.fault:
        return f"used as it is, no copy could be made: {trial.fault}"
    doubt = "" if trial.settled else "; the machine was busy, the next load tries again"
    times = ", ".join(f"{name} {1000 * value:.1f} ms" for name, value in trial.seconds.items())
    return f"drafts with {trial.chosen} ({times} a token){doubt}"


def trial_lines(trials: Sequence[Trial]) -> Iterator[str]:
    """A line for each trial: under what it was made, as far as that tells it from the others, and what it found."""
    told = [_conditions(trial) for trial in trials]
    for trial, conditions in zip(trials, told, strict=True):
        differing = [
            words
            for index, words in enumerate(conditions)
            if index == 0 or any(other[index] != words for other in told)
        ]
        yield f"with {', '.join(differing)}: {sentence(trial)}"


def _conditions(trial: Trial) -> tuple[str, ...]:
    """What its times depend on, the threads first."""
    facts = trial.facts
    machine, build = facts.get("machine"), facts.get("build")
    place = f"{machine[0]} ({machine[-1]} processors)" if isinstance(machine, list) and machine else "unknown"
    return (
        f"-t {facts.get('threads')}",
        f"library {build or 'unknown'}",
        f"machine {place}",
        "weights rearranged" if facts.get("repack") else "weights as in the file",
    )


def _file(text: str) -> Path:
    """The GGUF file that a path or a pulled model of a hub stands for. Raises `NotDownloaded`."""
    from localspec.hub.hubmodels import paths_on_disk
    from localspec.store.store import Store

    model = model_of(text)
    return model if isinstance(model, Path) else paths_on_disk([model], Store())[0]


def _files_of(pair: str | None, file: str | None) -> tuple[Path | None, Path]:
    """The target's file, where a pair is meant, and the draft's, which must be here.

    Raises `NotDownloaded`, `click.UsageError` for a pair without a draft.
    """
    from localspec.pairs.catalogue import DEFAULT_PAIR
    from localspec.pairs.catalogue import pair as find_pair
    from localspec.store.store import Store

    if file is not None:
        return None, _file(file)
    chosen = find_pair(DEFAULT_PAIR if pair is None else pair)
    target, path = Store().pair_paths(chosen)
    if path is None:
        raise click.UsageError(f"{chosen.name} has no draft model: it drafts from repeated text.")
    return target, path


def _model(pair: str | None, file: str | None) -> Path:
    """The file that is to lose layers: `file`, the GGUF file or model of a hub that PAIR may be, or PAIR's target.

    Raises `NotDownloaded`.
    """
    from localspec.pairs.catalogue import DEFAULT_PAIR
    from localspec.pairs.catalogue import pair as find_pair
    from localspec.store.store import Store

    if file is not None or is_path(pair or ""):
        return _file(file or pair or "")
    target, _draft = Store().pair_paths(find_pair(DEFAULT_PAIR if pair is None else pair))
    return target


def _paths(pair: str | None, file: str | None) -> list[Path]:
    """Where the file, or the pair's target and then its draft, lie, or lay in the store."""
    from localspec.pairs.catalogue import pair as find_pair
    from localspec.store.store import Store

    if file is not None or is_path(pair or ""):
        return [_file(file or pair or "")]
    store = Store()
    files = find_pair(pair or "").files
    return [store.path(one) or store.home / "files" / one.sha256 / one.file for one in files]
