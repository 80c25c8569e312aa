"""What this disk holds of one pair."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from localspec.errors import ModelFileError
from localspec.gguf.metadata import read_metadata
from localspec.gguf.types import FILE_TYPES
from localspec.pairs.pair import ModelFile, Pair
from localspec.store.last_use import last_use
from localspec.store.prepared import PreparedDrafts, Record
from localspec.store.store import Store

_FORMATS = {name.upper(): name for name in FILE_TYPES.values()}


@dataclass(frozen=True)
class Holding:
    """What this disk holds of `pair`.

    presence: whether all its files are here, or something of them. paths: of target and draft, None if not here.
    formats: the quantization of each, or "". prepared: what is known of copies of the draft, or None.
    last_used: of the target, in UTC.
    """

    pair: Pair
    presence: Literal["yes", "part", "no"]
    paths: tuple[Path | None, ...]
    formats: tuple[str, ...]
    prepared: Record | None
    last_used: datetime | None

    @property
    def prepared_bytes(self) -> int:
        """Bytes of the copies of the draft."""
        return sum(self.prepared.copies.values()) if self.prepared else 0


def holding(pair: Pair, store: Store) -> Holding:
    """What `store` holds of `pair`; changes nothing. Raises StoreError."""
    paths = tuple(store.path(file) for file in pair.files)
    draft = paths[1] if len(paths) > 1 else None
    return Holding(
        pair=pair,
        presence=_presence(pair, paths, store),
        paths=paths,
        formats=tuple(_format(file, path) for file, path in zip(pair.files, paths, strict=True)),
        prepared=_prepared(draft, store),
        last_used=last_use(paths[0], store.home) if paths[0] is not None else None,
    )


def format_in_name(name: str) -> str:
    """The quantization that a file name ends with, by its usual name, or ""."""
    last = re.split(r"[-.]", re.sub(r"(?i)(-\d{5}-of-\d{5})?\.gguf$", "", name))[-1]
    return _FORMATS.get(last.upper(), "")


def _presence(pair: Pair, paths: tuple[Path | None, ...], store: Store) -> Literal["yes", "part", "no"]:
    if None not in paths:
        return "yes"
    begun = any(store.path(piece) or store.partial(piece).size for piece in pair.pieces)
    return "part" if begun else "no"


def _format(file: ModelFile, path: Path | None) -> str:
    named = format_in_name(file.file)
    if named or path is None:
        return named
    try:
        known = read_metadata(path).file_type
    except ModelFileError:
        return ""
    return "" if known == "unknown" else known


def _prepared(draft: Path | None, store: Store) -> Record | None:
    if draft is None:
        return None
    records = PreparedDrafts(store.home).records()
    return next((record for record in records if record.source.is_of(draft)), None)
