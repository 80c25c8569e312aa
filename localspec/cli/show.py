"""`localspec show`: everything about one pair, or about one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from localspec.cli.completion import names_or_files
from localspec.cli.holdings import day, described
from localspec.cli.model_options import is_other_file
from localspec.cli.options import context_option, json_option
from localspec.cli.show_file import show_file
from localspec.cli.terminal import say, write_json
from localspec.text.controls import printable

if TYPE_CHECKING:
    from localspec.gguf.metadata import Metadata
    from localspec.measure.prospect import Prospect
    from localspec.pairs.judgement import Judgement
    from localspec.store.holding import Holding
    from localspec.store.store import Store


@click.command(short_help="Show everything about one pair or file.")
@click.argument("name", shell_complete=names_or_files)
@context_option
@json_option
def show(name: str, ctx_size: int, as_json: bool) -> None:
    """Show everything about the pair NAME: files and where they come from, licence, context, memory, prepared drafts,
    calibration, and whether the draft fits. NAME may be a GGUF file too: then what its header says.
    """
    from localspec.engine.measured_costs import calibrated_files
    from localspec.gguf.heads import prediction_layers
    from localspec.pairs import catalogue
    from localspec.store.exporting import origins
    from localspec.store.holding import holding
    from localspec.store.known import known_pair
    from localspec.store.store import Store

    if _is_file(name):
        show_file(name, ctx_size, as_json)
        return
    store = Store()
    for sentence in catalogue.warnings(name, store.home):
        say(f"warning: {sentence}")
    held = holding(known_pair(name, store), store)
    models = _metadata(held)
    facts = described(held, store, calibrated_files(store.home))
    outlines = [found or file.outline for found, file in zip(models, held.pair.files, strict=True)]
    outlook = _outlook(outlines, ctx_size)
    facts["memory"] = {"context": ctx_size, "bytes": None if outlook is None else outlook.total}
    facts["library"] = None if outlook is None else outlook.choice.described
    facts["context"] = held.pair.context or (models[0].n_ctx_train if models[0] else None)
    judgement = _judgement(models)
    facts["prediction_layers"] = 0 if outlines[0] is None else prediction_layers(outlines[0])
    facts["judgement"] = None if judgement is None else judgement.to_dict()
    facts["sources"] = {piece.file: origins(piece) for piece in held.pair.pieces}
    facts["prepared"] = _prepared(held, store)
    if as_json:
        write_json(facts)
        return
    for line in _lines(held, facts, judgement):
        click.echo(printable(line))


def _is_file(name: str) -> bool:
    """Whether a file is meant, there or not, and no pair."""
    from localspec.checks import user_path
    from localspec.pairs.reference import parse_reference

    if parse_reference(name) is not None:
        return False
    is_path = "/" in name or "\\" in name
    is_file = is_path and user_path(name).is_file()
    return name.lower().endswith(".gguf") or is_file or is_other_file(name)


def _metadata(held: Holding) -> list[Metadata | None]:
    from localspec.errors import ModelFileError
    from localspec.gguf.metadata import read_metadata

    found: list[Metadata | None] = []
    for path in held.paths:
        try:
            found.append(None if path is None else read_metadata(path))
        except ModelFileError as error:
            say(f"warning: {error}")
            found.append(None)
    return found


def _outlook(models: Sequence[Metadata | None], ctx_size: int) -> Prospect | None:
    """What loading them takes, and what would compute; None where neither the file nor the catalogue tells."""
    from localspec.engine.options import EngineOptions
    from localspec.measure.prospect import prospect

    target, draft = (*models, None)[:2]
    if target is None or None in models:
        return None
    return prospect(target, draft, EngineOptions(n_ctx=ctx_size))


def _judgement(models: Sequence[Metadata | None]) -> Judgement | None:
    """Whether the draft fits; None while a file is not here to tell."""
    from localspec.pairs.judgement import judge

    target, draft = (*models, None)[:2]
    return None if target is None or None in models else judge(target, draft)


def _prepared(held: Holding, store: Store) -> dict[str, object] | None:
    from localspec.cli.draft import entry
    from localspec.store.prepared import PreparedDrafts

    return None if held.prepared is None else entry(held.prepared, PreparedDrafts(store.home))


def _lines(held: Holding, facts: dict[str, object], judgement: Judgement | None) -> list[str]:
    from localspec.cli.draft import trial_lines
    from localspec.store.exporting import origins
    from localspec.system.progress import readable

    pair = held.pair
    lines = [f"{pair.name}: {pair.summary}", ""]
    for role, file, form, path in zip(
        ("target", "draft"), pair.files, held.formats, held.paths, strict=False
    ):
        lines += [
            f"{role:<9} {file.file}{f', {form}' if form else ''}, {readable(file.bytes)} ({file.bytes} bytes)",
            f"          {'not on this disk' if path is None else path}",
        ]
        for piece in file.pieces:
            part = f" of {piece.file}" if file.parts else ""
            lines.append(f"          sha256{part} {piece.sha256}")
            lines += [f"          from {origin}" for origin in origins(piece)]
    if pair.draft is None:
        ahead = "its own prediction layers and " if facts["prediction_layers"] else ""
        lines.append(f"draft     none: drafts from {ahead}repeated text")
    memory = facts["memory"]
    assert isinstance(memory, dict)
    library = facts["library"]
    needed = "not known before both files are here" if memory["bytes"] is None else readable(memory["bytes"])
    lines += [
        "",
        f"licence     {pair.licence}",
        f"tags        {', '.join(pair.tags) or 'none'}",
        f"context     {facts['context'] or 'unknown'} tokens",
        f"memory      {needed}, with a context of {memory['context']} tokens",
        *([f"library     {library['name']}: {library['reason']}"] if isinstance(library, dict) else []),
        f"calibrated  {'yes' if facts['calibrated'] else 'no'}",
        f"last used   {day(held.last_used)}",
    ]
    if facts["pair_file"]:
        lines.append(f"pair file   {facts['pair_file']}")
    if judgement is not None:
        lines += ["", judgement.sentence, *judgement.running_states]
    if held.prepared is not None:
        lines += ["", f"prepared drafts, {readable(held.prepared_bytes)}:"]
        lines += [f"  {line}" for line in trial_lines(held.prepared.trials)]
    return lines
