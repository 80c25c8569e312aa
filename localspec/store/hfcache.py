"""The Hugging Face cache of this machine: read, never written."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from localspec.errors import HashMismatch
from localspec.pairs.catalogue import HubSource, ModelFile
from localspec.store.store import Store
from localspec.system.disk import require_room
from localspec.system.progress import Reporter


def adopt(file: ModelFile, store: Store, report: Reporter) -> Path | None:
    """Takes the file over from the cache if it lies there with the right sha256: by hard link, else by copy.

    Call with the file's lock held. Returns its path in the store, or None.
    Raises DiskFull if a copy is needed and does not fit.
    """
    report.source = "cache"
    for source in file.sources:
        cached = _cached(file, source) if isinstance(source, HubSource) else None
        if cached is not None:
            taken = store.partial(file).path.with_suffix(".cached")
            taken.unlink(missing_ok=True)
            _link_or_copy(cached, taken, store.home)
            with suppress(HashMismatch):
                return store.accept(file, taken, report)
    return None


def _cached(file: ModelFile, source: HubSource) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(source.repo, source.path or file.file, revision=source.revision)
    # The third answer is a marker object: the cache knows that the repository lacks the file.
    path = Path(found).resolve() if isinstance(found, str) else None
    return path if path is not None and path.is_file() and path.stat().st_size == file.bytes else None


def _link_or_copy(cached: Path, taken: Path, home: Path) -> None:
    try:
        taken.hardlink_to(cached)
    except (OSError, NotImplementedError):
        require_room(home, cached.stat().st_size)
        shutil.copyfile(cached, taken)
