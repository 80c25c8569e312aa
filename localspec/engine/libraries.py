"""Which compute libraries there are, and which one computes a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from localspec.errors import ModelLoadError
from localspec.gguf.metadata import Metadata
from localspec.ik.library import IkLlama
from localspec.llama.library import LlamaCpp
from localspec.system.load_watch import current_watch

if TYPE_CHECKING:
    from localspec.compute.library import CancelFlag, Library, Reference

_LLAMA_CPP, _IK_LLAMA = LlamaCpp(), IkLlama()


def reference() -> Reference:
    """The library by which others are judged. It reads vocabularies and templates, whoever computes."""
    return _LLAMA_CPP


def libraries() -> Sequence[Library]:
    """All there are, in the order in which they are asked to compute a file; a new one is listed here."""
    return (_LLAMA_CPP, _IK_LLAMA)


def preferred() -> Library:
    """The one that is asked first."""
    return libraries()[0]


def library_for(target: Metadata, draft: Metadata | None = None) -> Library:
    """The first library that can compute these files. Raises `ModelLoadError` with the reasons of all of them."""
    files = [target] if draft is None else [target, draft]
    reasons = []
    for library in libraries():
        refusals = [reason for file in files if (reason := library.refusal(file))]
        if not refusals:
            return library
        reasons += refusals
    raise ModelLoadError(
        f"No compute library can load {' and '.join(str(file.path) for file in files)}: {' '.join(reasons)}",
        "Use other files of these models.",
        path=str(target.path),
    )


def watched_flag(library: Library) -> CancelFlag:
    """A flag of that library, which ends its passes also when the load that runs in this thread is cancelled."""
    flag = library.cancel_flag()
    if (watch := current_watch()) is not None:
        watch.adopt(flag)
    return flag
