"""What a repository offers: its GGUF models and their quantizations, read from the file names.

A quantization is chosen by its whole name: `Q4_K` is not `Q4_K_M`, and `Q4_K_XL` is not `UD-Q4_K_XL`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from localspec.gguf.split import part_name

_QUANTIZATION = re.compile(
    r"(?<![a-z0-9])(?:ud-)?(?:(?:i?q|tq)[0-9]+|(?:bf|fp|f)[0-9]+|(?:mx|nv)fp[0-9]+)(?:_[a-z0-9]+)*(?![a-z0-9])",
    re.IGNORECASE,
)
_PROJECTOR = re.compile(r"(?:.*[-_.])?mmproj(?:[-_.].*)?", re.IGNORECASE)
"""Image encoders: they lie beside models, and are not models themselves."""


@dataclass(frozen=True)
class Offer:
    """One model of a repository.

    paths: its file, or all its parts in order. missing: names of parts that the repository lacks.
    quantization: in capitals; "" if its name holds none.
    """

    paths: tuple[str, ...]
    missing: tuple[str, ...]
    quantization: str

    @property
    def name(self) -> str:
        """The path of its file or first part."""
        return self.paths[0]

    @property
    def parts_of(self) -> str | None:
        """For a split model, the path that it would have as one file; else None."""
        folder, slash, name = self.name.rpartition("/")
        part = part_name(name)
        return f"{folder}{slash}{part.stem}.gguf" if part else None


def offers(paths: Iterable[str]) -> list[Offer]:
    """The GGUF models among the files of a repository, by path."""
    grouped: dict[str, list[str]] = {}
    for path in sorted(paths):
        folder, _, name = path.rpartition("/")
        if name.lower().endswith(".gguf"):
            part = part_name(name)
            key = f"{folder}/{part.stem}/{part.count}" if part else path
            grouped.setdefault(key, []).append(path)
    return [_offer(group) for group in grouped.values()]


def quantization_of(path: str) -> str:
    """The quantization in a file's name, or else its folder's name if that is one; in capitals, or "".

    An image encoder counts as having none.
    """
    folder, _, name = path.rpartition("/")
    part = part_name(name)
    stem = part.stem if part else name.rpartition(".")[0]
    if _PROJECTOR.fullmatch(stem):
        return ""
    found = _QUANTIZATION.findall(stem)
    if not found and (above := folder.rpartition("/")[2]) and _QUANTIZATION.fullmatch(above):
        found = [above]
    return found[-1].upper() if found else ""


def _offer(group: list[str]) -> Offer:
    folder, slash, name = group[0].rpartition("/")
    part = part_name(name)
    wanted = [f"{folder}{slash}{each}" for each in part.all_names] if part else group
    there = set(group)
    return Offer(
        tuple(path for path in wanted if path in there),
        tuple(path for path in wanted if path not in there),
        quantization_of(group[0]),
    )
