"""What the compiled llama.cpp can do, found out in a child process."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from localspec.compute.probe import Probe, features_of, probe_in_child, write_notes
from localspec.ggml.product import tried
from localspec.llama import head_calls
from localspec.llama.backend import PACKAGE, library

ENTRY = "localspec.llama.probe:main"


def probe_library(seconds: float) -> Probe:
    """Load the library in a child and ask it; whatever becomes of the child is in the answer."""
    return probe_in_child([ENTRY], seconds)[0]


# In the child


def main(path: str) -> None:
    """The child: load the library as localspec does, and write down what it says of itself."""
    write_notes(path, PACKAGE, library, _asked)


def _asked(llama_cpp: Any) -> Iterator[dict[str, object]]:
    yield {"features": features_of(llama_cpp.llama_print_system_info())}
    yield {"lacks": head_calls.missing()}
    from llama_cpp import _ggml

    ggml = getattr(_ggml, "libggml", None)
    backends, devices = _devices(ggml)
    yield {"backends": backends, "devices": devices}
    if ggml is not None:
        yield from tried(ggml, PACKAGE)


def _devices(ggml: Any) -> tuple[list[str], list[dict[str, object]]]:
    """Compiled-in backends and the devices they see; nothing where this build cannot be asked."""
    try:
        return _listed(ggml)
    except AttributeError:
        return [], []


def _listed(ggml: Any) -> tuple[list[str], list[dict[str, object]]]:
    def texts(name: str) -> Any:
        function = getattr(ggml, name)
        function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_char_p
        return lambda handle: (function(handle) or b"").decode("utf-8", "replace")

    def handles(kind: str) -> list[int]:
        count, get = getattr(ggml, f"ggml_backend_{kind}_count"), getattr(ggml, f"ggml_backend_{kind}_get")
        count.restype, get.argtypes, get.restype = ctypes.c_size_t, [ctypes.c_size_t], ctypes.c_void_p
        return [get(index) for index in range(count())]

    def memory(handle: int) -> tuple[int, int]:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        ask = ggml.ggml_backend_dev_memory
        ask.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        ask.restype = None
        ask(handle, ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    name, description = texts("ggml_backend_dev_name"), texts("ggml_backend_dev_description")
    devices: list[dict[str, object]] = [
        {"name": name(handle), "description": description(handle), "memory": memory(handle)}
        for handle in handles("dev")
    ]
    return [texts("ggml_backend_reg_name")(handle) for handle in handles("reg")], devices
