"""Models of a hub's repositories on this disk: found, pulled and removed by reference."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from localspec.errors import DownloadError, FileMissing, HashMismatch, NotDownloaded, StoreError
from localspec.hub.fetching import pull
from localspec.hub.finding import find
from localspec.pairs.pair import Pair
from localspec.pairs.pins import Pins
from localspec.pairs.reference import Reference
from localspec.store.store import Store
from localspec.system.progress import ProgressCallback, readable


def paths_on_disk(references: Sequence[Reference], store: Store) -> list[Path]:
    """Paths for the references of a target, or of a target and its draft; for a split model, its first part.

    Opens no connection. Raises NotDownloaded with the call that pulls them, StoreError.
    """
    pinned = [Pins(store.home).get(str(reference)) for reference in references]
    found = [None if pair is None else store.path(pair.target) for pair in pinned]
    paths = [path for path in found if path is not None]
    if len(paths) == len(references):
        return paths
    missing = [str(reference) for reference, path in zip(references, found, strict=True) if path is None]
    sizes = [pair.bytes for pair, path in zip(pinned, found, strict=True) if pair and path is None]
    size = f" ({readable(sum(sizes))})" if len(sizes) == len(missing) else ""
    raise NotDownloaded(
        f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not on this disk{size}.",
        f"Call `localspec.pull({', '.join(_quoted(reference) for reference in references)})`.",
        command=f"Run `localspec pull {command_words(references)}`.",
        name=command_words(references),
        missing=missing,
        references=tuple(references),
    )


def _quoted(reference: Reference) -> str:
    return f'"{reference}"'


def command_words(references: Sequence[Reference]) -> str:
    """The references as commands take them: the target, and `-md` with the draft."""
    return " -md ".join(str(reference) for reference in references)


def as_pair(references: Sequence[Reference], found: Sequence[Pair]) -> Pair:
    """One pair of the target and perhaps the draft that `find` gave, each as a pair of its own."""
    draft = found[1].target if len(found) > 1 else None
    return replace(found[0], name=command_words(references), draft=draft)


def pull_references(
    references: Sequence[Reference],
    *,
    store: Store,
    source: str = "auto",
    offline: bool = False,
    update: bool = False,
    progress: ProgressCallback | None = None,
) -> tuple[Path, Path | None]:
    """Target and draft of one or two references, fetched where they are missing and pinned.

    update: take what the repositories have now, and drop what was pinned before once the new files are complete.
    The rest is as for `pull`. Raises what `find` and `pull` raise.
    """
    pins = Pins(store.home)
    found = [
        find(reference, offline=offline, home=store.home, update=update and not offline)
        for reference in references
    ]
    if not update:
        # Before the first byte: a stopped pull then goes on with the same bytes.
        found = [pins.put(pair) for pair in found]
    pair = as_pair(references, found)
    try:
        paths = pull(pair, store=store, source=source, offline=offline, progress=progress)
    except (FileMissing, HashMismatch) as error:
        raise _gone(error, pair) from error
    if update:
        for each in found:
            _replace(each, pins, store)
    return paths


def remove_reference(reference: Reference, store: Store) -> int:
    """Removes its pin, and its files unless something else here needs them. Returns the bytes freed.

    Raises StoreError.
    """
    pins = Pins(store.home)
    pinned = None
    with suppress(StoreError):  # a damaged pin: its files are left to `prune`
        pinned = pins.get(str(reference))
    freed = 0 if pinned is None else store.remove(pinned)
    pins.remove(str(reference))
    return freed


def _replace(pair: Pair, pins: Pins, store: Store) -> None:
    before = None
    with suppress(StoreError):
        before = pins.get(pair.name)
    pins.put(pair, replace=True)
    if before is not None and before.target.sha256 != pair.target.sha256:
        with suppress(StoreError):  # in use: the new one is there all the same
            store.remove(before)


def _gone(error: DownloadError, pair: Pair) -> DownloadError:
    return type(error)(
        error.message,
        "Pull with update=True: that takes what the repository has now.",
        command=f"`localspec pull {pair.name} --update` takes what the repository has now.",
        **error.data,
    )
