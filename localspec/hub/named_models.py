"""The metadata of the models that a user names, on this disk or on a hub."""

from __future__ import annotations

from pathlib import Path

from localspec.checks import user_path
from localspec.errors import OfflineError, UnknownPair
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.hub.finding import resolve
from localspec.hub.remote import read_remote_metadata
from localspec.pairs.catalogue import ModelFile, Pair, pair
from localspec.pairs.pair import HubSource
from localspec.pairs.reference import Reference, parse_reference
from localspec.store.store import Store


def models_named(
    target: str,
    draft: str | None = None,
    *,
    offline: bool = False,
    store: Store | None = None,
    outlines: bool = False,
) -> tuple[Metadata, Metadata | None]:
    """The facts of a target and its draft; of a pair's name alone, both of its files.

    A name is that of a pair (its target is meant), a GGUF file's path, or `org/repo:quant`. What is not on disk is
    read from its hub, without the weights. outlines: the catalogue's outline of a file will do in its place.
    Raises ModelFileError for no usable model, and other LocalspecErrors.
    """
    store = store or Store()
    named = pair_named(target, store.home) if draft is None else None
    if named is None:
        ours = model_named(target, offline, store)
        return ours, None if draft is None else model_named(draft, offline, store)
    ours, *theirs = [_of_pair(named, file, offline, store, outlines) for file in named.files]
    return ours, theirs[0] if theirs else None


def model_named(text: str, offline: bool, store: Store) -> Metadata:
    """The facts of one model, as `models_named` finds them; of a pair, those of its target."""
    named = pair_named(text, store.home)
    if named is not None:
        return _of_pair(named, named.target, offline, store)
    reference = parse_reference(text)
    if reference is None or Path(text).exists():
        return read_metadata(user_path(text))
    return _of_hub(reference, offline, store)


def pair_named(text: str, home: Path | None = None) -> Pair | None:
    """The pair of that name, or None for a path or a hub's model. Raises UnknownPair for what can be neither.

    home: localspec's folder, None for the default.
    """
    if text.lower().endswith(".gguf") or "/" in text or "\\" in text:
        return None
    try:
        return pair(text, home)
    except UnknownPair:
        if text and "\0" not in text and Path(text).exists():
            return None
        raise


def _of_hub(reference: Reference, offline: bool, store: Store) -> Metadata:
    file = resolve(reference, offline=offline, home=store.home)
    found = _here(file, store)
    if found is None and offline:
        raise OfflineError(
            f"{reference} is not on this disk, and offline forbids the network.",
            f'Call `localspec.pull("{reference}")`, or leave out offline.',
            command=f"Run `localspec pull {reference}`, or leave out --offline.",
            file=file.file,
            source="",
        )
    return found or read_remote_metadata(file)


def _of_pair(named: Pair, file: ModelFile, offline: bool, store: Store, outlines: bool = False) -> Metadata:
    found = _here(file, store) or (file.outline if outlines else None)
    is_on_hub = any(isinstance(source, HubSource) for source in file.pieces[0].sources)
    if found is None and (offline or not is_on_hub):
        store.pair_paths(named)  # says what is missing, and how to get it
    return found or read_remote_metadata(file)


def _here(file: ModelFile, store: Store) -> Metadata | None:
    path = store.path(file)
    return None if path is None else read_metadata(path)
