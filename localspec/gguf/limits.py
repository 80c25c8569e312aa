"""Figures in a model file on which llama.cpp ends the process instead of returning an error.

Each is an assertion of the pinned version: in `llama_model_base::load_hparams`, or one that fuzzing ran into.
"""

from __future__ import annotations

import math

from localspec.gguf.reader import Scalar
from localspec.gguf.tensors import GGUFFault

_MAX_LAYERS = 512
_MAX_EXPERTS = 1024
_MAX_HEADS = 1 << 16
_MAX_SIZE = (1 << 31) - 1
_ROPE_SCALING = ("none", "linear", "yarn", "longrope")


def check_limits(architecture: str, scalars: dict[str, Scalar]) -> None:
    """Raises GGUFFault for a figure that the C library would not survive."""

    def figure(key: str, default: int, low: int, high: int) -> int:
        value = scalars.get(f"{architecture}.{key}", default)
        if not isinstance(value, int) or isinstance(value, bool):
            return default  # arrays and wrong types are refused by llama.cpp itself, with an error
        if not low <= value <= high:
            raise GGUFFault(f"its {architecture}.{key} is {value}, and {low} to {high} are possible")
        return value

    figure("context_length", 1, 1, _MAX_SIZE)
    figure("embedding_length", 1, 1, _MAX_SIZE)
    num_layers = figure("block_count", _MAX_LAYERS, 1, _MAX_LAYERS)
    figure("nextn_predict_layers", 0, 0, num_layers)
    num_heads = figure("attention.head_count", _MAX_HEADS, 0, _MAX_HEADS)
    figure("attention.head_count_kv", 0, 0, num_heads)
    num_experts = figure("expert_count", 0, 0, _MAX_EXPERTS)
    figure("expert_used_count", 1 if num_experts else 0, 1 if num_experts else 0, num_experts)
    num_groups = figure("expert_group_count", 0, 0, max(num_experts - 1, 0))
    if num_groups > 1:
        figure("expert_group_used_count", 1, 1, num_groups - 1)
        if num_experts % num_groups:
            raise GGUFFault(f"its {num_experts} experts do not divide into {num_groups} groups")
    for norm in ("layer_norm_rms_epsilon", "layer_norm_epsilon"):
        epsilon = scalars.get(f"{architecture}.attention.{norm}", 0.0)
        if isinstance(epsilon, float) and not 0.0 <= epsilon < math.inf:
            raise GGUFFault(f"its {architecture}.attention.{norm} is {epsilon}")
    scaling = scalars.get(f"{architecture}.rope.scaling.type", "linear")
    if isinstance(scaling, str) and scaling not in _ROPE_SCALING:
        raise GGUFFault(f"its {architecture}.rope.scaling.type is {scaling[:40]!r}, not one of llama.cpp's")
