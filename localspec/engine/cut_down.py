"""A model without some of its layers, as a draft for itself: made, found again, removed."""

from __future__ import annotations

from pathlib import Path

from localspec.engine.draft_copy import RESERVE, source_of
from localspec.engine.libraries import reference
from localspec.engine.options import Notify
from localspec.gguf.layers import bytes_with, check_layers, layers_named, layers_written
from localspec.gguf.metadata import read_metadata
from localspec.store.prepared import CUT_DOWN, PreparedDrafts
from localspec.store.store import default_home
from localspec.system.disk import require_room, sync

_NAME = "layers-"


def cut_down(
    model: Path, layers: str, home: Path | None = None, notify: Notify = lambda sentence: None
) -> Path:
    """A copy of `model` with these layers only (`0-11`), made now or before. It drafts like any other file.

    Raises `InvalidRequest` for layers that it cannot be cut down to, `ModelFileError`, `ModelLoadError`, and
    `StoreError` where there is no room or no right to write.
    """
    named = layers_named(layers)
    metadata = read_metadata(model)
    check_layers(metadata, named)
    copies, source, name = _copies(home), source_of(model), f"{_NAME}{layers_written(named)}"
    with copies.lock(source):
        found = copies.copy(source, name)
        if found is None:
            found = copies.path(source, name)
            require_room(found.parent, bytes_with(model, named) + RESERVE)
            notify(f"Copying {len(named)} of the {metadata.n_layer} layers of {model.name}.")
            reference().keep_layers(model, found, named)
            read_metadata(found)  # what llama.cpp wrote has to pass what is asked of every file
            sync(found)
            copies.keep_copy(source, name)
    return found


def forget_cut_down(model: Path, layers: str = "", home: Path | None = None) -> int:
    """Remove the copies of `model`, or the one with these layers, also if it is gone itself; returns bytes freed.

    Raises `StoreError`, and `InvalidRequest` for a text that names no layers.
    """
    copies = _copies(home)
    sources = {record.source for record in copies.records() if record.source.is_of(model)}
    if not layers:
        return sum(copies.remove(source) for source in sources)
    name = f"{_NAME}{layers_written(layers_named(layers))}"
    return sum(copies.remove_copy(source, name) for source in sources)


def layers_of(copy: str) -> str:
    """The layers of a copy, by the name it is kept under."""
    return copy.removeprefix(_NAME)


def _copies(home: Path | None) -> PreparedDrafts:
    return PreparedDrafts(home or default_home(), CUT_DOWN)
