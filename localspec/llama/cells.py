"""Copies of a sequence's cells, out of llama.cpp and back."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from localspec.errors import StateError
from localspec.llama import backend
from localspec.system.signals import signals_noted


def copied_cells(lib: Any, handle: Any, sequence_id: int, size: int) -> bytearray:
    """llama.cpp's own copy of the cells, `size` bytes. Raises `StateError`."""
    cells = bytearray(size)
    place = (ctypes.c_uint8 * size).from_buffer(cells)
    with signals_noted():
        copied = lib.llama_state_seq_get_data(handle, place, size, sequence_id)
    if copied != size:
        raise StateError(
            f"llama.cpp could not copy the cells of sequence {sequence_id}.", "Read the prompt again."
        )
    return cells


def put_cells(lib: Any, handle: Any, sequence_id: int, cells: memoryview) -> None:
    """Into an empty sequence. Raises `StateError` where llama.cpp refuses them."""
    backend.forget_log()
    source = np.frombuffer(cells, np.uint8)
    pointer = source.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    with signals_noted():
        taken = lib.llama_state_seq_set_data(handle, pointer, len(source), sequence_id)
    if taken != len(source):
        raise refused_cells(len(source), "bytes")


def refused_cells(count: int, unit: str = "tokens") -> StateError:
    """The error of a state that llama.cpp does not take."""
    return StateError(
        f"llama.cpp refused a saved state of {count} {unit}: {backend.last_log_line() or 'no reason given'}.",
        "Read the prompt again.",
    )
