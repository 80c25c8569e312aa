"""The tensor table of a GGUF file: sizes from ggml's number formats, and where each tensor must lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from localspec.gguf.types import TENSOR_TYPES

MAX_DIMS = 4
_NO_WEIGHTS = frozenset({"F64", "I8", "I16", "I64", "Q8_1", "Q8_K"})
"""Formats of intermediate results and tables: llama.cpp ends the process over a weight in one of them."""
_ADDED = ("norm.weight", ".bias", "ssm_a", "ssm_conv1d.weight")
"""Like vectors, these are added or multiplied element by element, which the CPU does in F32 only."""
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
    _check_type(name, shape, type_name)
    num_elements = math.prod(shape)
    if max((*shape, num_elements)) > _MAX_ELEMENTS:
        raise GGUFFault(f"the tensor {name!r} has the absurd shape {list(shape)}")
    row = shape[0] if shape else 1
    if row % block:
        raise GGUFFault(f"the tensor {name!r} has rows of {row} elements, not a multiple of {block}")
    return type_name, num_elements // block * block_bytes


def _check_type(name: str, shape: tuple[int, ...], type_name: str) -> None:
    """Raises GGUFFault for a type that no converter gives such a tensor."""
    if name == "d2t" and type_name == "I64":  # the tokens that an EAGLE-3 head drafts
        return
    is_table = "tid2eid" in name  # of the experts for each token
    if type_name in _NO_WEIGHTS or (type_name == "I32" and not is_table):
        raise GGUFFault(f"the tensor {name!r} has the type {type_name}, which no weights have")
    is_vector = sum(size > 1 for size in shape) < 2
    if type_name != "F32" and not is_table and (is_vector or name.endswith(_ADDED)):
        raise GGUFFault(
            f"the tensor {name!r} has the type {type_name}, and llama.cpp computes it in F32 only"
        )


def check_layout(tensors: Sequence[TensorInfo], alignment: int, *, available: int) -> None:
    """Raises GGUFFault unless the tensors lie one behind the other, as llama.cpp demands, in `available` bytes."""
    expected = 0
    for tensor in tensors:
        if tensor.offset != expected:
            raise GGUFFault(f"the tensor {tensor.name!r} lies at offset {tensor.offset}, not at {expected}")
        end = tensor.offset + tensor.num_bytes
        if end > available:
            missing = end - max(available, 0)
            raise GGUFFault(f"it is cut off {missing} bytes before the end of tensor {tensor.name!r}")
        expected = -(-end // alignment) * alignment
