"""Every pair that this disk may hold: by name, and models of a hub that were pinned."""

from __future__ import annotations

from localspec.errors import NotDownloaded
from localspec.pairs import catalogue
from localspec.pairs.pair import ModelFile, Pair
from localspec.pairs.pins import Pins
from localspec.pairs.reference import parse_reference
from localspec.store.store import Store


def known_pairs(store: Store) -> list[Pair]:
    """Pairs by name, then the pinned references. Raises CatalogueError."""
    return [*catalogue.pairs(store.home), *Pins(store.home).all()]


def known_pair(name: str, store: Store) -> Pair:
    """The pair of that name, or the pinned reference `org/repo:quant`.

    Raises UnknownPair, CatalogueError, NotDownloaded for a reference that was never pulled, StoreError.
    """
    reference = parse_reference(name) if isinstance(name, str) else None
    if reference is None:
        return catalogue.pair(name, store.home)
    pinned = Pins(store.home).get(str(reference))
    if pinned is None:
        raise NotDownloaded(
            f"{reference} has not been pulled.",
            f'Call `localspec.pull("{reference}")`.',
            command=f"Run `localspec pull {reference}`.",
            name=str(reference),
            missing=[],
        )
    return pinned


def known_files(store: Store) -> list[ModelFile]:
    """The files of all known pairs, each once; of a split model, its parts. Raises CatalogueError."""
    files = [piece for pair in known_pairs(store) for piece in pair.pieces]
    return list({file.sha256: file for file in reversed(files)}.values())
