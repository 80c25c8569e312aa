"""GGUF files that could draft for a target: from the catalogue, and from what lies on this disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localspec.hub.catalogue import ModelFile, pairs
from localspec.hub.store import Store


@dataclass(frozen=True)
class Candidate:
    """A model file. path: where it lies, or None where it would have to be pulled.

    origin: "catalogue", "store", "Hugging Face cache" or "folder" (that of the target).
    file:   what the catalogue knows of it, or None.
    pairs:  names of the pairs it belongs to.
    """

    name: str
    bytes: int
    path: Path | None
    origin: str
    file: ModelFile | None = None
    pairs: tuple[str, ...] = ()


def candidates(store: Store, beside: Path | None = None) -> list[Candidate]:
    """Each file once, however many names it has. beside: a file whose folder is looked into too.

    Copies that localspec prepared of a draft are no candidates of their own: they come with it.
    """
    found: dict[object, Candidate] = {}
    for candidate in (*_in_catalogue(store), *_on_disk(store, beside)):
        found.setdefault(_identity(candidate), candidate)
    return list(found.values())


def _in_catalogue(store: Store) -> Iterator[Candidate]:
    names: dict[str, list[str]] = {}
    files: dict[str, ModelFile] = {}
    for pair in pairs():
        for file in pair.files:
            files.setdefault(file.sha256, file)
            names.setdefault(file.sha256, []).append(pair.name)
    for sha256, file in files.items():
        path = store.path(file)
        origin = "catalogue" if path is None else "store"
        yield Candidate(file.file, file.bytes, path, origin, file, tuple(names[sha256]))


def _on_disk(store: Store, beside: Path | None) -> Iterator[Candidate]:
    yield from _files(store.home.glob("files/*/*.gguf"), "store")
    yield from _files(_cached(), "Hugging Face cache")
    if beside is not None:
        yield from _files(beside.absolute().parent.glob("*.gguf"), "folder")


def _cached() -> Iterator[Path]:
    from huggingface_hub import constants

    yield from Path(constants.HF_HUB_CACHE).glob("models--*/snapshots/*/**/*.gguf")


def _files(paths: Iterator[Path], origin: str) -> Iterator[Candidate]:
    with suppress(OSError):  # a folder that cannot be read holds no candidates
        for path in sorted(paths):
            if path.is_file() and not path.name.startswith("."):
                yield Candidate(path.name, path.stat().st_size, path, origin)


def _identity(candidate: Candidate) -> object:
    """Of the bytes on the disk, whatever links lead to them; of the catalogue's file where there are none."""
    if candidate.path is None:
        return candidate.file.sha256 if candidate.file else candidate
    status = candidate.path.stat()
    return (status.st_dev, status.st_ino) if status.st_ino else candidate.path.resolve()
