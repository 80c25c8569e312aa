"""Requantize a GGUF into another format."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from localspec.errors import InvalidRequest, ModelLoadError
from localspec.llama import backend
from localspec.llama.ggml_types import TENSOR_TYPES
from localspec.llama.metadata import read_headers, read_metadata
from localspec.llama.model import encode_path

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
        nthread=threads or backend.physical_cores(),
        allow_requantize=True,
        pure=True,
    )
    unfinished = destination.with_name(f"{destination.name}.{os.getpid()}.part")
    backend.forget_log()
    try:
        code = lib.llama_model_quantize(encode_path(source), encode_path(unfinished), params)
        if code != 0:
            raise ModelLoadError(
                f"llama.cpp could not requantize {source}: {backend.last_log_line() or f'code {code}'}.",
                "Check the file and the free disk space.",
                path=str(source),
            )
        unfinished.replace(destination)
    finally:
        unfinished.unlink(missing_ok=True)


def elements_by_type(path: Path) -> Mapping[str, int]:
    """How many weights the model holds in each number format, by ggml's names. Raises `ModelFileError`."""
    read_metadata(path)
    counts: Counter[str] = Counter()
    for header in read_headers(path):
        for tensor in header.tensors:
            counts[tensor.type_name] += math.prod(tensor.shape)
    return counts


def bytes_in_format(num_elements: int, format_name: str) -> int:
    """What that many weights take in the format."""
    sizes = {name: (block, size) for name, block, size in TENSOR_TYPES.values()}
    block, size = sizes[format_name.upper()]
    return num_elements * size // block
