"""The tensor table of a GGUF file: sizes from ggml's number formats, and where each tensor must lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from localspec.llama.ggml_types import TENSOR_TYPES

MAX_DIMS = 4
_MAX_ELEMENTS = (1 << 63) - 1


class GGUFFault(Exception):
    """What is wrong with a file's bytes: one clause, without the path."""


@dataclass(frozen=True)
class TensorInfo:
    """One row of the table. shape: fastest axis first. offset: bytes from the start of the data."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    num_bytes: int


def tensor_size(name: str, shape: tuple[int, ...], kind: int) -> tuple[str, int]:
    """Type name and size in bytes of a tensor of type code `kind`. Raises GGUFFault."""
    if kind not in TENSOR_TYPES:
        raise GGUFFault(f"the tensor {name!r} has the unknown type {kind}")
    type_name, block, block_bytes = TENSOR_TYPES[kind]
    num_elements = math.prod(shape)
    if max((*shape, num_elements)) > _MAX_ELEMENTS:
        raise GGUFFault(f"the tensor {name!r} has the absurd shape {list(shape)}")
    row = shape[0] if shape else 1
    if row % block:
        raise GGUFFault(f"the tensor {name!r} has rows of {row} elements, not a multiple of {block}")
    return type_name, num_elements // block * block_bytes


def check_layout(tensors: Sequence[TensorInfo], alignment: int, *, available: int) -> None:
    """The tensors lie one behind the other, as llama.cpp demands, within the `available` bytes of data.

    Raises GGUFFault.
    """
    expected = 0
    for tensor in tensors:
        if tensor.offset != expected:
            raise GGUFFault(f"the tensor {tensor.name!r} lies at offset {tensor.offset}, not at {expected}")
        end = tensor.offset + tensor.num_bytes
        if end > available:
            missing = end - max(available, 0)
            raise GGUFFault(f"it is cut off {missing} bytes before the end of tensor {tensor.name!r}")
        expected = -(-end // alignment) * alignment
