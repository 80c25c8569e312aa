"""When each model file was last loaded: best effort, and never a reason to fail."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from localspec.errors import StoreError
from localspec.store.prepared import Source
from localspec.system.home import default_home


def record_use(*files: Path | None, home: Path | None = None) -> None:
    """Notes that the files were loaded now. A home that does not exist, or cannot be written, is passed over."""
    with suppress(OSError, StoreError):
        folder = (home or default_home()) / "used"
        folder.mkdir(exist_ok=True)
        for file in files:
            if file is not None:
                _write(_note(file, folder), datetime.now(UTC).isoformat(timespec="seconds"))


def last_use(file: Path, home: Path) -> datetime | None:
    """When the file was last loaded, in UTC; None if that is not known."""
    with suppress(OSError, ValueError):
        when = datetime.fromisoformat(_note(file, home / "used").read_text(encoding="utf-8").strip())
        return when.astimezone(UTC)
    return None


def _note(file: Path, folder: Path) -> Path:
    return folder / Source.of(file).key


def _write(note: Path, text: str) -> None:
    unfinished = note.with_name(f"{note.name}.{os.getpid()}.part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(note)
