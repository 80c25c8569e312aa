"""What the store holds and nothing needs: found, explained, removed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localspec.pairs import catalogue
from localspec.pairs.pair import SPLIT
from localspec.pairs.pins import Pins
from localspec.store.known import known_pairs
from localspec.store.prepared import CUT_DOWN, PREPARED, PreparedDrafts, Record, Source
from localspec.store.store import Store
from localspec.store.verifying import held_paths
from localspec.system.disk import disk_errors, own_bytes
from localspec.system.locks import locked

LOCK_AGE = 3600.0
"""Seconds for which a lock nobody holds is left alone: somebody may just be about to take it."""


@dataclass(frozen=True)
class LeftOver:
    """path: a file or a folder. reason: why nothing needs it, as a clause. lock: the name of its lock, or "".

    bytes: that removing it gives back.
    precious: whole and verified, but no known pair needs it: ask first.
    """

    path: Path
    bytes: int
    reason: str
    lock: str = ""
    precious: bool = False


def left_overs(store: Store) -> list[LeftOver]:
    """What could be removed; changes nothing. Raises StoreError."""
    with disk_errors(store.home):
        return [
            *_partials(store),
            *_prepared(store),
            *_unknown(store),
            *_unfinished(store),
            *_locks(store),
        ]


def knows_all(store: Store) -> bool:
    """Whether every pair file and pin can be read: if not, a model of no known pair may belong to one of those."""
    return not catalogue.warnings(home=store.home) and not Pins(store.home).damaged()


def remove_left_over(item: LeftOver, store: Store) -> bool:
    """Removes it; False if another process is at work on it. Raises StoreError."""
    with disk_errors(store.home):
        if not item.lock:
            _remove(item.path)
            return True
        (store.home / "locks").mkdir(exist_ok=True)
        try:
            with locked(store.home / "locks" / f"{item.lock}.lock", _refuse):
                _remove(item.path)
        except _AtWork:
            return False
    return True


class _AtWork(Exception):
    """Another process has the lock."""


def _refuse() -> None:
    raise _AtWork


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    elif path.suffix == ".lock":
        with suppress(PermissionError):  # Windows removes a lock by itself, and not while it is held
            path.unlink(missing_ok=True)
    else:
        path.unlink(missing_ok=True)


def _partials(store: Store) -> Iterator[LeftOver]:
    """Partials of files that are complete or that no pair has; those that a pull can resume from stay."""
    known, sure = _known(store), knows_all(store)
    complete = {path.parent.name for path in held_paths(store)}
    complete |= {piece.sha256 for pair in known_pairs(store) for piece in pair.pieces if store.held(piece)}
    for path in _entries(store.home / "partial"):
        sha256 = path.name.partition(".")[0]
        if sha256 in complete:
            yield LeftOver(path, _size(path), "a partial file whose file is complete", sha256)
        elif sure and sha256 not in known:
            yield LeftOver(path, _size(path), "a partial file that no pair needs", sha256)


def _prepared(store: Store) -> Iterator[LeftOver]:
    for kind, what, of in (
        (PREPARED, "a prepared draft", "draft"),
        (CUT_DOWN, "a cut-down copy", "model"),
    ):
        records = {record.source.key: record for record in PreparedDrafts(store.home, kind).records()}
        for folder in _entries(store.home / kind):
            record, lock = records.get(folder.name), f"{kind}-{folder.name}"
            if record is None:
                yield LeftOver(folder, _size(folder), f"{what} without a record", lock)
            elif not _has_source(record, store):
                yield LeftOver(folder, _size(folder), f"{what} whose {of} is gone", lock)


def _has_source(record: Record, store: Store) -> bool:
    key = record.source.key
    if any(_entries(store.home / "files" / name) for name in (key, f"{SPLIT}{key}")):
        return True
    with suppress(OSError):
        return Source.of(Path(record.source.file)).is_same(record.source)
    return False


def _unknown(store: Store) -> Iterator[LeftOver]:
    known, sure = _known(store), knows_all(store)
    for folder in _entries(store.home / "files"):
        if not _entries(folder):
            yield LeftOver(folder, 0, "an empty folder", folder.name)
        elif sure and folder.name not in known:
            lock = "" if folder.name.startswith(SPLIT) else folder.name
            yield LeftOver(folder, _size(folder), "a model of no known pair", lock, precious=True)


def _unfinished(store: Store) -> Iterator[LeftOver]:
    """What a killed process was writing: small files under names that only it knew."""
    for name in ("calibration", "strict", "libraries", "used"):
        for path in _entries(store.home / name):
            if path.suffix in (".new", ".part") and _age(path) > LOCK_AGE:
                yield LeftOver(path, _size(path), "a file that was never finished")
    for path in _entries(store.home / "damaged"):
        yield LeftOver(path, _size(path), "a damaged file that was set aside")


def _locks(store: Store) -> Iterator[LeftOver]:
    for path in _entries(store.home / "locks"):
        if path.suffix == ".lock" and _age(path) > LOCK_AGE:
            yield LeftOver(path, 0, "a lock nobody holds", path.stem)


def _known(store: Store) -> set[str]:
    """sha256 of every file that a pair or a pinned reference needs, and the folders of split models."""
    pieces = [piece for pair in known_pairs(store) for piece in pair.pieces]
    return {piece.sha256 for piece in pieces} | {piece.folder for piece in pieces} - {""}


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(own_bytes(file) for file in files if file.is_file())


def _age(path: Path) -> float:
    return time.time() - path.stat().st_mtime
