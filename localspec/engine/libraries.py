"""Which compute libraries there are, and which one computes a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from localspec.errors import BackendError, ModelLoadError
from localspec.gguf.metadata import Metadata
from localspec.ik.library import IkLlama
from localspec.llama.library import LlamaCpp
from localspec.system.load_watch import current_watch

if TYPE_CHECKING:
    from localspec.compute.library import CancelFlag, Library, Reference

AUTO = "auto"
ANOTHER = "Let another library compute, or ask for none: then the one is taken that can."
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


def installed(library: Library) -> bool:
    """Whether its package is there."""
    try:
        return bool(library.version)
    except BackendError:
        return False


def library_for(target: Metadata, draft: Metadata | None = None, asked: str = AUTO) -> Library:
    """The one asked for by its key, or the first that can compute these files.

    Raises `ModelLoadError` with the reasons of all of them, and `BackendError` where the one asked for is not
    installed.
    """
    files = [target] if draft is None else [target, draft]
    if asked != AUTO:
        return _asked_for(asked, files)
    reasons = []
    for library in libraries():
        refusals = refusals_of(library, *files)
        if not refusals:
            return library
        reasons += refusals
    raise ModelLoadError(
        f"No compute library can load {' and '.join(str(file.path) for file in files)}: {' '.join(reasons)}",
        "Use other files of these models.",
        path=str(target.path),
    )


def refusals_of(library: Library, *files: Metadata) -> list[str]:
    """Why it cannot compute some of these files, in sentences."""
    return [reason for file in files if (reason := library.refusal(file))]


def named(key: str) -> Library:
    """The one of that key. Raises `BackendError`."""
    for library in libraries():
        if library.key == key:
            return library
    raise BackendError(
        f"There is no library {key} here.",
        f"It may be {', '.join(library.key for library in libraries())}.",
    )


def _asked_for(key: str, files: Sequence[Metadata]) -> Library:
    library = named(key)
    if library is not reference():
        _ = library.version  # raises where it is not installed
    if reasons := refusals_of(library, *files):
        raise ModelLoadError(" ".join(reasons), ANOTHER, path=str(files[0].path))
    return library


def watched_flag(library: Library) -> CancelFlag:
    """A flag of that library, which ends its passes also when the load that runs in this thread is cancelled."""
    flag = library.cancel_flag()
    if (watch := current_watch()) is not None:
        watch.adopt(flag)
    return flag
