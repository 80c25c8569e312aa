"""How fast models should run here that were never measured here, and what these estimates assume."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from localspec.engine.libraries import preferred
from localspec.engine.measured_costs import measured_passes
from localspec.errors import LocalspecError
from localspec.gguf.metadata import Metadata
from localspec.pairs.catalogue import pairs
from localspec.system.bandwidth import read_bandwidth

READ_ALOUD = 5.0
"""Tokens per second below which an answer is slower than somebody who reads it aloud."""
EFFICIENCY = 0.7
"""Assumed share of the memory's bandwidth that decoding gets: 4-bit files had 0.7 to 0.8 on two kinds of machine."""

CLOSE, DOUBLING, STRANGER = 0.8, 0.05, 0.1
"""Assumed acceptance of a draft with half the target's weights; what it loses each time the draft is half as large,
and as one of another family. The default pair (a third of the weights) was measured at 0.74 to 0.85 on code."""
LEAST_ACCEPTANCE = 0.3
LOW_BITS = {"Q3": 0.03, "IQ3": 0.03, "Q2": 0.1, "IQ2": 0.1, "TQ2": 0.15, "IQ1": 0.2, "TQ1": 0.2}
"""Assumed loss of acceptance by the format of the draft; formats of four bits and more lose none."""


@dataclass(frozen=True)
class Speed:
    """Tokens per second of plain decoding. basis: "this model", "another model" (measured here), or "memory"."""

    tokens_per_second: float
    basis: str

    @property
    def is_readable(self) -> bool:
        """Whether an answer comes as fast as it is read aloud."""
        return self.tokens_per_second >= READ_ALOUD


def weights(model: Metadata, *, read: bool = False) -> int:
    """How many weights its layers have; with `read`, only those that one token needs (of its experts, those used).

    0 where the header does not say enough. Exact for plain attention; near enough for a comparison elsewhere.
    """
    width, heads = model.n_embd, _key(model, "attention.head_count")
    if not heads:
        return 0
    head = _key(model, "attention.key_length") or width // heads
    attention = width * head * 2 * (heads + (_key(model, "attention.head_count_kv") or heads))
    experts = _key(model, "expert_used_count" if read else "expert_count")
    wide = _key(model, "feed_forward_length")
    if experts:
        wide = experts * (_key(model, "expert_feed_forward_length") or wide)
    return model.n_layer * (attention + 3 * width * wide)


def bytes_read(model: Metadata) -> float:
    """Bytes of the file that a pass over one token reads."""
    every = weights(model)
    return model.size_bytes * (weights(model, read=True) / every if every else 1.0)


def assumed_acceptance(target: Metadata, draft: Metadata, *, vouched: bool) -> float:
    """How often drafted tokens should stand, from size, family and format. vouched: the catalogue pairs them."""
    ours, theirs = weights(target, read=True), weights(draft, read=True)
    halvings = math.log2(ours / (2 * theirs)) if ours and theirs else 0.0
    related = vouched or _family(target) == _family(draft)
    format_ = draft.file_type.partition("_")[0]
    assumed = (
        CLOSE - DOUBLING * max(halvings, 0.0) - (0.0 if related else STRANGER) - LOW_BITS.get(format_, 0.0)
    )
    return max(assumed, LEAST_ACCEPTANCE)


class Speeds:
    """Expected speeds of models on this machine, from what was measured here as a target, else from memory.

    bandwidth: measures the bytes a second that memory gives; called once, if at all.
    """

    def __init__(self, home: Path | None = None, bandwidth: Callable[[], float] = read_bandwidth) -> None:
        self._measured = measured_passes(home)
        self._measure = bandwidth

    def of(self, model: Metadata) -> Speed | None:
        """Its expected speed; None where a GPU computes and nothing was measured."""
        seconds = self._measured.get((model.path.name, model.size_bytes))
        if seconds is not None:
            return Speed(1 / seconds, "this model")
        if self._rates:
            size = bytes_read(model)
            near = min(self._rates, key=lambda measured: abs(math.log(measured / size)))
            return Speed(self._rates[near] / size, "another model")
        if self._bandwidth is None:
            return None
        return Speed(EFFICIENCY * self._bandwidth / bytes_read(model), "memory")

    @cached_property
    def _rates(self) -> Mapping[float, float]:
        """Bytes read by a pass of each measured model -> bytes a second."""
        known = {(file.file, file.bytes): file.outline for pair in pairs() for file in pair.files}
        found = {}
        for (name, size), seconds in self._measured.items():
            outline = known.get((name, size))
            read = float(size) if outline is None else bytes_read(outline)
            found[read] = read / seconds
        return found

    @cached_property
    def _bandwidth(self) -> float | None:
        try:
            on_gpu = preferred().resolve_gpu_layers("auto") > 0
        except LocalspecError:  # no library: what it would do on a processor is still worth saying
            on_gpu = False
        return None if on_gpu else self._measure()


def _family(model: Metadata) -> str:
    return model.architecture.removesuffix("moe")


def _key(model: Metadata, name: str) -> int:
    value = model.key_values.get(f"{model.architecture}.{name}", 0)
    return value if isinstance(value, int) else 0
