"""What the cells of one sequence hold, as bytes and back."""

from __future__ import annotations

import ctypes

from localspec.llama.context import Context


def save_state(context: Context, sequence: int = 0) -> bytes:
    """The cells of a sequence; some kilobytes for each token. b"" where llama.cpp gives none."""
    lib, handle = context.library, context.handle
    size = int(lib.llama_state_seq_get_size(handle, sequence))
    buffer = (ctypes.c_ubyte * size)()
    written = int(lib.llama_state_seq_get_data(handle, buffer, size, sequence))
    return bytes(memoryview(buffer)[:written])


def load_state(context: Context, data: bytes, sequence: int = 0) -> bool:
    """Put saved cells in the place of what the sequence holds; False, and an empty sequence, where they do not fit."""
    lib, handle = context.library, context.handle
    context.truncate(sequence, 0)
    buffer = (ctypes.c_ubyte * len(data)).from_buffer_copy(data)
    if data and int(lib.llama_state_seq_set_data(handle, buffer, len(data), sequence)):
        return True
    context.truncate(sequence, 0)
    return False
