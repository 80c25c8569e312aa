"""`localspec suggest`: drafts that fit a target, or pairs that fit this machine."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from localspec.cli.completion import names_or_files
from localspec.cli.options import context_option, json_option, offline_option
from localspec.cli.suggestions import show_drafts, show_pairs
from localspec.cli.terminal import write_json

if TYPE_CHECKING:
    from localspec.measure.fitting_pairs import Fit
    from localspec.measure.suggest import Suggestions, Target
    from localspec.pairs.pair import ModelFile
    from localspec.store.candidates import Candidate
    from localspec.store.store import Store


@click.command(short_help="Find drafts for a target, or pairs for here.")
@click.argument("target", required=False, shell_complete=names_or_files)
@context_option
@click.option("--all", "show_all", is_flag=True, help="Name also what does not fit, with the reason.")
@json_option
@offline_option
def suggest(target: str | None, ctx_size: int, show_all: bool, as_json: bool, offline: bool) -> None:
    """Find drafts that fit TARGET (a pair's name, a GGUF file or org/repo:quant), best first.

    They come from the catalogue, the store, the Hugging Face cache and the folder of TARGET, and are judged by what
    the files say. Without TARGET: the pairs that fit this machine's memory, those first that it should run as fast as
    somebody reads aloud.
    """
    result = _pairs(ctx_size, show_all) if target is None else _drafts(target, ctx_size, show_all, offline)
    if as_json:
        write_json(result)
    elif target is None:
        show_pairs(result)
    else:
        show_drafts(result)


# Drafts for a target


def _drafts(text: str, n_ctx: int, show_all: bool, offline: bool) -> dict[str, Any]:
    from localspec.engine.options import EngineOptions
    from localspec.hub.remote import read_remote_metadata
    from localspec.measure.suggest import suggest_drafts
    from localspec.store.candidates import candidates
    from localspec.store.store import Store

    store = Store()
    target = _target(text, offline, store)
    beside = target.metadata.path if target.metadata is not None and _is_file(text) else None
    look = None if offline else read_remote_metadata
    everything = candidates(store, beside)
    found = suggest_drafts(target, everything, EngineOptions(n_ctx=n_ctx), store.home, look)
    drafts = _described(text, target, found, store)
    return {
        "target": target.name,
        "bytes": target.bytes,
        "drafts": drafts,
        "run": drafts[0]["run"] if drafts else f"localspec chat -m {shlex.quote(_ours(text, target, store))}",
        **({"left_out": _left_out(found)} if show_all else {}),
        "left_out_count": len(found.left_out),
    }


def _target(text: str, offline: bool, store: Store) -> Target:
    from localspec.errors import DownloadError, NotDownloaded
    from localspec.hub.named_models import model_named, pair_named
    from localspec.measure.suggest import Target

    named = pair_named(text)
    file = None if named is None else named.target
    try:
        metadata = model_named(text, offline, store)
    except (NotDownloaded, DownloadError):
        if file is None:
            raise
        return Target(file.file, file.bytes, file, None)
    if file is None:
        file = _catalogued(metadata.path.name, metadata.size_bytes)
    return Target(metadata.path.name, metadata.size_bytes, file, metadata)


def _catalogued(name: str, size: int) -> ModelFile | None:
    """The catalogue's target of that name and size, or None; drafts are judged by metadata in either case."""
    from localspec.pairs.catalogue import pairs

    return next((p.target for p in pairs() if (p.target.file, p.target.bytes) == (name, size)), None)


def _is_file(text: str) -> bool:
    from localspec.checks import user_path

    return user_path(text).is_file()


def _described(text: str, target: Target, found: Suggestions, store: Store) -> list[dict[str, object]]:
    return [
        {
            "draft": one.draft.name,
            "bytes": one.draft.bytes,
            "origin": one.draft.origin,
            "path": None if one.draft.path is None else str(one.draft.path),
            "verdict": one.verdict,
            "sentence": one.sentence,
            "memory_bytes": None if one.prospect is None else one.prospect.total,
            "expected_speedup": one.speedup,
            "run": _command(text, target, one.draft, store),
        }
        for one in found.drafts
    ]


def _left_out(found: Suggestions) -> list[dict[str, object]]:
    return [
        {"draft": one.draft.name, "bytes": one.draft.bytes, "origin": one.draft.origin, "reason": one.reason}
        for one in found.left_out
    ]


def _command(text: str, target: Target, draft: Candidate, store: Store) -> str:
    """What runs the two together: a pair by its name, else both models."""
    for pair in draft.pairs:
        here = all(store.path(file) is not None for file in pair.files)
        if pair.target == target.file and (here or not _is_file(text)):
            return f"localspec chat {pair.name}"
    ours = _ours(text, target, store)
    theirs = str(draft.path) if draft.path is not None else _named(draft.file, store)
    return f"localspec chat -m {shlex.quote(ours)} -md {shlex.quote(theirs)}"


def _ours(text: str, target: Target, store: Store) -> str:
    """The target as -m takes it: as it was given, or what a pair's name stands for."""
    return text if _is_file(text) or "/" in text else _named(target.file, store)


def _named(file: ModelFile | None, store: Store) -> str:
    """A path for what is on disk, else how a hub's model is named."""
    from localspec.pairs.pair import HubSource

    assert file is not None
    path = store.path(file)
    if path is not None:
        return str(path)
    source = next((source for source in file.sources if isinstance(source, HubSource)), None)
    return file.file if source is None else f"{source.repo}:{source.path or file.file}"


# Pairs for a machine


def _pairs(n_ctx: int, show_all: bool) -> dict[str, Any]:
    from localspec.engine.options import EngineOptions
    from localspec.measure.fitting_pairs import fitting_pairs
    from localspec.measure.speed import READ_ALOUD, Speeds
    from localspec.pairs.catalogue import pairs
    from localspec.store.store import Store
    from localspec.system.ram import free_memory, total_memory

    total, free = total_memory(), free_memory()
    store = Store()
    speeds = Speeds(store.home)
    fits = fitting_pairs(pairs(), store, EngineOptions(n_ctx=n_ctx), total=total, free=free, speeds=speeds)
    good = [fit for fit in fits if fit.room != "does not fit"]
    bad = [fit for fit in fits if fit.room == "does not fit"]
    return {
        "context": n_ctx,
        "memory_bytes": total,
        "free_bytes": free,
        "least_tokens_per_second": READ_ALOUD,
        "pairs": [_fit(fit) for fit in good],
        **({"left_out": [_unfit(fit, total) for fit in bad]} if show_all else {}),
        "left_out_count": len(bad),
    }


def _fit(fit: Fit) -> dict[str, object]:
    name = fit.pair.name
    return {
        "pair": name,
        "summary": fit.pair.summary,
        "licence": fit.pair.licence,
        "bytes": fit.pair.bytes,
        "room": fit.room,
        "memory_bytes": fit.needed,
        "memory_is_exact": fit.exact,
        "expected_tokens_per_second": None if fit.speed is None else round(fit.speed.tokens_per_second, 1),
        "expected_from": None if fit.speed is None else fit.speed.basis,
        "too_slow": fit.is_slow,
        "on_disk": fit.on_disk,
        "run": f"localspec chat {name}" if fit.on_disk else f"localspec pull {name}",
    }


def _unfit(fit: Fit, total: int) -> dict[str, object]:
    from localspec.system.progress import readable

    about = "" if fit.exact else "about "
    reason = (
        f"it needs {about}{readable(fit.needed)} of memory, and this machine has {readable(total)}, "
        f"of which a tenth is for the system and other programs"
    )
    return {"pair": fit.pair.name, "bytes": fit.pair.bytes, "reason": reason}
