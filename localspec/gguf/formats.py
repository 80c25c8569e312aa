"""Which number formats a file's weights are in, and how large they would be in another."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from localspec.gguf.metadata import read_headers, read_metadata
from localspec.gguf.types import TENSOR_TYPES


def elements_by_type(path: Path) -> Mapping[str, int]:
    """How many weights the model holds in each number format, by ggml's names. Raises `ModelFileError`."""
    read_metadata(path)
    counts: Counter[str] = Counter()
    for header in read_headers(path):
        for tensor in header.tensors:
            counts[tensor.type_name] += math.prod(tensor.shape)
    return counts


def bytes_of_pass(path: Path) -> int:
    """Bytes of weights that a pass over one token reads. Raises `ModelFileError`.

    Of the embeddings it reads one row, where the output has a matrix of its own. Experts count as if all were used.
    """
    tensors = {tensor.name: tensor.num_bytes for header in read_headers(path) for tensor in header.tensors}
    embeddings = tensors.get("token_embd.weight", 0) if "output.weight" in tensors else 0
    return sum(tensors.values()) - embeddings


def bytes_in_format(num_elements: int, format_name: str) -> int:
    """Bytes that `num_elements` weights take in a format, by ggml's name. Raises KeyError for an unknown one."""
    sizes = {name: (block, size) for name, block, size in TENSOR_TYPES.values()}
    block, size = sizes[format_name.upper()]
    return num_elements * size // block
