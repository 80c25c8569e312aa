"""Choices: the models that can be loaded, and what speaks against one of them here."""

from __future__ import annotations

from dataclasses import dataclass

from localspec import LocalspecError, memory_needed
from localspec.errors import DownloadError
from localspec.pairs.pair import Pair
from localspec.store.holding import holding
from localspec.store.known import known_pairs
from localspec.store.store import Store
from localspec.system.progress import readable


@dataclass(frozen=True)
class Choice:
    """A pair. note: where it is and what it needs. obstacle: why it cannot be loaded now, or ""."""

    name: str
    summary: str
    note: str
    obstacle: str
    on_disk: bool


def choices(store: Store, n_ctx: int) -> list[Choice]:
    """Every known pair: those on this disk first, then those that fit the memory. Reads headers: not in the window's
    thread. Raises `CatalogueError`, `StoreError`.
    """
    found = [_choice(pair, store, n_ctx) for pair in known_pairs(store)]
    return sorted(found, key=lambda choice: (not choice.on_disk, bool(choice.obstacle)))


def _choice(pair: Pair, store: Store, n_ctx: int) -> Choice:
    held = holding(pair, store)
    note = {
        "yes": "on this disk",
        "part": f"{readable(pair.bytes)}, partly downloaded",
        "no": f"{readable(pair.bytes)} to download",
    }[held.presence]
    return Choice(pair.name, pair.summary, note, _obstacle(pair, store, n_ctx), held.presence == "yes")


def _obstacle(pair: Pair, store: Store, n_ctx: int) -> str:
    try:
        needed = memory_needed(pair.name, n_ctx=n_ctx, home=store.home, offline=True)
    except DownloadError:  # only its repository could tell
        return ""
    except LocalspecError as error:
        return error.message
    if needed.fits:
        return ""
    return f"does not fit: {readable(needed.total)} of memory needed, {readable(needed.available)} free"
