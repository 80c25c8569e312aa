"""Copying large files: resumed, checked, and never half a file under its final name."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from localspec.errors import HashMismatch, StoreError
from localspec.pairs.pair import ModelFile
from localspec.system.disk import BLOCK, disk_errors, sha256_of, sync
from localspec.system.progress import Reporter, Stage


def hashed(path: Path, report: Reporter) -> str:
    """The sha256 of a file that nobody changes meanwhile. Raises StoreError."""
    with disk_errors(path.parent):
        before = path.stat()
        sha256 = sha256_of(path, lambda done: report(done, Stage.VERIFY))
        after = path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise StoreError(
            f"{path} is being changed by another program.", "Wait until it is whole.", path=str(path)
        )
    return sha256


def append(source: Path, partial: Path, report: Reporter) -> None:
    """Adds the bytes of `source` that `partial`, its beginning, lacks. Raises OSError."""
    with source.open("rb") as read, partial.open("ab") as write:
        done = read.seek(write.tell())
        while block := read.read(BLOCK):
            write.write(block)
            done += len(block)
            report(done, Stage.COPY)


def copy_verified(file: ModelFile, source: Path, destination: Path, report: Reporter) -> None:
    """Makes `destination` the file: kept as it is if it is right, resumed if an earlier copy was stopped.

    Raises HashMismatch if `source` is not the file (`destination` is then not touched), DiskFull, StoreError.
    """
    same_size = destination.is_file() and destination.stat().st_size == file.bytes
    if same_size and sha256_of(destination, lambda done: report(done, Stage.VERIFY)) == file.sha256:
        return
    unfinished = destination.with_name(f"{destination.name}.part")
    with disk_errors(destination.parent):
        if not _completed(file, source, unfinished, report):
            # The fault may lie in what an earlier copy left.
            unfinished.unlink(missing_ok=True)
            if not _completed(file, source, unfinished, report):
                unfinished.unlink()
                raise _other_bytes(file, source)
        unfinished.replace(destination)


def hard_link(source: Path, link: Path) -> bool:
    """Makes `link` a hard link to `source`; False where that is not possible (another disk, some file systems)."""
    link.unlink(missing_ok=True)
    with suppress(OSError, NotImplementedError):
        link.hardlink_to(source.resolve())
        return True
    return False


def _completed(file: ModelFile, source: Path, unfinished: Path, report: Reporter) -> bool:
    if unfinished.exists() and unfinished.stat().st_size > file.bytes:
        unfinished.unlink()
    append(source, unfinished, report)
    sync(unfinished)
    return sha256_of(unfinished, lambda done: report(done, Stage.VERIFY)) == file.sha256


def _other_bytes(file: ModelFile, source: Path) -> HashMismatch:
    return HashMismatch(
        f"{source} is damaged: its sha256 is not {file.sha256[:12]}….",
        "`localspec.pull` verifies the files of a pair.",
        command="Check the store with `localspec verify`.",
        file=file.file,
        source="disk",
        expected=file.sha256,
        actual="",
    )
