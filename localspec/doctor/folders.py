"""The store, the disk under it, and the Hugging Face cache."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from localspec.doctor.finding import Finding, note, ok, problem
from localspec.errors import LocalspecError
from localspec.pairs.catalogue import DEFAULT_PAIR, pair
from localspec.store.store import FORMAT, Store
from localspec.system.disk import CHANGE_HOME, MAKE_ROOM
from localspec.system.home import default_home
from localspec.system.progress import readable

_LEAST_ROOM = 1 << 30


def check_store(home: Path | None = None) -> Iterator[Finding]:
    """The store's format, whether its folders can be read and written, and what lies in it. Makes no folder."""
    topic = "store"
    folder = default_home() if home is None else home
    try:
        store = Store(folder)
        installed = store.installed()
    except LocalspecError as error:
        yield problem(topic, error.message, error.command or CHANGE_HOME, path=str(folder))
        return
    data: dict[str, object] = {"path": str(folder), "pairs": [found.name for found, _ in installed]}
    fault = next((text for place in _places(folder) if (text := _fault(place))), None)
    if fault is not None:
        yield problem(topic, fault, CHANGE_HOME, **data)
        return
    if not folder.exists():
        yield ok(topic, f"{folder} is not there yet and can be made", **data)
        return
    size = sum(size for _, size in installed)
    yield ok(topic, f"{folder}, format {FORMAT}, {len(installed)} pairs ({readable(size)})", **data)
    unfinished = sum(_size(file) for file in folder.glob("partial/*"))
    if unfinished:
        fact = f"{readable(unfinished)} of downloads that were not finished lie in {folder / 'partial'}"
        yield note(topic, fact, "`localspec pull NAME` goes on with them, `localspec rm NAME` removes them.")


def check_disk(home: Path | None = None) -> Iterator[Finding]:
    """Room where the store is, against what the default pair still needs."""
    folder = default_home() if home is None else home
    free = shutil.disk_usage(_existing(folder)).free
    data: dict[str, object] = {"path": str(folder), "free_bytes": free}
    fact = f"{readable(free)} free on the disk of {folder}"
    needed = _missing(folder)
    if free < needed:
        yield problem("disk", f"{fact}, and the default pair needs {readable(needed)}.", MAKE_ROOM, **data)
    elif free < _LEAST_ROOM:
        yield note("disk", fact, MAKE_ROOM, **data)
    else:
        yield ok("disk", fact, **data)


def check_cache() -> Iterator[Finding]:
    """The Hugging Face cache, which is read and never written."""
    from huggingface_hub import constants

    topic = "Hugging Face cache"
    folder = Path(constants.HF_HUB_CACHE)
    if not folder.exists():
        yield ok(topic, f"{folder} is not there, and is not needed", path=str(folder))
        return
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.X_OK):
        fact = f"{folder} cannot be read: files in it will be downloaded again."
        yield note(topic, fact, "Check its permissions, and HF_HOME and HF_HUB_CACHE.", path=str(folder))
        return
    files = list(folder.glob("models--*/snapshots/*/**/*.gguf"))
    broken = [file for file in files if not file.exists()]
    size = sum(_size(file) for file in set(files) - set(broken))
    fact = f"{folder}, {len(files) - len(broken)} GGUF files ({readable(size)}), used where they are wanted"
    yield ok(topic, fact, path=str(folder), files=len(files) - len(broken), bytes=size)
    if broken:
        fact = f"{len(broken)} GGUF files in {folder} lead nowhere, such as {broken[0].name}"
        yield note(topic, fact, "`hf cache rm` removes what was half deleted.")


def _places(folder: Path) -> Iterator[Path]:
    """The folder, or the one that it would be made in, and localspec's folders inside it."""
    yield _existing(folder)
    for name in (
        "files", "partial", "locks", "prepared", "pruned", "calibration", "strict", "libraries", "together",
        "references", "pairs",
    ):  # fmt: skip
        if (folder / name).exists():
            yield folder / name


def _fault(place: Path) -> str | None:
    """Why the folder cannot be used, found by using it; None if it can."""
    try:
        if not place.is_dir():
            return f"{place} is in the way: it is not a folder."
        next(place.iterdir(), None)
        with tempfile.TemporaryFile(dir=place):
            return None
    except OSError as error:
        return f"{place} cannot be read and written: {error.strerror or error}."


def _existing(folder: Path) -> Path:
    return next((place for place in (folder, *folder.parents) if place.exists()), folder)


def _missing(folder: Path) -> int:
    """Bytes of the default pair that are not on the disk yet."""
    try:
        store = Store(folder)
        return sum(file.bytes for file in pair(DEFAULT_PAIR).files if store.path(file) is None)
    except LocalspecError:
        return 0


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
