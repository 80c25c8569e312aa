"""The running state of recurrent and hybrid models: which layers hold one, and how many bytes it takes."""

from __future__ import annotations

from localspec.gguf.architectures import (
    DELTA_NET,
    KIMI_DELTA,
    ONE_KIND_A_LAYER,
    RWKV,
    SHORT_CONVOLUTION,
    SNAPSHOTS,
    UNGROUPED,
    UNKNOWN_STATE,
)
from localspec.gguf.metadata import Metadata

_F32 = 4
_INTERVAL = 4
"""Of the layers with attention in a gated delta net, where the file does not say it."""


def keeps_snapshots(metadata: Metadata) -> bool:
    """Whether llama.cpp can keep the state behind each of the last tokens of a pass."""
    return metadata.architecture in SNAPSHOTS


def recurrent_layers(metadata: Metadata) -> int:
    """Layers that hold a running state, as far as the file says."""
    count = metadata.n_layer - _number(metadata, "nextn_predict_layers")
    if metadata.is_recurrent or metadata.architecture == "falcon-h1":  # whose layers hold both
        return count
    if not metadata.is_hybrid:
        return 0
    if metadata.architecture in DELTA_NET:
        interval = _number(metadata, "full_attention_interval", _INTERVAL)
        return sum((layer + 1) % max(interval, 1) != 0 for layer in range(count))
    heads, widths = map(metadata.per_layer, ("attention.head_count_kv", "feed_forward_length"))
    either = metadata.architecture in ONE_KIND_A_LAYER
    return sum(not head and not (either and width) for head, width in zip(heads, widths, strict=True))


def state_bytes(metadata: Metadata) -> int:
    """Bytes of one running state, as llama.cpp keeps it (float32); 0 without one, or where its form is not known."""
    return _F32 * recurrent_layers(metadata) * _numbers_of_a_layer(metadata)


def _numbers_of_a_layer(metadata: Metadata) -> int:
    """llama.cpp's `n_embd_r` and `n_embd_s`: what the convolution looks back at, and the state itself."""
    kernel = max(_number(metadata, "ssm.conv_kernel") - 1, 0)
    if metadata.architecture in UNKNOWN_STATE:
        return 0
    if metadata.architecture in RWKV:
        return metadata.n_embd * (
            _number(metadata, "token_shift_count", 2) + _number(metadata, "wkv.head_size")
        )
    if metadata.architecture in SHORT_CONVOLUTION:
        return metadata.n_embd * max(_number(metadata, "shortconv.l_cache") - 1, 0)
    if metadata.architecture in KIMI_DELTA:
        heads, head = max(*metadata.per_layer("attention.head_count"), 1), _number(metadata, "kda.head_dim")
        return heads * head * (3 * kernel + head)
    inner, state = _number(metadata, "ssm.inner_size"), _number(metadata, "ssm.state_size")
    groups = 0 if metadata.architecture in UNGROUPED else _number(metadata, "ssm.group_count")
    return kernel * (inner + 2 * groups * state) + state * inner


def _number(metadata: Metadata, name: str, default: int = 0) -> int:
    value = metadata.key_values.get(f"{metadata.architecture}.{name}", default)
    return value if isinstance(value, int) else default
