"""What the graphs and loaders of single architectures assert of their own keys; the rest is in `limits.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping

from localspec.gguf.architectures import (
    ATTENTION_AT_INTERVALS,
    DELTA_NET,
    IN_SECTIONS,
    TWICE_AS_WIDE,
    WINDOWED,
)
from localspec.gguf.key_numbers import MAX_HEADS, MAX_LAYERS, MAX_SIZE, MAX_WINDOW, Figures, short
from localspec.gguf.reader import Scalar
from localspec.gguf.tensors import GGUFFault

MAX_RATIO = 4096
"""Tokens that one compressed entry of a cache stands for."""

_DEMANDS: dict[str, tuple[tuple[str, int, int], ...]] = {
    "afmoe": (("attention.sliding_window", 1, MAX_WINDOW),),
    "arwkv7": (("token_shift_count", 1, 1),),
    "deepseek4": (
        ("attention.head_count_kv", 1, 1),
        ("attention.output_group_count", 1, MAX_HEADS),
        ("hyper_connection.sinkhorn_iterations", 1, 1000),
    ),
    "ernie4_5-moe": (("interleave_moe_layer_step", 1, MAX_LAYERS),),
    "glm5-next": (
        ("attention.indexer.kpool", 2, MAX_SIZE),
        ("hyper_connection.count", 4, 4),
        ("hyper_connection.sinkhorn_iterations", 1, 1000),
    ),
    "minimax-m3": (("attention.indexer.block_size", 1, 1 << 16), ("attention.indexer.top_k", 0, MAX_SIZE)),
    "plamo2": (("ssm.group_count", 0, 0),),
    "qwen4exp": (
        ("attention.compress_ratios", 0, MAX_RATIO),
        ("hyper_connection.sinkhorn_iterations", 1, 1000),
    ),
    "rwkv6": (("token_shift_count", 2, 2), ("wkv.head_size", 1, MAX_SIZE)),
    "rwkv7": (("token_shift_count", 2, 2), ("wkv.head_size", 1, MAX_SIZE)),
    "rwkv6qwen2": (("token_shift_count", 1, 1),),
}
"""Architecture -> keys that must be there, and within these bounds."""


def check_architecture(figures: Figures, num_layers: int) -> None:
    """Raises GGUFFault for what a single architecture asserts."""
    architecture = figures.architecture
    for key, low, high in _DEMANDS.get(architecture, ()):
        figures.required(key, low, high)
    if architecture in IN_SECTIONS:
        _check_sections(figures)
    if architecture in ("glm-dsa", "glm5-next", "hy_v4"):
        types = figures.each("attention.indexer.types", num_layers, 1, 0, 1)
        if not types[0]:
            raise GGUFFault(
                f"its {architecture}.attention.indexer.types is {short(types)}, and the first is 1"
            )
    if architecture == "glm5-next":
        pool = figures.one("attention.indexer.kpool", 4, 2, MAX_SIZE)
        if figures.one("attention.indexer.top_k", 0, 0, MAX_SIZE) % pool:
            raise GGUFFault(f"its {architecture}.attention.indexer.top_k is no multiple of its kpool, {pool}")
    if architecture in WINDOWED:
        _check_windows(figures, num_layers)
    if architecture in ("gemma4", "mimo2"):
        _check_shared(figures, num_layers)
    if architecture == "dots3note":
        _check_indexers(figures, num_layers)
    if architecture == "granite_swa" and not any(
        figures.arrays.get("granite_swa.attention.rope_pattern", (1,))
    ):
        raise GGUFFault("its granite_swa.attention.rope_pattern is 0, and positions turn in some layer")
    if architecture == "hrm_text":
        _check_stacks(figures, num_layers)
    if architecture in ("qwen3vl", "qwen3vlmoe"):
        figures.one("n_deepstack_layers", 0, 0, num_layers)
    if architecture == "nanbeige":
        figures.one("num_loops", 1, 1, MAX_LAYERS // num_layers)
    if architecture == "deepseek2-ocr":
        _check_plain_heads(figures)
    if architecture == "bailingmoe3":
        _check_gate(figures.scalars)
    inner, state = (figures.one(f"ssm.{key}", 0, 0, MAX_SIZE) for key in ("inner_size", "state_size"))
    rank, groups = (figures.one(f"ssm.{key}", 0, 0, MAX_SIZE) for key in ("time_step_rank", "group_count"))
    if architecture in DELTA_NET and (inner != state * rank or not groups or rank % groups):
        raise GGUFFault(
            f"its ssm.inner_size is {inner}, and not ssm.state_size {state} times ssm.time_step_rank {rank}, "
            f"or its ssm.group_count {groups} does not divide the last"
        )
    _check_attention(figures, num_layers)
    size = figures.one("wkv.head_size", 0, 0, MAX_SIZE)
    width = figures.one("embedding_length", 1, 1, MAX_SIZE)
    if architecture in TWICE_AS_WIDE and inner != 2 * width:
        raise GGUFFault(f"its {architecture}.ssm.inner_size is {inner}, and {2 * width} is possible")
    if size and width % size:
        raise GGUFFault(f"its {architecture}.wkv.head_size is {size}, which does not divide {width}")


def _check_attention(figures: Figures, num_layers: int) -> None:
    """llama.cpp ends the process over a memory of attention that no layer uses."""
    usual = ATTENTION_AT_INTERVALS.get(figures.architecture)
    if usual is None or f"{figures.architecture}.attention.recurrent_layers" in figures.arrays:
        return
    interval = figures.one("full_attention_interval", usual, 1, MAX_SIZE)
    layers = num_layers - figures.one("nextn_predict_layers", 0, 0, num_layers)
    if layers < interval:
        raise GGUFFault(
            f"its {figures.architecture}.full_attention_interval is {interval}, so none of its {layers} layers has "
            "attention"
        )


def _check_sections(figures: Figures) -> None:
    name = f"{figures.architecture}.rope.dimension_sections"
    sections = figures.arrays.get(name) or (figures.one("rope.dimension_sections", 0, 0, MAX_SIZE),)
    if not any(sections[:3]) or not all(isinstance(one, int) and 0 <= one <= MAX_SIZE for one in sections):
        raise GGUFFault(f"its {name} is {short(sections)}, and positions turn a section of each head")


def _check_indexers(figures: Figures, num_layers: int) -> None:
    """Each layer without a sliding window looks up what it attends to by an indexer, whose keys are turned too."""
    name = f"{figures.architecture}.attention"
    windows = figures.arrays.get(f"{name}.sliding_window_pattern", ())
    types = figures.arrays.get(f"{name}.indexer.types", ())
    ahead = figures.one("nextn_predict_layers", 0, 0, num_layers)  # layers that only draft, with windows
    if all(windows[: num_layers - ahead]) and len(windows) >= num_layers - ahead:
        raise GGUFFault(
            f"its {name}.sliding_window_pattern is {short(windows)}, and some layer has no window"
        )
    for layer in range(num_layers - ahead):
        if not any(windows[layer : layer + 1]) and not any(types[layer : layer + 1]):
            raise GGUFFault(
                f"its {name}.indexer.types is {short(types)}, and layer {layer} has neither an indexer nor a window "
                f"(sliding_window_pattern)"
            )
    turned = figures.one("rope.dimension_count", 0, 0, MAX_SIZE)
    if figures.one("attention.indexer.key_length", turned, 0, MAX_SIZE) < turned:
        raise GGUFFault(f"its {name}.indexer.key_length is less than its rope.dimension_count, {turned}")


def _check_stacks(figures: Figures, num_layers: int) -> None:
    """Two stacks of layers that are gone through again and again; each time counts as layers of its own."""
    names = ("layers_per_stack", "h_cycles", "l_cycles")
    for name in names:
        figures.required(f"hrm.{name}", 1, MAX_LAYERS)
    per_stack, high, low = (figures.one(f"hrm.{name}", 1, 1, MAX_LAYERS) for name in names)
    if num_layers != per_stack * high * (low + 1):
        raise GGUFFault(
            f"its block_count is {num_layers}, where hrm.layers_per_stack {per_stack}, hrm.h_cycles {high} and "
            f"hrm.l_cycles {low} make {per_stack * high * (low + 1)}"
        )


def _check_windows(figures: Figures, num_layers: int) -> None:
    """Some layer has a sliding window."""
    pattern = figures.arrays.get(f"{figures.architecture}.attention.sliding_window_pattern", ())
    if not any(pattern[:num_layers]):
        raise GGUFFault(
            f"its {figures.architecture}.attention.sliding_window_pattern is {short(pattern)}, and some layer has one"
        )


def _check_shared(figures: Figures, num_layers: int) -> None:
    """Layers that share keys and values do so with the last before of their kind."""
    pattern = figures.arrays.get(f"{figures.architecture}.attention.sliding_window_pattern", ())
    shared = figures.one("attention.shared_kv_layers", 0, 0, max(num_layers - 2, 0))
    own, kinds = num_layers - shared, (*pattern, *(False,) * num_layers)
    for kind in {bool(one) for one in kinds[own:num_layers]}:
        if bool(kinds[own - 2 if kind else own - 1]) is not kind:
            name = f"{figures.architecture}.attention.shared_kv_layers"
            raise GGUFFault(f"its {name} is {shared}, and no layer before is of their kind")


def _check_plain_heads(figures: Figures) -> None:
    """Heads that are equal parts of a token's vector, whose positions turn by the usual base."""
    part = figures.one("embedding_length", 1, 1, MAX_SIZE) // max(
        figures.one("attention.head_count", 1, 0, MAX_HEADS), 1
    )
    for key in ("key_length", "value_length"):
        size = figures.one(f"attention.{key}", part, 0, MAX_SIZE)
        if size != part:
            raise GGUFFault(f"its {figures.architecture}.attention.{key} is {size}, and {part} is possible")
    base = figures.scalars.get(f"{figures.architecture}.rope.freq_base", 10000.0)
    if not isinstance(base, float) or abs(base - 10000.0) >= 1e-4:
        raise GGUFFault(f"its {figures.architecture}.rope.freq_base is {base}, and 10000.0 is possible")


def _check_gate(scalars: Mapping[str, Scalar]) -> None:
    for key, good in (("kda.safe_gate", lambda value: value is True), ("kda.gate_lower_bound", _is_below_0)):
        value = scalars.get(f"bailingmoe3.{key}")
        if not good(value):
            raise GGUFFault(f"its bailingmoe3.{key} is {value}")


def _is_below_0(value: Scalar | None) -> bool:
    return isinstance(value, float) and -math.inf < value < 0.0
