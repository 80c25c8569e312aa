"""A small matrix product on two threads: it shows what loading does not, such as two OpenMP runtimes at odds."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from localspec.system import packages

_ROWS, _WIDTH, _THREADS = 64, 256, 2
_VALUES = 1.0, 2.0, 2.0
"""Of all elements of both factors, and their product."""
_MEMORY = 16 << 20
_F32 = 0


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def tried(lib: Any, package: str) -> Iterator[dict[str, object]]:
    """For the notes of a probe: that it computes now, and an error where it computes wrong numbers."""
    yield {"stage": "compute"}
    if not computes(lib):
        yield {
            "error": (
                f"{package} computes wrong numbers on this machine.",
                packages.mend(f"Reinstall {package}.", package),
            )
        }


def computes(lib: Any) -> bool:
    """Whether the product comes out right; also True where this build does not export what it takes.

    lib: a loaded library, for whose functions ctypes looks in those that it needs too.
    """
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    functions: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "ggml_init": (pointer, (_InitParams,)),
        "ggml_free": (None, (pointer,)),
        "ggml_new_tensor_2d": (pointer, (pointer, ctypes.c_int, size, size)),
        "ggml_set_f32": (pointer, (pointer, ctypes.c_float)),
        "ggml_mul_mat": (pointer, (pointer, pointer, pointer)),
        "ggml_new_graph": (pointer, (pointer,)),
        "ggml_build_forward_expand": (None, (pointer, pointer)),
        "ggml_graph_compute_with_ctx": (ctypes.c_int, (pointer, pointer, ctypes.c_int)),
        "ggml_get_data": (pointer, (pointer,)),
    }
    try:
        prototypes = {name: ctypes.CFUNCTYPE(*kinds[:1], *kinds[1]) for name, kinds in functions.items()}
        call = {name: prototype((name, lib)) for name, prototype in prototypes.items()}
    except AttributeError:
        return True
    context = call["ggml_init"](_InitParams(_MEMORY, None, False))
    factors = [call["ggml_new_tensor_2d"](context, _F32, _WIDTH, _ROWS) for _ in range(2)]
    for factor, value in zip(factors, _VALUES[:2], strict=True):
        call["ggml_set_f32"](factor, value)
    product, graph = call["ggml_mul_mat"](context, *factors), call["ggml_new_graph"](context)
    call["ggml_build_forward_expand"](graph, product)
    code = call["ggml_graph_compute_with_ctx"](context, graph, _THREADS)
    found = (ctypes.c_float * (_ROWS * _ROWS)).from_address(call["ggml_get_data"](product))
    right = code == 0 and all(value == _VALUES[2] * _WIDTH for value in found)
    call["ggml_free"](context)
    return right
