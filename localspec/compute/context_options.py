"""Sizes and types of a context, checked before a compute library sees them."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.checks import check_count, shown
from localspec.errors import InvalidRequest

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""Element types of a KV cache, by ggml's names. A library may know fewer."""


@dataclass(frozen=True)
class ContextOptions:
    """Sizes and types of a context.

    n_ctx:   cells, shared by all sequences.        n_batch:   tokens in one pass, at most.
    separate: each sequence has cells of its own instead, an even part of them: where its tokens lie, and with that how
        their sums are rounded, then depends on no other.
    n_outputs: logit rows of one pass, at most.     threads:   CPU threads (None: physical cores).
    cache_type_k, cache_type_v: element types of the KV cache, names of `CACHE_TYPES`.
    spare:   cells beyond n_ctx, for what only makes a pass wider.
    snapshots: states behind the last tokens of a pass that are kept of a running state, where the library can do that.
    hidden_states: keep the hidden state of each cell, for a head (`Headed.open_head`).
    layer_inputs: layers whose inputs are kept of each cell in the place of that, for an EAGLE-3 head.
    """

    n_ctx: int = 4096
    n_batch: int = 512
    n_outputs: int = 32
    n_sequences: int = 1
    separate: bool = False
    threads: int | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    spare: int = 0
    snapshots: int = 0
    hidden_states: bool = False
    layer_inputs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("n_ctx", "n_batch", "n_outputs", "n_sequences"):
            check_count(name, getattr(self, name))
        if self.threads is not None:
            check_count("threads", self.threads, high=1024)
        for name in ("cache_type_k", "cache_type_v"):
            if not isinstance(value := getattr(self, name), str) or value not in CACHE_TYPES:
                raise InvalidRequest(
                    f"{name} is {shown(value)}.", f"It must be one of {', '.join(CACHE_TYPES)}."
                )


@dataclass(frozen=True)
class StrictForm:
    """Settings under which passes of different widths can compute the same bits."""

    cache_type_k: str
    cache_type_v: str
    repack: bool
