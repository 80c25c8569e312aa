"""Prediction layers: the last layers of a file, which do not compute the model's own tokens but guess further ones."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.gguf.metadata import Metadata, read_headers


def prediction_layers(metadata: Metadata) -> int:
    """How many the file says it has, among its `block_count` layers: all of an EAGLE-3 head's."""
    if metadata.architecture == "eagle3":
        return metadata.n_layer
    count = metadata.key_values.get(f"{metadata.architecture}.nextn_predict_layers", 0)
    return count if isinstance(count, int) and 0 < count <= metadata.n_layer else 0


@dataclass(frozen=True)
class Layers:
    """Which layers' tensors are in a file: its own, and those that predict, each with the tensors' names.

    num_bytes: of the first of those that predict, and of the matrix that makes logits: what one guess reads.
    """

    has_trunk: bool
    predicting: tuple[frozenset[str], ...]
    num_bytes: int


def layers_in(metadata: Metadata) -> Layers:
    """Reads the headers of the file's parts again (milliseconds). Raises `ModelFileError`.

    A file may say that it has prediction layers and leave them to another one, or hold nothing else.
    """
    sizes = {
        tensor.name: tensor.num_bytes for header in read_headers(metadata.path) for tensor in header.tensors
    }
    first = metadata.n_layer - prediction_layers(metadata)
    blocks: dict[int, dict[str, int]] = {}
    for name, size in sizes.items():
        if name.startswith("blk."):
            _, number, rest = name.split(".", 2)
            blocks.setdefault(int(number) if number.isdigit() else -1, {})[rest] = size
    predicting = [blocks.get(layer, {}) for layer in range(first, metadata.n_layer)]
    read = dict(predicting[0]) if predicting else {}
    read.pop("nextn.embed_tokens.weight", None)  # of which one row is read
    if "nextn.shared_head_head.weight" not in read:
        read["output"] = sizes.get("output.weight", sizes.get("token_embd.weight", 0))
    has_trunk = any(0 <= layer < first for layer in blocks)
    return Layers(has_trunk, tuple(map(frozenset, predicting)), sum(read.values()))


def why_of_another(target: Metadata, head: Metadata) -> str:
    """Why the prediction layers of one file cannot belong to the model of another, as a clause, or ""."""
    for name, ours, theirs in (
        ("architecture", target.architecture, head.architecture),
        ("width", target.n_embd, head.n_embd),
    ):
        if ours != theirs:
            return f"its {name} is {theirs}, and the target's {ours}"
    return ""


def is_head_alone(metadata: Metadata) -> bool:
    """Whether the file holds prediction layers and not the model that they belong to. Raises `ModelFileError`."""
    return prediction_layers(metadata) > 0 and not layers_in(metadata).has_trunk
