"""Hashing again what lies in the store, and what pairs use outside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import StoreError
from localspec.pairs.pair import ModelFile, Pair
from localspec.store.copying import hashed
from localspec.store.known import known_pairs
from localspec.store.store import Store
from localspec.system.disk import disk_errors
from localspec.system.progress import ProgressCallback, Reporter, readable

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class StoredFile:
    """A file to be checked. size: in bytes, as its pair says, or None. pairs: names of those that need it.

    own: it lies outside the store, and localspec never removes it.
    """

    path: Path
    sha256: str
    size: int | None
    pairs: tuple[str, ...]
    own: bool

    def fault(self, report: ProgressCallback | None) -> str:
        """What is wrong with the file, as a clause, or "". Raises StoreError if it cannot be read."""
        with disk_errors(self.path.parent):
            size = self.path.stat().st_size
        if self.size is not None and size != self.size:
            return f"it has {readable(size)} instead of {readable(self.size)} ({size}, not {self.size} bytes)"
        sha256 = hashed(self.path, Reporter(self.path.name, size, report))
        return "" if sha256 == self.sha256 else f"its sha256 is {sha256[:12]}… instead of {self.sha256[:12]}…"


def stored_files(store: Store, pairs: Sequence[Pair] | None = None) -> list[StoredFile]:
    """The files of these pairs that are on the disk; by default those of all pairs, and all others in the store."""
    known = known_pairs(store)
    users: dict[str, list[str]] = {}
    for pair in known:
        for piece in pair.pieces:
            users.setdefault(piece.sha256, []).append(pair.name)
    wanted = [piece for pair in (known if pairs is None else pairs) for piece in pair.pieces]
    found = {item.path: item for piece in wanted for item in _of(piece, store, users)}
    if pairs is None:
        for path in held_paths(store):
            found.setdefault(path, StoredFile(path, path.parent.name, None, (), own=False))
    return list(found.values())


def held_paths(store: Store) -> list[Path]:
    """Every file that lies in the store under its own sha256; not the parts of split models."""
    folder = store.home / "files"
    folders = sorted(folder.iterdir()) if folder.is_dir() else []
    return [
        path
        for sub in folders
        if _SHA256.fullmatch(sub.name) and sub.is_dir()
        for path in sorted(sub.iterdir())
        if path.is_file()
    ]


def set_aside(file: StoredFile, store: Store) -> Path:
    """Moves a damaged file of the store out of the way; returns its new path. Raises StoreError."""
    if file.own:
        raise StoreError(f"{file.path} is not the store's.", "Remove it yourself.", path=str(file.path))
    label = ModelFile(file.path.name, file.size or 0, file.sha256, ())
    aside = store.home / "damaged" / f"{file.sha256[:12]}-{file.path.name}"
    with disk_errors(store.home), store.lock(label):
        aside.parent.mkdir(exist_ok=True)
        return file.path.replace(aside)


def _of(file: ModelFile, store: Store, users: dict[str, list[str]]) -> Iterator[StoredFile]:
    place = store.place_of(file)
    for path in (place, *file.local_paths):
        if path.is_file():
            names = tuple(dict.fromkeys(users.get(file.sha256, ())))
            yield StoredFile(path, file.sha256, file.bytes, names, own=path != place)
