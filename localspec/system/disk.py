"""The local disk: room, hashes, and its errors as ours."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from localspec.errors import DiskFull, StoreError
from localspec.system.progress import readable

FULL = {errno.ENOSPC, errno.EDQUOT}
BROKEN = {errno.EIO, errno.EROFS, errno.EFBIG, errno.ENOLCK}
BLOCK = 1 << 20
MAKE_ROOM = "Free some space, or set LOCALSPEC_HOME to a folder on another disk."
CHANGE_HOME = "Check its permissions, or set LOCALSPEC_HOME to a folder you can write to."


def sha256_of(path: Path, report: Callable[[int], None] | None = None) -> str:
    """The hex sha256 of a file; `report` hears the bytes hashed so far."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            digest.update(block)
            done += len(block)
            if report is not None:
                report(done)
    return digest.hexdigest()


def own_bytes(path: Path) -> int:
    """Bytes that removing the file gives back: none while another hard link leads to them. Raises OSError."""
    status = path.stat()
    return status.st_size if status.st_nlink <= 1 else 0


def require_room(folder: Path, needed: int) -> None:
    """Raises DiskFull unless `needed` bytes are free where `folder` is (or will be)."""
    there = next((place for place in (folder, *folder.parents) if place.exists()), folder)
    free = shutil.disk_usage(there).free
    if free < needed:
        raise DiskFull(
            f"The disk of {folder} has {readable(free)} free, and {readable(needed)} are needed.",
            MAKE_ROOM,
            path=str(folder),
            needed=needed,
            free=free,
        )


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turns what the disk refuses inside the block into DiskFull or StoreError; other exceptions pass."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            free = shutil.disk_usage(folder).free
            raise DiskFull(
                f"The disk of {folder} is full ({readable(free)} free).",
                MAKE_ROOM,
                path=str(folder),
                needed=0,
                free=free,
            ) from error
        # Errors of files carry a file name; a broken pipe of the caller's progress bar is not the store's.
        if error.filename is None and error.errno not in BROKEN:
            raise
        where = error.filename2 or error.filename or folder
        raise StoreError(
            f"The store cannot use {where}: {error.strerror}.", CHANGE_HOME, path=str(where)
        ) from error


def sync(path: Path) -> None:
    """Returns once the file's bytes are on the disk itself."""
    with path.open("rb+") as stream:
        os.fsync(stream.fileno())


def write_durably(path: Path, text: str) -> None:
    """Replaces a small text file in one step: after a crash it holds the old or the new text."""
    beside = path.with_name(f"{path.name}.new")
    with beside.open("w", encoding="utf-8", newline="\n") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    beside.replace(path)
