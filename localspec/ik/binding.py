"""Start-up of ik_llama.cpp: the shared library that ik-llama-cpp-python carries, its functions, its log.

Of the package's Python nothing is used or imported but where it lies.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from localspec.errors import BackendError
from localspec.ggml.callbacks import LoadingGate, NativeLog, log_callback, silence
from localspec.ik import structs
from localspec.ik.structs import BOOL, I32, POINTER, U32
from localspec.system import packages
from localspec.system.at_exit import close_before_library
from localspec.system.signals import signals_noted

PACKAGE, MODULE = "ik-llama-cpp-python", "ik_llama_cpp"
TESTED = "0.1.5"
"""The one version of the package: its structures are read without a header."""
REQUIREMENT = f"'{PACKAGE}=={TESTED}'"

CACHE_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2, "q4_1": 3, "iq4_nl": 20}
"""ggml's numbers of the element types that its attention has kernels for, K and V in any two of them. Others end the
process at the first pass: f32, q5_0, q5_1, and bf16 but on processors that it was compiled for."""

lines, gate = NativeLog(logging.getLogger("localspec.ik")), LoadingGate()
"""What ik_llama.cpp says, and what ends its loads."""

_U8, _FLOATS, _SIZE = ctypes.POINTER(ctypes.c_uint8), ctypes.POINTER(ctypes.c_float), ctypes.c_size_t
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "llama_backend_init": (None, []),
    "llama_log_set": (None, [structs.LogCallback, POINTER]),
    "llama_print_system_info": (ctypes.c_char_p, []),
    "llama_model_default_params": (structs.ModelParams, []),
    "llama_context_default_params": (structs.ContextParams, []),
    "llama_model_load_from_file": (POINTER, [ctypes.c_char_p, structs.ModelParams]),
    "llama_free_model": (None, [POINTER]),
    "llama_n_vocab": (I32, [POINTER]),
    "llama_model_has_recurrent": (BOOL, [POINTER]),
    "llama_init_from_model": (POINTER, [POINTER, structs.ContextParams]),
    "llama_free": (None, [POINTER]),
    "llama_set_n_threads": (None, [POINTER, U32, U32]),
    "llama_set_abort_callback": (None, [POINTER, structs.AbortCallback, POINTER]),
    "llama_batch_init": (structs.Batch, [I32, I32, I32]),
    "llama_batch_free": (None, [structs.Batch]),
    "llama_decode": (I32, [POINTER, structs.Batch]),
    "llama_synchronize": (None, [POINTER]),
    "llama_get_logits_ith": (_FLOATS, [POINTER, I32]),
    "llama_kv_cache_defrag": (None, [POINTER]),
    "llama_kv_cache_update": (I32, [POINTER]),
    "llama_kv_cache_view_init": (structs.CacheView, [POINTER, I32]),
    "llama_kv_cache_view_update": (None, [POINTER, ctypes.POINTER(structs.CacheView)]),
    "llama_kv_cache_view_free": (None, [ctypes.POINTER(structs.CacheView)]),
    "llama_kv_cache_seq_cp": (None, [POINTER, I32, I32, I32, I32]),
    "llama_kv_cache_seq_rm": (BOOL, [POINTER, I32, I32, I32]),
    "llama_kv_cache_seq_pos_min": (I32, [POINTER, I32]),
    "llama_kv_cache_seq_pos_max": (I32, [POINTER, I32]),
    "llama_state_seq_get_size": (_SIZE, [POINTER, I32, U32]),
    "llama_state_seq_get_data": (_SIZE, [POINTER, _U8, _SIZE, I32, U32]),
    "llama_state_seq_set_data": (_SIZE, [POINTER, _U8, _SIZE, I32, U32]),
}

_start = threading.Lock()
_keep: list[Any] = []  # C holds these callbacks for the life of the process


def library() -> Any:
    """The loaded library. Raises `BackendError` where it is missing, or not of the one tested version and shape."""
    with _start:
        return _load()


@cache
def _load() -> Any:
    if (found := version()) != TESTED:
        raise BackendError(
            f"{PACKAGE} {found} is installed; localspec is tested with {TESTED} alone.",
            packages.replace("Install that version", REQUIREMENT),
            version=found,
        )
    path = _path()
    try:
        if sys.platform == "win32":
            _keep.append(os.add_dll_directory(str(path.parent)))
        with signals_noted():
            lib = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise BackendError(
            f"{PACKAGE} could not load its library: {error}.",
            packages.replace("Reinstall it", REQUIREMENT, "--force-reinstall"),
        ) from error
    _check_shape(lib)
    _keep.append(log_callback(structs.LogCallback, lines, gate))
    lib.llama_log_set(_keep[-1], None)
    with signals_noted():
        lib.llama_backend_init()
    close_before_library(lambda: silence(lib, structs.LogCallback))
    return lib


def _path() -> Path:
    """Of the shared library. The package is looked for and not imported, which would load it under its own rules."""
    spec = find_spec(MODULE)
    names = {"win32": "llama.dll", "darwin": "libllama.dylib"}
    name = names.get(sys.platform, "libllama.so")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / "lib" / name).is_file():
            return path
    raise BackendError(
        f"{PACKAGE} has no {name} where its package lies.",
        packages.replace("Reinstall it", REQUIREMENT, "--force-reinstall"),
    )


def version() -> str:
    """Of ik-llama-cpp-python. Raises `BackendError` where it is not installed."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError as error:
        raise BackendError(f"{PACKAGE} is not installed.", packages.install(REQUIREMENT)) from error


def build() -> str:
    """The package with its version, which pins ik_llama.cpp's. Raises `BackendError`."""
    return f"{PACKAGE} {version()}"


def _check_shape(lib: Any) -> None:
    """A shifted field shows in known defaults."""
    for params, expected in (
        (lib.llama_model_default_params(), structs.MODEL_DEFAULTS),
        (lib.llama_context_default_params(), structs.CONTEXT_DEFAULTS),
    ):
        for name, value in expected.items():
            if (found := getattr(params, name)) != value:
                raise BackendError(
                    f"{PACKAGE} has an unknown parameter layout: {name} is {found!r}.",
                    packages.replace("Reinstall it", REQUIREMENT, "--force-reinstall"),
                )
