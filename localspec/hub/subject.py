"""What to judge: the facts of the models that a person names."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from localspec.errors import InvalidRequest, UnknownPair
from localspec.hub.catalogue import ModelFile, Pair, pair
from localspec.hub.pair import HubSource
from localspec.hub.store import Store
from localspec.llama.metadata import Metadata, read_metadata

_REFERENCE = re.compile(r"[\w-][\w.-]*/[\w.-]+(:|$)")


def models_named(
    target: str, draft: str | None = None, *, offline: bool = False, store: Store | None = None
) -> tuple[Metadata, Metadata | None]:
    """The facts of a target and its draft; of a pair's name alone, both of its files.

    A name is that of a pair (its target is meant), a GGUF file's path, or `org/repo:quant`. What is not on disk is
    looked at on its hub, without the weights. Raises ModelFileError for no usable model, and other LocalspecErrors.
    """
    store = store or Store()
    named = pair_named(target) if draft is None else None
    if named is None:
        ours = model_named(target, offline, store)
        return ours, None if draft is None else model_named(draft, offline, store)
    ours, *theirs = [_of_pair(named, file, offline, store) for file in named.files]
    return ours, theirs[0] if theirs else None


def model_named(text: str, offline: bool, store: Store) -> Metadata:
    """The facts of one model, as `models_named` finds them; of a pair, those of its target."""
    named = pair_named(text)
    if named is not None:
        return _of_pair(named, named.target, offline, store)
    if not Path(text).exists() and _is_reference(text):
        return _of_hub(text, offline, store)
    return read_metadata(Path(text))


def pair_named(text: str) -> Pair | None:
    """The pair of that name, or None for a path or a hub's model. Raises UnknownPair for what can be neither."""
    if text.lower().endswith(".gguf") or "/" in text or "\\" in text:
        return None
    try:
        return pair(text)
    except UnknownPair:
        if text and "\0" not in text and Path(text).exists():
            return None
        raise


def _is_reference(text: str) -> bool:
    is_path = text.lower().endswith(".gguf") and ":" not in text
    if is_path or not _REFERENCE.match(text):
        return False
    return bool(_hub("reference", text).parse_reference(text))


def _of_hub(text: str, offline: bool, store: Store) -> Metadata:
    reference = _hub("reference", text)
    file: ModelFile = reference.resolve(reference.parse_reference(text), offline=offline, home=store.home)
    return _here(file, store) or _afar(file)


def _of_pair(named: Pair, file: ModelFile, offline: bool, store: Store) -> Metadata:
    found = _here(file, store)
    if found is None and (offline or not any(isinstance(source, HubSource) for source in file.sources)):
        store.pair_paths(named)
    return found or _afar(file)


def _here(file: ModelFile, store: Store) -> Metadata | None:
    path = store.path(file)
    return None if path is None else read_metadata(path)


def _afar(file: ModelFile) -> Metadata:
    facts: Metadata = _hub("remote", file.file).read_remote_metadata(file)
    return facts


def _hub(module: str, what: str) -> Any:
    try:
        return import_module(f"localspec.hub.{module}")
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            f"{what} is not on this disk, and this version looks at no model from afar.",
            "Download it, and give the path of the file.",
        ) from error
