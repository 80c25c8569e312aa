"""Copies of a sequence's cells, out of a library and back."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from localspec.errors import StateError
from localspec.system.signals import signals_noted


def copied_cells(copy: Callable[[Any, int], int], sequence_id: int, size: int, name: str) -> bytearray:
    """A library's own copy of the cells, `size` bytes. copy: its call, given the place and the size.

    Raises `StateError`.
    """
    cells = bytearray(size)
    place = (ctypes.c_uint8 * size).from_buffer(cells)
    with signals_noted():
        copied = copy(place, size)
    if copied != size:
        raise StateError(
            f"{name} could not copy the cells of sequence {sequence_id}.", "Read the prompt again."
        )
    return cells


def put_cells(put: Callable[[Any, int], int], cells: memoryview) -> bool:
    """Into an empty sequence; whether the library took them. put: its call, given the bytes and their number."""
    source = np.frombuffer(cells, np.uint8)
    pointer = source.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    with signals_noted():
        return put(pointer, len(source)) == len(source)
