"""Which files a name means: a pair's, a hub model's, an exported folder's, or the files themselves."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from localspec.checks import StrPath, checked_path
from localspec.hub.hubmodels import paths_on_disk
from localspec.pairs.catalogue import pair, warnings
from localspec.pairs.folder import read_folder
from localspec.pairs.reference import parse_reference, required_reference
from localspec.store.store import Store
from localspec.system.home import home_folder


@dataclass(frozen=True)
class Found:
    """Files on disk. home: localspec's folder, None for the default. warnings: about the pair, for the user."""

    target: Path
    draft: Path | None
    home: Path | None = None
    warnings: list[str] = field(default_factory=list)


def find(
    name_or_target: StrPath, draft: StrPath | None, home: StrPath | None, *, with_draft: bool = True
) -> Found:
    """What `name_or_target` means: a GGUF file, an exported folder, `org/repo:quant`, or the name of a pair.

    with_draft: whether the draft must be on disk too. home: localspec's folder, None for the default.
    Raises `InvalidRequest`, `UnknownPair`, `NotDownloaded`, `CatalogueError` or `StoreError`.
    """
    named = name_or_target if isinstance(name_or_target, str) else None
    path = checked_path("target", name_or_target)
    if draft is None and _is(path.is_dir):
        return find_folder(path, home)
    if named is None or _is(path.is_file) or path.suffix.lower() == ".gguf":
        return find_files(path, draft, home)
    if parse_reference(named) is not None:
        return find_on_hub(named, None if draft is None else os.fspath(draft), home, with_draft=with_draft)
    return find_pair(named, home, with_draft=with_draft) if draft is None else find_files(path, draft, home)


def find_pair(name: str, home: StrPath | None, *, with_draft: bool = True) -> Found:
    """A pair that `localspec pull` fetched. Raises `UnknownPair` or `NotDownloaded`."""
    store = store_in(home)
    target, draft = store.pair_paths(pair(name, store.home), with_draft=with_draft)
    return Found(target, draft, store.home, list(warnings(name, store.home)))


def find_on_hub(target: str, draft: str | None, home: StrPath | None, *, with_draft: bool = True) -> Found:
    """Models of a hub's repositories, pulled and pinned before. Raises `NotDownloaded`."""
    store = store_in(home)
    named = [target] if draft is None or not with_draft else [target, draft]
    found = paths_on_disk([required_reference(name) for name in named], store)
    return Found(found[0], found[1] if len(found) > 1 else None, store.home)


def find_folder(folder: StrPath, home: StrPath | None) -> Found:
    """A folder that `localspec export` made. Raises `CatalogueError`."""
    _, target, draft = read_folder(checked_path("folder", folder))
    return Found(target, draft, None if home is None else home_folder(home))


def find_files(target: StrPath, draft: StrPath | None, home: StrPath | None) -> Found:
    """GGUF files by their paths, made absolute: they may be loaded again when the working folder is another one.

    Whether they exist shows when they are read. Raises `InvalidRequest`.
    """
    return Found(
        _absolute(checked_path("target", target)),
        None if draft is None else _absolute(checked_path("draft", draft)),
        None if home is None else home_folder(home),
    )


def _absolute(path: Path) -> Path:
    try:
        return path.absolute()
    except OSError:  # the working folder is gone
        return path


def _is(kind: Callable[[], bool]) -> bool:
    """What `kind` says of a path; False if the system does not tell, since reading the path then says why."""
    try:
        return kind()
    except OSError:
        return False


def store_in(home: StrPath | None) -> Store:
    """The store in the folder `home`; None: in the default one. Raises `StoreError`."""
    return Store(None if home is None else home_folder(home))
