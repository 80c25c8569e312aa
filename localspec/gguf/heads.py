"""Prediction layers: the last layers of a file, which do not compute the model's own tokens but guess further ones."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.gguf.metadata import Metadata, read_headers


def prediction_layers(metadata: Metadata) -> int:
    """How many the file says it has, among its `block_count` layers."""
    count = metadata.key_values.get(f"{metadata.architecture}.nextn_predict_layers", 0)
    return count if isinstance(count, int) and 0 < count <= metadata.n_layer else 0


@dataclass(frozen=True)
class Layers:
    """Which layers' tensors are in a file: its own, and those that predict, each with the tensors' names."""

    has_trunk: bool
    predicting: tuple[frozenset[str], ...]

    @property
    def has_heads(self) -> bool:
        """Whether any tensor of the prediction layers is there."""
        return any(self.predicting)


def layers_in(metadata: Metadata) -> Layers:
    """Reads the headers of the file's parts again (milliseconds). Raises `ModelFileError`.

    A file may say that it has prediction layers and leave them to another one, or hold nothing else.
    """
    names = [tensor.name for header in read_headers(metadata.path) for tensor in header.tensors]
    first = metadata.n_layer - prediction_layers(metadata)
    blocks: dict[int, set[str]] = {}
    for name in names:
        if name.startswith("blk."):
            _, number, rest = name.split(".", 2)
            blocks.setdefault(int(number) if number.isdigit() else -1, set()).add(rest)
    predicting = tuple(frozenset(blocks.get(layer, ())) for layer in range(first, metadata.n_layer))
    return Layers(any(0 <= layer < first for layer in blocks), predicting)
