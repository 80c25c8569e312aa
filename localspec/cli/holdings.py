"""What `list` and `show` say of a pair, for people and for programs."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING

from localspec.cli.terminal import say

if TYPE_CHECKING:
    from localspec.store.holding import Holding
    from localspec.store.store import Store


def warn_of_pair_files(store: Store) -> None:
    """Warn, in a sentence each, of the user's pair files and pinned references that are not used."""
    from localspec.pairs.catalogue import warnings
    from localspec.pairs.pins import Pins

    for sentence in warnings(home=store.home):
        say(f"warning: {sentence}")
    for fault in Pins(store.home).damaged():
        say(f"warning: {fault.message}")


def is_calibrated(held: Holding, calibrated: Collection[tuple[str, int]]) -> bool:
    """Whether the costs of the pair's models were measured on this machine."""
    return held.presence == "yes" and all((file.file, file.bytes) in calibrated for file in held.pair.files)


def day(when: datetime | None) -> str:
    """The day in the user's own time, or "never"."""
    return "never" if when is None else when.astimezone().date().isoformat()


def formats(held: Holding) -> str:
    """The quantizations of target and draft."""
    return " + ".join(name or "?" for name in held.formats)


def described(held: Holding, store: Store, calibrated: Collection[tuple[str, int]]) -> dict[str, object]:
    """Everything that is known of a pair, ready for JSON."""
    from localspec.pairs.catalogue import own_path

    pair = held.pair
    own = own_path(pair.name, store.home)
    return {
        "name": pair.name,
        "summary": pair.summary,
        "licence": pair.licence,
        "tags": list(pair.tags),
        "context": pair.context,
        "bytes": pair.bytes,
        "on_disk": held.presence,
        "pair_file": None if own is None else str(own),
        "calibrated": is_calibrated(held, calibrated),
        "last_used": None if held.last_used is None else held.last_used.isoformat(),
        "prepared_bytes": held.prepared_bytes,
        "files": [
            {
                "role": role,
                "file": file.file,
                "format": form or None,
                "bytes": file.bytes,
                "sha256": file.sha256,
                "path": None if path is None else str(path),
            }
            for role, file, form, path in zip(
                ("target", "draft"), pair.files, held.formats, held.paths, strict=False
            )
        ],
    }
