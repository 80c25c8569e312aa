"""Write a GGUF anew: in another format, or without some of its layers."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from localspec.errors import InvalidRequest, ModelLoadError
from localspec.ggml.weights import encoded
from localspec.gguf.layers import check_layers
from localspec.gguf.metadata import Metadata, read_metadata
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
    _write(
        source,
        destination,
        "requantize",
        ftype=FORMATS[format_name],
        nthread=threads or physical_cores(),
        allow_requantize=True,
        pure=True,
    )


def keep_layers(source: Path, destination: Path, layers: Collection[int]) -> None:
    """Write `source` to `destination` with these layers only, each number as it was.

    The layers that stay are counted anew; those that only draft (`nextn_predict_layers`) go. The file appears under its
    name only when it is whole. Raises `ModelFileError`, `InvalidRequest` or `ModelLoadError`.
    """
    metadata = read_metadata(source)
    check_layers(metadata, layers)
    gone = [layer for layer in range(metadata.n_layer) if layer not in layers]
    _write(
        source,
        destination,
        "cut down",
        only_copy=True,
        nthread=1,
        prune_layers=(ctypes.c_int * (len(gone) + 1))(*gone, -1),
        **_without_heads(metadata),
    )


def _without_heads(metadata: Metadata) -> dict[str, Any]:
    """The key that counts the layers which only draft, set to 0 where it is not."""
    key = f"{metadata.architecture}.nextn_predict_layers"
    if not metadata.key_values.get(key):
        return {}
    kinds = backend.library()
    overrides = (kinds.llama_model_kv_override * 2)()  # the second has no key: it ends the list
    overrides[0].tag, overrides[0].key = kinds.LLAMA_KV_OVERRIDE_TYPE_INT, key.encode()
    overrides[0].value.val_i64 = 0
    return {"kv_overrides": overrides}


def _write(source: Path, destination: Path, what: str, **values: object) -> None:
    """what: as in "llama.cpp could not requantize it". Raises `ModelLoadError`."""
    lib = backend.library()
    params = backend.set_fields(lib.llama_model_quantize_default_params(), **values)
    unfinished = destination.with_name(f"{destination.name}.{os.getpid()}.part")
    backend.lines.forget()
    try:
        with signals_noted():
            code = lib.llama_model_quantize(encoded(source), encoded(unfinished), params)
        if code != 0:
            raise ModelLoadError(
                f"llama.cpp could not {what} {source}: {backend.lines.last_line() or f'code {code}'}.",
                "Check the file and the free disk space.",
                path=str(source),
            )
        unfinished.replace(destination)
    finally:
        unfinished.unlink(missing_ok=True)
