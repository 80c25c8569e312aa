"""Tiny recurrent and hybrid models that llama.cpp, and some of them ik_llama.cpp, really compute.

Two files of the same `seed`, one with some `noise`, are a target and a draft that agree now and then; without noise
they always do, and with another seed hardly ever.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from localspec.gguf.architectures import DELTA_NET
from tests.tinyarch import TinyFile, header_only, wanted_tensors
from tests.tinygguf import CHATML, NORMAL, byte_vocab

SNAPSHOTS, REPLAY, RECURRENT = "qwen35", "granitehybrid", "mamba"
"""A gated delta net, whose snapshots llama.cpp keeps; a hybrid with Mamba, and Mamba alone, which it does not."""
KINDS = (SNAPSHOTS, REPLAY, RECURRENT)
N_CTX = 512
_OPTIONAL = ("scale", "attn_q.bias", "attn_k.bias", "attn_v.bias")
"""Tensors that files of these models do not have."""
_SHAPE = (
    "block_count", "full_attention_interval", "ssm.conv_kernel", "ssm.group_count", "ssm.inner_size", "ssm.state_size",
    "ssm.time_step_rank",
)  # fmt: skip
"""Keys that tensors go by."""
_DELTA_KEYS = (
    "attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "block_count",
    "context_length", "embedding_length", "expert_count", "expert_feed_forward_length",
    "expert_shared_feed_forward_length", "expert_used_count", "feed_forward_length", "full_attention_interval",
    "rope.dimension_sections", "rope.freq_base", "ssm.conv_kernel", "ssm.group_count", "ssm.inner_size",
    "ssm.state_size", "ssm.time_step_rank",
)  # fmt: skip
"""Keys that files with a gated delta net have."""


@cache
def _plan(
    architecture: str, experts: bool, shape: tuple[tuple[str, int], ...]
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    made = header_only(architecture, experts=experts)
    made.values |= {f"{architecture}.{key}": value for key, value in shape}
    with TemporaryDirectory() as folder:
        tensors = wanted_tensors(TinyFile(architecture, made.values).write(Path(folder) / "header"))
    tensors = {name: shape for name, shape in tensors.items() if not name.endswith(_OPTIONAL)}
    return made.values, tensors


def write_running(
    path: Path,
    architecture: str = SNAPSHOTS,
    *,
    seed: int = 0,
    noise: float = 0.0,
    experts: bool = False,
    changes: dict[str, Any] | None = None,
) -> Path:
    """A small file of an architecture with a running state. changes: to keys of the architecture, None to
    leave one out.
    """
    shape = {key: value for key, value in (changes or {}).items() if key in _SHAPE}
    values, tensors = _plan(architecture, experts, tuple(shape.items()))
    main, other = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    vocab = byte_vocab(300)
    silent = [token for token, kind in enumerate(vocab.types) if kind != NORMAL]
    parts = []
    for name, shape in tensors.items():
        ours, theirs = (rng.standard_normal(shape[::-1], dtype=np.float32) for rng in (main, other))
        one = np.sqrt(1 - noise**2, dtype=np.float32) * ours + np.float32(noise) * theirs
        one *= gain(name) / np.sqrt(shape[0], dtype=np.float32)
        if "norm" in name and name.endswith("weight"):
            one = np.ones_like(one)
        if name.endswith(("ssm_a", "ssm_d")):
            one = -np.abs(ours) if name.endswith("ssm_a") else np.ones_like(one)
        if name == "output.weight":
            one[silent] = 0.0
        raw = one.astype(np.float32).tobytes()
        parts.append(raw + bytes(-len(raw) % 32))
    if architecture in DELTA_NET:
        own = tuple(f"{architecture}.{key}" for key in _DELTA_KEYS)
        values = {
            key: value for key, value in values.items() if not key.startswith(architecture) or key in own
        }
    changed = {"context_length": N_CTX, "attention.sliding_window": None, **(changes or {})}
    named = {f"{architecture}.{key}": value for key, value in changed.items()}
    values = {**values, "tokenizer.chat_template": CHATML}
    return TinyFile(architecture, values, tensors, b"".join(parts)).write(path, named)


def gain(name: str) -> float:
    """So that the text, and not the last token alone, decides what follows."""
    if name == "token_embd.weight":
        return 8.0
    return 3.0 if name == "output.weight" or name.endswith(("ssm_out.weight", "attn_output.weight")) else 1.5


def write_running_pair(folder: Path, architecture: str = SNAPSHOTS, noise: float = 0.05) -> tuple[Path, Path]:
    """`target.gguf`, and `draft.gguf` that proposes mostly what it says."""
    return (
        write_running(folder / f"{architecture}-target.gguf", architecture, seed=1),
        write_running(folder / f"{architecture}-draft.gguf", architecture, seed=1, noise=noise),
    )
