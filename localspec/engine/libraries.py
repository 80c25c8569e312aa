"""Which compute libraries there are, and which one computes a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from localspec.errors import ModelLoadError
from localspec.gguf.metadata import Metadata
from localspec.llama.library import LlamaCpp

if TYPE_CHECKING:
    from localspec.compute.library import Library, Reference

_LLAMA_CPP = LlamaCpp()


def reference() -> Reference:
    """The library by which others are judged. It reads vocabularies and templates, whoever computes."""
    return _LLAMA_CPP


def libraries() -> Sequence[Library]:
    """All there are, in the order in which they are asked to compute a file; a new one is listed here."""
    return (_LLAMA_CPP,)


def preferred() -> Library:
    """The one that is asked first."""
    return libraries()[0]


def library_for(metadata: Metadata) -> Library:
    """The first library that can compute this file. Raises `ModelLoadError` with the reasons of all of them."""
    reasons = []
    for library in libraries():
        reason = library.refusal(metadata)
        if not reason:
            return library
        reasons.append(reason)
    raise ModelLoadError(
        f"No compute library can load {metadata.path}: {' '.join(reasons)}",
        "Use another file of this model.",
        path=str(metadata.path),
    )
