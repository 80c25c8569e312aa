"""Requantize a GGUF into another format."""

from __future__ import annotations

import os
from pathlib import Path

from localspec.errors import InvalidRequest, ModelLoadError
from localspec.ggml.weights import encoded
from localspec.gguf.metadata import read_metadata
from localspec.llama import backend
from localspec.system.cores import physical_cores
from localspec.system.signals import signals_noted

FORMATS = {"q4_0": 2, "q4_1": 3, "q8_0": 7, "bf16": 32, "f16": 1}
"""Format names and llama.cpp's numbers of them."""


def requantize(source: Path, destination: Path, format_name: str, *, threads: int | None = None) -> None:
    """Write `source` to `destination` with every matrix in one format.

    The file appears under its name only when it is whole. Raises `ModelFileError`, `InvalidRequest` or
    `ModelLoadError`.
    """
    if format_name not in FORMATS:
        raise InvalidRequest(f"format is {format_name!r}.", f"It must be one of {', '.join(FORMATS)}.")
    read_metadata(source)
    lib = backend.library()
    params = backend.set_fields(
        lib.llama_model_quantize_default_params(),
        ftype=FORMATS[format_name],
        nthread=threads or physical_cores(),
        allow_requantize=True,
        pure=True,
    )
    unfinished = destination.with_name(f"{destination.name}.{os.getpid()}.part")
    backend.lines.forget()
    try:
        with signals_noted():
            code = lib.llama_model_quantize(encoded(source), encoded(unfinished), params)
        if code != 0:
            raise ModelLoadError(
                f"llama.cpp could not requantize {source}: {backend.lines.last_line() or f'code {code}'}.",
                "Check the file and the free disk space.",
                path=str(source),
            )
        unfinished.replace(destination)
    finally:
        unfinished.unlink(missing_ok=True)
