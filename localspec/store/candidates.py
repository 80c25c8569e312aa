"""GGUF files that could draft for a target: from the catalogue, and from what lies on this disk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.pairs.catalogue import ModelFile, Pair, pairs
from localspec.store.store import Store

STORE, CACHE, FOLDER, CATALOGUE = "store", "Hugging Face cache", "folder", "catalogue"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FURTHER_PART = re.compile(r"-(?!00001-)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)


@dataclass(frozen=True)
class Candidate:
    """A model file. path: where it lies, or None where it would have to be fetched.

    origin: where it was found: in the store, the Hugging Face cache, the folder of the target, or the catalogue alone.
    file:  what the catalogue knows of it, or None.
    pairs: those of the catalogue in which it is the draft.
    """

    name: str
    bytes: int
    path: Path | None
    origin: str
    file: ModelFile | None = None
    pairs: tuple[Pair, ...] = ()


def candidates(store: Store, beside: Path | None = None) -> list[Candidate]:
    """Each file once, however many names and copies it has. beside: a file whose folder is searched too.

    Copies that localspec prepared of a draft are no candidates of their own: they come with it. Nor are
    catalogue files that are not here and never a draft.
    """
    found: dict[object, Candidate] = {}
    for candidate in (*_in_catalogue(store), *_on_disk(store, beside)):
        _add(found, _identity(candidate), candidate)
    by_name: dict[object, Candidate] = {}
    for candidate in found.values():
        _add(by_name, (candidate.name, candidate.bytes), candidate)
    return [item for item in by_name.values() if item.path is not None or item.pairs]


def _add(found: dict[object, Candidate], key: object, candidate: Candidate) -> None:
    """The first of a kind counts; one known from the catalogue alone takes the path of a copy that is here."""
    known = found.setdefault(key, candidate)
    if known.path is None and candidate.path is not None:
        found[key] = replace(known, path=candidate.path, origin=candidate.origin)


def _in_catalogue(store: Store) -> Iterator[Candidate]:
    known = pairs()
    files = {file.sha256: file for pair in known for file in pair.files}
    for sha256, file in files.items():
        path = store.path(file)
        its = tuple(pair for pair in known if pair.draft is not None and pair.draft.sha256 == sha256)
        yield Candidate(file.file, file.bytes, path, CATALOGUE if path is None else STORE, file, its)


def _on_disk(store: Store, beside: Path | None) -> Iterator[Candidate]:
    yield from _files(store.home.glob("files/*/*.gguf"), STORE)
    yield from _files(_cached(), CACHE)
    if beside is not None:
        yield from _files(beside.absolute().parent.glob("*.[gG][gG][uU][fF]"), FOLDER)


def _cached() -> Iterator[Path]:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).glob("models--*/snapshots/*/**/*.gguf")


def _files(paths: Iterable[Path], origin: str) -> Iterator[Candidate]:
    with suppress(OSError):  # a folder that cannot be read holds no candidates
        for path in sorted(paths):
            if path.is_file() and not path.name.startswith(".") and not _FURTHER_PART.search(path.name):
                yield Candidate(path.name, path.stat().st_size, path, origin)


def _identity(candidate: Candidate) -> object:
    """The sha256 where catalogue, store or cache give it, else the bytes on the disk, whatever links lead to them."""
    if candidate.file is not None:
        return candidate.file.sha256
    assert candidate.path is not None
    true = candidate.path.resolve()
    stated = {STORE: candidate.path.parent.name, CACHE: true.name}.get(candidate.origin, "")
    if _SHA256.fullmatch(stated):
        return stated
    status = true.stat()
    return (status.st_dev, status.st_ino) if status.st_ino else true
