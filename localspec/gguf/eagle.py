"""EAGLE-3 heads: files with one layer that drafts from what three layers of a target read."""

from __future__ import annotations

import sys
from array import array
from pathlib import Path

from localspec.gguf.heads import prediction_layers
from localspec.gguf.metadata import Metadata, read_headers
from localspec.gguf.split import further_parts
from localspec.gguf.tensors import TensorInfo

EAGLE3 = "eagle3"
"""The architecture of such a file."""
_NUM_TARGET_LAYERS = 3


def is_eagle(metadata: Metadata) -> bool:
    """Whether the file is such a head."""
    return metadata.architecture == EAGLE3


def target_layers(metadata: Metadata) -> tuple[int, ...]:
    """The layers of the target whose inputs the head reads; () where the file does not name three."""
    found = metadata.numbers.get(f"{EAGLE3}.target_layers", ())
    whole = tuple(one for one in found if isinstance(one, int) and not isinstance(one, bool))
    return whole if len(whole) == len(found) == _NUM_TARGET_LAYERS else ()


def why_not_for(metadata: Metadata, target: Metadata) -> str:
    """Why the head was made for another target, by what both files' key-values say: a clause, or ""."""
    num_layers = target.n_layer - prediction_layers(target)
    layers, width = target_layers(metadata), metadata.key_values.get(f"{EAGLE3}.target_hidden_size")
    if not layers:
        return f"it does not name the {_NUM_TARGET_LAYERS} layers of a target that it reads"
    if not all(0 <= layer < num_layers for layer in layers):
        return f"it reads the layers {', '.join(map(str, layers))}, and the target has {num_layers}"
    if width != target.n_embd:
        return f"it reads {width} numbers of a layer, and the target's have {target.n_embd}"
    return ""


def why_no_eagle(metadata: Metadata, target: Metadata) -> str:
    """Why the head cannot draft for this target, as a clause, or "". Raises `ModelFileError`.

    llama.cpp ends the process on most of these.
    """
    if reason := why_not_for(metadata, target):
        return reason
    if metadata.n_layer != 1:
        return f"it has {metadata.n_layer} layers, and llama.cpp runs one"
    tensors = {tensor.name: tensor for header in read_headers(metadata.path) for tensor in header.tensors}
    embedding, output, ids = (tensors.get(name) for name in ("token_embd.weight", "output.weight", "d2t"))
    if embedding is not None and embedding.shape[-1] < metadata.n_vocab:
        return f"it has embeddings of {embedding.shape[-1]} tokens, and {metadata.n_vocab} tokens"
    if (embedding is None or output is None) and metadata.n_embd != target.n_embd:
        lacking = "embeddings" if embedding is None else "output"
        return (
            f"it has no {lacking} of its own, and is {metadata.n_embd} numbers wide where the target is "
            f"{target.n_embd}"
        )
    if (embedding is None or output is None) and metadata.n_vocab != target.n_vocab:
        return f"it reads the target's tokens, {target.n_vocab}, and has {metadata.n_vocab}"
    if ids is None:
        return ""
    if output is None or ids.type_name != "I64" or ids.shape != output.shape[1:]:
        return "its list of the tokens that it drafts does not fit its output"
    drafted = _numbers(metadata.path, ids)
    if len({*drafted}) < len(drafted) or not 0 <= min(drafted) <= max(drafted) < metadata.n_vocab:
        return "its list of the tokens that it drafts names tokens twice, or others than the vocabulary has"
    return ""


def _numbers(path: Path, wanted: TensorInfo) -> array[int]:
    """The 64-bit numbers of a tensor, from the part of the file that holds it."""
    headers = read_headers(path)
    for part, header in zip([path, *further_parts(path, headers[0])], headers, strict=True):
        if any(tensor.name == wanted.name for tensor in header.tensors):
            found = array("q")
            with part.open("rb") as file:
                file.seek(header.data_offset + wanted.offset)
                found.frombytes(file.read(wanted.num_bytes))
            if sys.byteorder == "big":
                found.byteswap()
            return found
    return array("q", [-1])
