"""Taking files that lie elsewhere on this disk into the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localspec.errors import HashMismatch, ModelFileError
from localspec.pairs.pair import ModelFile
from localspec.store.copying import append, hard_link, hashed
from localspec.store.store import Store
from localspec.system.disk import disk_errors, require_room
from localspec.system.progress import Reporter, Stage


def checked_size(path: Path) -> int:
    """Bytes of a regular file. Raises ModelFileError."""
    try:
        if path.is_file():
            return path.stat().st_size
        fault = "is a folder" if path.is_dir() else "does not exist"
    except (OSError, ValueError) as error:
        fault = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    raise ModelFileError(f"{path} {fault}.", "Give the path of a GGUF file.", path=path)


def recognised(path: Path, known: Sequence[ModelFile], report: Reporter) -> ModelFile | None:
    """Which of the `known` files this is, by its sha256, or None; not hashed if no size fits.

    Raises ModelFileError, StoreError.
    """
    size = checked_size(path)
    candidates = {file.sha256: file for file in known if file.bytes == size}
    return candidates.get(hashed(path, report)) if candidates else None


def take_over(file: ModelFile, source: Path, store: Store, report: Reporter) -> Path:
    """Gives the store the file: by hard link where the disk allows it, else by a copy that can be resumed.

    source: a path whose bytes were just hashed and are the file. Returns its path in the store.
    Raises HashMismatch, DiskFull, StoreError.
    """
    store.prepare()
    partial = store.partial(file)
    with disk_errors(store.home), store.lock(file, lambda: report(partial.size, Stage.COPY)):
        if held := store.held(file):
            return held
        link = partial.path.with_suffix(".imported")
        if hard_link(source, link):
            return store.keep(file, link)
        partial.repair()
        require_room(store.home, file.bytes - partial.size)
        append(source, partial.path, report)
        return _accepted(file, source, store, report)


def _accepted(file: ModelFile, source: Path, store: Store, report: Reporter) -> Path:
    partial = store.partial(file)
    try:
        return store.accept(file, partial.path, report)
    except HashMismatch:
        # The fault may lie in what a broken download left.
        append(source, partial.path, report)
        return store.accept(file, partial.path, report)
