"""llama.cpp's calls for prediction layers.

They are no part of its stable interface: what this build lacks is found out before they are used.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

from localspec.errors import BackendError
from localspec.llama import backend
from localspec.system import packages

MTP = 1
"""The type of a context that runs prediction layers (enum llama_context_type)."""


@cache
def missing() -> str:
    """What this build lacks, as a clause, or ""."""
    try:
        calls()
    except BackendError as error:
        return error.message.rstrip(".")
    return ""


@dataclass(frozen=True)
class Calls:
    """set_states(context, on, masked); states(context) -> all rows; state(context, i) -> that of an output row;
    set_layer(context, offset)."""

    set_states: Any
    states: Any
    state: Any
    set_layer: Any


@cache
def layer_inputs_missing() -> str:
    """What this build lacks to read the inputs of layers, as a clause, or ""."""
    try:
        layer_inputs()
    except BackendError as error:
        return error.message.rstrip(".")
    return ""


@dataclass(frozen=True)
class LayerInputs:
    """keep(context, layer, on); rows(context, layer) -> one for each token of the latest pass."""

    keep: Any
    rows: Any


@cache
def layer_inputs() -> LayerInputs:
    """Those of the library that is loaded. Raises `BackendError` naming what it lacks."""
    lib = getattr(getattr(backend.library(), "llama_cpp", None), "_lib", None)
    pointer, layer, floats = ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_float)
    return LayerInputs(
        _call(lib, "llama_set_embeddings_layer_inp", "jb", [pointer, layer, ctypes.c_bool], None),
        _call(lib, "llama_get_embeddings_layer_inp", "j", [pointer, layer], floats),
    )


@cache
def calls() -> Calls:
    """Those of the library that is loaded. Raises `BackendError` naming what it lacks."""
    lib = getattr(getattr(backend.library(), "llama_cpp", None), "_lib", None)
    pointer, floats = ctypes.c_void_p, ctypes.POINTER(ctypes.c_float)
    return Calls(
        _call(lib, "llama_set_embeddings_nextn", "bb", [pointer, ctypes.c_bool, ctypes.c_bool], None),
        _call(lib, "llama_get_embeddings_nextn", "", [pointer], floats),
        _call(lib, "llama_get_embeddings_nextn_ith", "i", [pointer, ctypes.c_int32], floats),
        _call(lib, "llama_set_nextn_layer_offset", "i", [pointer, ctypes.c_int32], None),
    )


_MICROSOFT = {"": "", "i": "H", "bb": "_N1", "j": "I", "jb": "I_N"}
"""How its compiler spells the arguments behind the context, and what comes back."""


def _call(lib: Any, name: str, arguments: str, argtypes: list[Any], restype: Any) -> Any:
    """A C++ function, whose name in the library depends on the compiler."""
    result = "PEAM" if restype else "X"
    spelled = (
        name,
        f"_Z{len(name)}{name}P13llama_context{arguments}",
        f"?{name}@@YA{result}PEAUllama_context@@{_MICROSOFT[arguments]}@Z",
    )
    for one in spelled:
        if (function := getattr(lib, one, None)) is not None:
            function.argtypes, function.restype = argtypes, restype
            return function
    raise BackendError(
        f"This build of {backend.PACKAGE} lacks {name}, which drafting from what a target computes needs.",
        packages.replace("Install a tested version", f"'{backend.PACKAGE}=={backend.TESTED[0]}'"),
    )
