"""Leaving layers of a model out: which may go, and how much then stays."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from localspec.errors import InvalidRequest, ModelFileError
from localspec.gguf.architectures import ALIKE_LAYERS, ATTENTION_AT_INTERVALS, LAYERS_IN_ORDER
from localspec.gguf.heads import prediction_layers
from localspec.gguf.metadata import Metadata, read_headers

_LAYER = re.compile(r"blk\.(\d+)\.")
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
_WRITE = "Write the layers that stay, counted from 0, such as 0-11 or 0-5,10-11."


def layers_named(text: str) -> tuple[int, ...]:
    """The layers of `0-5,10`, ascending. Raises InvalidRequest for anything else."""
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise InvalidRequest(f"layers is {text!r}.", _WRITE)
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def layers_written(layers: Collection[int]) -> str:
    """The shortest text that names these layers: `0-5,10`."""
    parts: list[list[int]] = []
    for layer in sorted(layers):
        if parts and layer == parts[-1][1] + 1:
            parts[-1][1] = layer
        else:
            parts.append([layer, layer])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def check_layers(metadata: Metadata, layers: Collection[int]) -> None:
    """Whether the model can be cut down to these layers.

    Raises InvalidRequest for layers that it does not have, or for all of them, and ModelFileError where a file without
    the others would be broken.
    """
    count = metadata.n_layer - prediction_layers(metadata)
    if max(layers) >= count:
        raise InvalidRequest(
            f"layers is {layers_written(layers)!r}, and {metadata.path.name} has {count} layers.",
            f"The last is {count - 1}.",
        )
    if len(layers) == count:
        raise InvalidRequest(
            f"layers is {layers_written(layers)!r}: these are all layers of {metadata.path.name}.",
            "Leave some out: a draft must be smaller than its target.",
        )
    if fault := _fault(metadata, layers):
        raise ModelFileError(
            f"{metadata.path} cannot lose layers: {fault}.",
            "Choose a smaller model as the draft.",
            command="Choose a smaller model as the draft: `localspec suggest TARGET` finds one.",
            path=str(metadata.path),
        )


def _fault(metadata: Metadata, layers: Collection[int]) -> str:
    """A clause, or "". A key-value cannot be shortened, and a pattern goes by the number of a layer."""
    architecture = metadata.architecture
    per_layer = [
        key.removeprefix(f"{architecture}.")
        for key, numbers in metadata.numbers.items()
        if key.startswith(f"{architecture}.") and len(numbers) == metadata.n_layer and "sections" not in key
    ]
    if per_layer:
        return f"it states {per_layer[0]} for each layer by itself"
    if architecture in ALIKE_LAYERS:
        return ""
    if architecture not in LAYERS_IN_ORDER:
        return f"what its layers ({architecture}) have of each other is not known"
    interval = metadata.key_values.get(
        f"{architecture}.full_attention_interval", ATTENTION_AT_INTERVALS.get(architecture, 1)
    )
    if isinstance(interval, int) and len(layers) < interval:
        return f"only one of {interval} layers has attention, and one such must stay"
    if max(layers) >= len(layers):
        return f"its layers ({architecture}) are of several kinds, by their place; only the last ones can go"
    return ""


def bytes_with(path: Path, layers: Collection[int]) -> int:
    """Bytes of the tensors that stay where only these layers do. Raises `ModelFileError`."""
    tensors = [tensor for header in read_headers(path) for tensor in header.tensors]
    places = [_LAYER.match(tensor.name) for tensor in tensors]
    return sum(
        tensor.num_bytes
        for tensor, place in zip(tensors, places, strict=True)
        if place is None or int(place[1]) in layers
    )
