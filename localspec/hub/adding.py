"""The models of a pair that a user makes: each a file on this disk, or one in a hub repository."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.checks import user_path
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.hub.finding import resolve
from localspec.hub.remote import read_remote_metadata
from localspec.pairs.pair import ModelFile
from localspec.pairs.reference import parse_reference
from localspec.store.own import own_file
from localspec.store.store import Store
from localspec.system.progress import ProgressCallback


@dataclass(frozen=True)
class Part:
    """A model of a pair to be made. file: None until a file on this disk is hashed."""

    metadata: Metadata
    file: ModelFile | None

    def hashed(self, known: Sequence[ModelFile], show: ProgressCallback | None) -> ModelFile:
        """The file with its sha256, which takes seconds for a large one on this disk. Raises StoreError."""
        if self.file is not None:
            return self.file
        return own_file(self.metadata.path, show, known)


def part(text: str, store: Store, *, offline: bool) -> Part:
    """The model that a user names: a path, or `org/repo:quant` of a hub; there only the header is read.

    Raises ModelFileError, and what `finding.resolve` and `read_remote_metadata` raise for a hub's model.
    """
    path = user_path(text)
    file = None if path.exists() else _of_a_hub(text, store, offline)
    if file is None:
        return Part(read_metadata(path), None)
    held = store.path(file)
    return Part(read_remote_metadata(file) if held is None else read_metadata(held), file)


def _of_a_hub(text: str, store: Store, offline: bool) -> ModelFile | None:
    reference = parse_reference(text)
    return None if reference is None else resolve(reference, offline=offline, home=store.home)
