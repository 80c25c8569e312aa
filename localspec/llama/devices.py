"""The devices that ggml knows, and functions of it that llama-cpp-python does not declare."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

GPU_KINDS = (1, 2)
"""ggml's numbers of devices with memory of their own, and of those in the processor."""


def function(name: str, result: Any, arguments: Sequence[Any]) -> Any:
    """A function of ggml. Raises `AttributeError` where this build does not export it."""
    from llama_cpp import _ctypes_extensions, _ggml

    try:
        found = _ggml.libggml[name]
    except AttributeError:  # on Windows a library shows nothing of those behind it
        found = _ctypes_extensions.load_shared_library("ggml-base", _ggml.libggml_base_path)[name]
    found.restype, found.argtypes = result, list(arguments)
    return found


def has_gpu() -> bool:
    """Whether there is a GPU that this build can use."""
    by_type = function("ggml_backend_dev_by_type", ctypes.c_void_p, [ctypes.c_int])
    return any(by_type(kind) for kind in GPU_KINDS)
