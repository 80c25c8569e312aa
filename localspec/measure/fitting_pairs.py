"""Pairs of the catalogue that fit this machine's memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from localspec.engine.options import EngineOptions
from localspec.errors import ModelFileError
from localspec.gguf.metadata import read_metadata
from localspec.measure.prospect import Prospect, prospect
from localspec.pairs.catalogue import ModelFile, Pair
from localspec.store.store import Store

Room: TypeAlias = Literal["fits", "fits when memory is freed", "does not fit"]
MOST = 0.9
"""Share of the memory that a pair may take: passes and other programs need some."""
CACHE_SHARE = 0.15
"""Cache of 4096 tokens (F16) by bytes of weights, where a file's shape is not known. The models of the catalogue
from 1.5B up take 0.05 to 0.12."""
_CACHE_TOKENS = 4096


@dataclass(frozen=True)
class Fit:
    """How a pair and this machine's memory go together.

    needed: bytes of weights and caches of both models. exact: read from the files, not estimated.
    """

    pair: Pair
    room: Room
    needed: int
    exact: bool
    on_disk: bool
    prospect: Prospect | None


def fitting_pairs(
    known: list[Pair], store: Store, options: EngineOptions, *, total: int, free: int
) -> list[Fit]:
    """Every pair, best first: those that fit now, then those that would, then the others; larger targets first.

    total, free: bytes of memory that this machine has, and has free now.
    """
    order = ("fits", "fits when memory is freed", "does not fit")
    fits = [_fit(pair, store, options, total, free) for pair in known]
    return sorted(fits, key=lambda fit: (order.index(fit.room), -fit.pair.target.bytes, fit.pair.name))


def _fit(pair: Pair, store: Store, options: EngineOptions, total: int, free: int) -> Fit:
    paths = [store.path(file) for file in pair.files]
    here = [path for path in paths if path is not None]
    outlook = _outlook(here, options, store.home) if len(here) == len(paths) else None
    needed = sum(_estimated(file, options.n_ctx) for file in pair.files) if outlook is None else outlook.total
    room: Room = "fits" if needed <= MOST * free else "does not fit"
    if room != "fits" and needed <= MOST * total:
        room = "fits when memory is freed"
    return Fit(pair, room, needed, outlook is not None, len(here) == len(paths), outlook)


def _outlook(paths: list[Path], options: EngineOptions, home: Path) -> Prospect | None:
    try:
        target, *drafts = [read_metadata(path) for path in paths]
    except ModelFileError:
        return None
    return prospect(target, drafts[0] if drafts else None, options, home)


def _estimated(file: ModelFile, n_ctx: int) -> int:
    return int(file.bytes * (1 + CACHE_SHARE * n_ctx / _CACHE_TOKENS))
