"""The child process in which ik_llama.cpp is tried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from localspec.compute.probe import features_of, write_notes
from localspec.ggml.product import tried
from localspec.ik.binding import PACKAGE, library

ENTRY = "localspec.ik.probe:main"


def main(path: str) -> None:
    """The child: load the library as localspec does, and write down what it says of itself."""
    write_notes(path, PACKAGE, library, _asked)


def _asked(lib: Any) -> Iterator[dict[str, object]]:
    yield {"features": features_of(lib.llama_print_system_info()), "backends": ["CPU"]}
    yield from tried(lib, PACKAGE)
