"""Figures in a model file on which llama.cpp ends the process instead of returning an error.

Each is an assertion, a division by zero or a loop of the pinned version: in `llama_model_base::load_hparams`, in the
graphs of single architectures, or one that files mutated key by key ran into (`tests/test_damaged_keys.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from localspec.gguf.architecture_limits import check_architecture
from localspec.gguf.architectures import (
    DELTA_NET,
    EQUAL_HEADS,
    GATED,
    LAYERS_DIFFER,
    NO_ATTENTION_IN_SOME,
    NO_ROPE,
    ONE_KV_EACH,
    WHOLE_ROPE,
)
from localspec.gguf.key_numbers import MAX_HEADS, MAX_LAYERS, MAX_SIZE, MAX_WINDOW, Figures, short
from localspec.gguf.reader import Numbers, Scalar
from localspec.gguf.tensors import GGUFFault

_MAX_EXPERTS = 1024
_ROPE_SCALING = ("none", "linear", "yarn", "longrope")
_GATING = (1, 4)


def check_limits(architecture: str, scalars: Mapping[str, Scalar], arrays: Mapping[str, Numbers]) -> None:
    """Raises GGUFFault for a figure that the C library would not survive. arrays: short ones of numbers."""
    figures = Figures(architecture, scalars, arrays)
    figures.one("context_length", 1, 1, MAX_SIZE)
    figures.one("embedding_length", 1, 1, MAX_SIZE)
    num_layers = figures.one("block_count", MAX_LAYERS, 1, MAX_LAYERS)
    figures.one("nextn_predict_layers", 0, 0, num_layers)
    figures.one("attention.sliding_window", 1, 1 if architecture == "llama4" else 0, MAX_WINDOW)
    interval = figures.one("full_attention_interval", 4, 1, MAX_SIZE)
    if architecture in DELTA_NET and not 1 < interval <= num_layers:
        raise GGUFFault(
            f"its {architecture}.full_attention_interval is {interval}: of its {num_layers} layers some must have "
            "attention and others a running state"
        )
    _check_heads(figures, num_layers)
    _check_experts(figures, num_layers)
    check_architecture(figures, num_layers)
    figures.each("feed_forward_length", num_layers, 0, 0, MAX_SIZE)
    for key, value in scalars.items():
        if key.startswith(f"{architecture}.") and isinstance(value, float) and math.isnan(value):
            raise GGUFFault(f"its {key} is {value}")
    for name in ("layer_norm_rms_epsilon", "layer_norm_epsilon", "temperature_scale"):
        value = scalars.get(f"{architecture}.attention.{name}", 0.0)
        if isinstance(value, float) and not 0.0 <= value < math.inf:
            raise GGUFFault(f"its {architecture}.attention.{name} is {value}")
    scaling = scalars.get(f"{architecture}.rope.scaling.type", "linear")
    if isinstance(scaling, str) and scaling not in _ROPE_SCALING:
        raise GGUFFault(f"its {architecture}.rope.scaling.type is {scaling[:40]!r}, not one of llama.cpp's")


def _check_heads(figures: Figures, num_layers: int) -> None:
    architecture = figures.architecture
    heads = figures.each("attention.head_count", num_layers, 0, 0, MAX_HEADS)
    heads_kv = figures.each("attention.head_count_kv", num_layers, -1, 0, MAX_HEADS)
    if heads_kv[0] == -1:
        heads_kv = heads
    for key, values in (("head_count", heads), ("head_count_kv", heads_kv)):
        name = f"{architecture}.attention.{key}"
        if len({*values}) > 1 and architecture not in LAYERS_DIFFER:
            raise GGUFFault(f"its {name} is {short(values)}, and all layers of this architecture are alike")
        if 0 in values and any(values) and architecture not in NO_ATTENTION_IN_SOME:
            raise GGUFFault(f"its {name} is {short(values)}, and each layer of this architecture has heads")
    if architecture in ONE_KV_EACH and heads != heads_kv:
        raise GGUFFault(
            f"its {architecture}.attention.head_count_kv is {short(heads_kv)}, and it has {short(heads)} heads"
        )
    for layer, (ours, theirs) in enumerate(zip(heads, heads_kv, strict=True)):
        if ours and theirs and ours % theirs:
            raise GGUFFault(
                f"layer {layer} has {ours} heads (attention.head_count), which do not divide into groups for "
                f"{theirs} (attention.head_count_kv)"
            )
    if heads[0]:
        _check_head_size(figures, heads[0])


def _check_head_size(figures: Figures, num_heads: int) -> None:
    """Lengths of keys and values in a head, and how much of it rotary positions turn."""
    architecture = figures.architecture
    by_default = figures.one("embedding_length", 1, 1, MAX_SIZE) // num_heads
    key = figures.one("attention.key_length", by_default, 0, MAX_SIZE)
    value = figures.one("attention.value_length", by_default, 0, MAX_SIZE)
    whole, turned = (key, value), figures.one("rope.dimension_count", key, 0, MAX_SIZE)
    _check_compressed(figures, key, value, turned)
    window = (
        figures.one("attention.key_length_swa", key, 0, MAX_SIZE),
        figures.one("attention.value_length_swa", value, 0, MAX_SIZE),
    )
    turned_in_window = figures.one("rope.dimension_count_swa", turned, 0, MAX_SIZE)
    for suffix, (key, value), dims in (("", whole, turned), ("_swa", window, turned_in_window)):
        if architecture in EQUAL_HEADS and key != value:
            raise GGUFFault(
                f"its heads have keys of {key} (attention.key_length{suffix}) and values of {value} numbers "
                f"(attention.value_length{suffix}), and this architecture has as many of both"
            )
        if architecture in NO_ROPE:
            continue
        least = 2 if key > 1 else 0
        alike = architecture in WHOLE_ROPE and not suffix
        if alike and key % 2 and dims == key:
            raise GGUFFault(
                f"its heads have keys of {key} numbers (embedding_length by head_count), and this architecture "
                "turns all of a head by pairs"
            )
        if dims % 2 or not least <= dims <= key or (alike and dims != key):
            raise GGUFFault(
                f"its {architecture}.rope.dimension_count{suffix} is {dims}, and "
                + (f"{key} is possible" if alike else f"even numbers from {least} to {key} are possible")
            )


def _check_compressed(figures: Figures, key: int, value: int, turned: int) -> None:
    """Multi-head latent attention: what the cache holds of a token is one short vector and its rotary part."""
    rank = figures.one("attention.kv_lora_rank", 0, 0, MAX_SIZE)
    of_head = figures.one("attention.key_length_mla", 0, 0, MAX_SIZE)
    if figures.architecture == "hy_v4":
        for name in ("key_length_mla", "value_length_mla"):
            figures.required(f"attention.{name}", 1, MAX_SIZE)
    if of_head and (key, value) != (rank + turned, rank):
        raise GGUFFault(
            f"its attention.key_length and value_length are {key} and {value}, where kv_lora_rank {rank} and "
            f"rope.dimension_count {turned} make {rank + turned} and {rank}"
        )
    if (of_head or figures.architecture == "deepseek2") and (of_head or key) <= turned:
        raise GGUFFault(f"its rope.dimension_count is {turned}, and keys have {of_head or key} numbers")


def _check_experts(figures: Figures, num_layers: int) -> None:
    architecture = figures.architecture
    num_experts = figures.one("expert_count", 0, 0, _MAX_EXPERTS)
    if architecture in ("hunyuan-dense", "hunyuan_vl") and num_experts <= 1:
        return  # llama.cpp passes over them
    used = figures.each("expert_used_count", num_layers, 0, 0, num_experts)
    if num_experts and not any(used):
        raise GGUFFault(
            f"it has {num_experts} experts, and {architecture}.expert_used_count is {_told(figures)}"
        )
    if num_experts and 0 in used and architecture != "nemotron_h_moe":
        raise GGUFFault(f"its {architecture}.expert_used_count is {short(used)}, and each layer uses some")
    num_groups = figures.one("expert_group_count", 0, 0, max(num_experts - 1, 0))
    if num_groups > 1:
        figures.required("expert_group_used_count", 1, num_groups - 1)
        if num_experts % num_groups:
            raise GGUFFault(f"its {num_experts} experts do not divide into {num_groups} groups")
    if num_experts and architecture in GATED:
        figures.required("expert_gating_func", *_GATING)
    figures.one("expert_gating_func", 1, *_GATING)


def _told(figures: Figures) -> str:
    name = f"{figures.architecture}.expert_used_count"
    return "0" if name in figures.scalars or name in figures.arrays else "missing"
