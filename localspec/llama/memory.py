"""What a context will need, before it is made."""

from __future__ import annotations

from localspec.errors import ModelLoadError
from localspec.llama.context import ContextOptions
from localspec.llama.metadata import Metadata

_BYTES = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32,
    "q4_1": 20 / 32, "q4_0": 18 / 32, "iq4_nl": 18 / 32,
}  # fmt: skip
"""Bytes per element of a cache type, block scales included."""


def kv_cache_bytes(metadata: Metadata, options: ContextOptions) -> int:
    """Bytes the KV cache of `options` takes; 0 for a recurrent model, which holds a small state instead."""
    if metadata.is_recurrent:
        return 0

    def number(name: str, default: int = 0) -> int:
        value = metadata.key_values.get(f"{metadata.architecture}.{name}", default)
        return value if isinstance(value, int) else default

    heads = max(number("attention.head_count"), 1)
    heads_kv = number("attention.head_count_kv", heads)
    head_size = metadata.n_embd // heads
    bytes_k = number("attention.key_length", head_size) * _BYTES[options.cache_type_k]
    bytes_v = number("attention.value_length", head_size) * _BYTES[options.cache_type_v]
    return int(heads_kv * (bytes_k + bytes_v) * metadata.n_layer * options.n_ctx)


def check_memory(metadata: Metadata, options: ContextOptions) -> None:
    """Raise `ModelLoadError` when the KV cache alone exceeds the free memory (a failed reservation may abort)."""
    import psutil

    needed, free = kv_cache_bytes(metadata, options), int(psutil.virtual_memory().available)
    if needed > free:
        raise ModelLoadError(
            f"A context of {options.n_ctx} tokens needs {needed / 1e9:.1f} GB for {metadata.path.name}, "
            f"and {free / 1e9:.1f} GB are free.",
            "Ask for a smaller context or a smaller cache type.",
            path=str(metadata.path),
            needed=needed,
            free=free,
        )
