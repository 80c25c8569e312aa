"""Pairs of the catalogue that fit this machine's memory, and how fast it should run them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from localspec.engine.options import EngineOptions
from localspec.errors import ModelFileError
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.measure.prospect import Prospect, prospect
from localspec.measure.speed import Speed, Speeds
from localspec.pairs.catalogue import ModelFile, Pair
from localspec.store.store import Store

Room: TypeAlias = Literal["fits", "fits when memory is freed", "does not fit"]
RESERVE = 0.1
"""Share of the whole memory that the system and other programs keep, however much is freed."""
PASSES_SHARE = 0.12
"""Passes (`compute_bytes`) by bytes of weights, where a file's shape is not known. The models of the catalogue from
1.5B up take 0.01 to 0.11."""
CACHE_SHARE = 0.15
"""Cache of 4096 tokens (F16) by bytes of weights, where a file's shape is not known. The models of the catalogue
from 1.5B up take 0.05 to 0.12."""
_CACHE_TOKENS = 4096


@dataclass(frozen=True)
class Fit:
    """How a pair and this machine's memory go together.

    needed: bytes that a load reserves for both models. exact: from the headers, as the files or the catalogue have
    them. speed: of the target alone, expected; None where nothing tells.
    """

    pair: Pair
    room: Room
    needed: int
    exact: bool
    on_disk: bool
    prospect: Prospect | None
    speed: Speed | None

    @property
    def is_slow(self) -> bool:
        """Whether its answers should come slower than they are read aloud."""
        return self.speed is not None and not self.speed.is_readable


def fitting_pairs(
    known: list[Pair], store: Store, options: EngineOptions, *, total: int, free: int, speeds: Speeds
) -> list[Fit]:
    """Every pair, best first: those that fit come before those that do not, and what is fast enough to read before
    what is slow; then those that fit now come before those that would, and larger targets first. Slow ones: the fastest
    first.

    total, free: bytes of memory that this machine has, and has free now.
    """
    fits = [_fit(pair, store, options, total, free, speeds) for pair in known]
    return sorted(fits, key=_rank)


def _rank(fit: Fit) -> tuple[bool, int, int, float, str]:
    order = ("fits", "fits when memory is freed", "does not fit")
    pace = 1 if fit.speed is None else 2 if fit.is_slow else 0
    size = -fit.speed.tokens_per_second if fit.speed and fit.is_slow else -float(fit.pair.target.bytes)
    return fit.room == "does not fit", pace, order.index(fit.room), size, fit.pair.name


def _fit(pair: Pair, store: Store, options: EngineOptions, total: int, free: int, speeds: Speeds) -> Fit:
    paths = [store.path(file) for file in pair.files]
    models = [_facts(file, path) for file, path in zip(pair.files, paths, strict=True)]
    outlook = _outlook(models, options, store.home)
    needed = sum(_estimated(file, options.n_ctx) for file in pair.files) if outlook is None else outlook.total
    room: Room = "fits" if needed <= free else "does not fit"  # as a load decides it
    if room != "fits" and needed <= (1 - RESERVE) * total:
        room = "fits when memory is freed"
    speed = None if models[0] is None else speeds.of(models[0])
    return Fit(pair, room, needed, outlook is not None, None not in paths, outlook, speed)


def _facts(file: ModelFile, path: Path | None) -> Metadata | None:
    """From the file, else from the catalogue; None where neither tells."""
    try:
        return file.outline if path is None else read_metadata(path)
    except ModelFileError:
        return None


def _outlook(models: list[Metadata | None], options: EngineOptions, home: Path) -> Prospect | None:
    target, *drafts = models
    if target is None or None in drafts:
        return None
    return prospect(target, drafts[0] if drafts else None, options, home)


def _estimated(file: ModelFile, n_ctx: int) -> int:
    return int(file.bytes * (1 + PASSES_SHARE + CACHE_SHARE * n_ctx / _CACHE_TOKENS))
