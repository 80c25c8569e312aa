"""Figures in a model file on which llama.cpp ends the process instead of returning an error.

Each is an assertion, a division by zero or a loop of the pinned version: in `llama_model_base::load_hparams`, in the
graphs of single architectures, or one that files mutated key by key ran into (`tests/test_damaged_keys.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from localspec.gguf.architectures import (
    DELTA_NET,
    EQUAL_HEADS,
    GATED,
    LAYERS_DIFFER,
    NO_ATTENTION_IN_SOME,
    NO_ROPE,
    ONE_KV_EACH,
    TWICE_AS_WIDE,
    WHOLE_ROPE,
)
from localspec.gguf.reader import Numbers, Scalar
from localspec.gguf.tensors import GGUFFault

_MAX_LAYERS = 512
_MAX_EXPERTS = 1024
_MAX_HEADS = 1 << 16
_MAX_SIZE = (1 << 31) - 1
_MAX_WINDOW = 1 << 24
_ROPE_SCALING = ("none", "linear", "yarn", "longrope")
_GATING = (1, 4)
_DEMANDS: dict[str, tuple[tuple[str, int, int], ...]] = {
    "afmoe": (("attention.sliding_window", 1, _MAX_WINDOW),),
    "arwkv7": (("token_shift_count", 1, 1),),
    "deepseek4": (
        ("attention.head_count_kv", 1, 1),
        ("attention.output_group_count", 1, _MAX_HEADS),
        ("hyper_connection.sinkhorn_iterations", 1, 1000),
    ),
    "ernie4_5-moe": (("interleave_moe_layer_step", 1, _MAX_LAYERS),),
    "glm5-next": (
        ("attention.indexer.kpool", 2, _MAX_SIZE),
        ("hyper_connection.count", 4, 4),
        ("hyper_connection.sinkhorn_iterations", 1, 1000),
    ),
    "qwen4exp": (("hyper_connection.sinkhorn_iterations", 1, 1000),),
    "rwkv6qwen2": (("token_shift_count", 1, 1),),
}
"""Architecture -> keys that must be there, and within these bounds."""


def check_limits(architecture: str, scalars: Mapping[str, Scalar], arrays: Mapping[str, Numbers]) -> None:
    """Raises GGUFFault for a figure that the C library would not survive. arrays: short ones of numbers."""
    figures = _Figures(architecture, scalars, arrays)
    figures.one("context_length", 1, 1, _MAX_SIZE)
    figures.one("embedding_length", 1, 1, _MAX_SIZE)
    num_layers = figures.one("block_count", _MAX_LAYERS, 1, _MAX_LAYERS)
    figures.one("nextn_predict_layers", 0, 0, num_layers)
    figures.one("attention.sliding_window", 1, 1 if architecture == "llama4" else 0, _MAX_WINDOW)
    figures.one("full_attention_interval", 1, 1, _MAX_SIZE)
    for key, low, high in _DEMANDS.get(architecture, ()):
        figures.required(key, low, high)
    _check_heads(figures, num_layers)
    _check_experts(figures, num_layers)
    _check_layer_kinds(figures, num_layers)
    figures.each("feed_forward_length", num_layers, 0, 0, _MAX_SIZE)
    for key, value in scalars.items():
        if key.startswith(f"{architecture}.") and isinstance(value, float) and math.isnan(value):
            raise GGUFFault(f"its {key} is {value}")
    for name in ("layer_norm_rms_epsilon", "layer_norm_epsilon", "temperature_scale"):
        value = scalars.get(f"{architecture}.attention.{name}", 0.0)
        if isinstance(value, float) and not 0.0 <= value < math.inf:
            raise GGUFFault(f"its {architecture}.attention.{name} is {value}")
    if architecture == "bailingmoe3":
        _check_gate(scalars)
    scaling = scalars.get(f"{architecture}.rope.scaling.type", "linear")
    if isinstance(scaling, str) and scaling not in _ROPE_SCALING:
        raise GGUFFault(f"its {architecture}.rope.scaling.type is {scaling[:40]!r}, not one of llama.cpp's")


@dataclass(frozen=True)
class _Figures:
    """Whole numbers of a file, by their keys without the architecture."""

    architecture: str
    scalars: Mapping[str, Scalar]
    arrays: Mapping[str, Numbers]

    def one(self, key: str, default: int, low: int, high: int) -> int:
        """A single number, `default` where there is none. Raises GGUFFault outside the bounds."""
        name = f"{self.architecture}.{key}"
        if name in self.arrays:
            raise GGUFFault(f"its {name} is a list, not a whole number")
        if name not in self.scalars:
            return default
        return self._checked(name, self.scalars[name], low, high)

    def required(self, key: str, low: int, high: int) -> None:
        """The same for one that must be there, or a list of such."""
        name = f"{self.architecture}.{key}"
        if name not in self.scalars and name not in self.arrays:
            raise GGUFFault(f"its {name} is missing")
        for value in self.arrays.get(name) or (self.scalars.get(name, low),):
            self._checked(name, value, low, high)

    def each(self, key: str, num_layers: int, default: int, low: int, high: int) -> tuple[int, ...]:
        """The numbers of all layers, which a single one stands for where they are alike."""
        name = f"{self.architecture}.{key}"
        values = self.arrays.get(name)
        if values is None:
            return (self.one(key, default, low, high),) * num_layers
        if len(values) != num_layers:
            raise GGUFFault(f"its {name} has {len(values)} numbers for {num_layers} layers")
        return tuple(self._checked(name, value, low, high, within=values) for value in values)

    def _checked(self, name: str, value: Scalar, low: int, high: int, within: Numbers = ()) -> int:
        shown = _short(within) if within else f"{value!r}"[:40]
        if isinstance(value, bool) or not isinstance(value, int):
            raise GGUFFault(f"its {name} is {shown}, not a whole number")
        if not low <= value <= high:
            raise GGUFFault(f"its {name} is {shown}, and {low} to {high} are possible")
        return value


def _check_heads(figures: _Figures, num_layers: int) -> None:
    architecture = figures.architecture
    heads = figures.each("attention.head_count", num_layers, 0, 0, _MAX_HEADS)
    heads_kv = figures.each("attention.head_count_kv", num_layers, -1, 0, _MAX_HEADS)
    if heads_kv[0] == -1:
        heads_kv = heads
    for key, values in (("head_count", heads), ("head_count_kv", heads_kv)):
        name = f"{architecture}.attention.{key}"
        if len({*values}) > 1 and architecture not in LAYERS_DIFFER:
            raise GGUFFault(f"its {name} is {_short(values)}, and all layers of this architecture are alike")
        if 0 in values and any(values) and architecture not in NO_ATTENTION_IN_SOME:
            raise GGUFFault(f"its {name} is {_short(values)}, and each layer of this architecture has heads")
    if architecture in ONE_KV_EACH and heads != heads_kv:
        raise GGUFFault(
            f"its {architecture}.attention.head_count_kv is {_short(heads_kv)}, and it has {_short(heads)} heads"
        )
    for layer, (ours, theirs) in enumerate(zip(heads, heads_kv, strict=True)):
        if ours and theirs and ours % theirs:
            raise GGUFFault(
                f"layer {layer} has {ours} heads (attention.head_count), which do not divide into groups for "
                f"{theirs} (attention.head_count_kv)"
            )
    if heads[0]:
        _check_head_size(figures, heads[0])
    if architecture == "deepseek2-ocr":
        _check_plain_heads(figures, heads[0])


def _check_head_size(figures: _Figures, num_heads: int) -> None:
    """Lengths of keys and values in a head, and how much of it rotary positions turn."""
    architecture = figures.architecture
    by_default = figures.one("embedding_length", 1, 1, _MAX_SIZE) // num_heads
    key = figures.one("attention.key_length", by_default, 0, _MAX_SIZE)
    value = figures.one("attention.value_length", by_default, 0, _MAX_SIZE)
    whole, turned = (key, value), figures.one("rope.dimension_count", key, 0, _MAX_SIZE)
    _check_compressed(figures, key, value, turned)
    window = (
        figures.one("attention.key_length_swa", key, 0, _MAX_SIZE),
        figures.one("attention.value_length_swa", value, 0, _MAX_SIZE),
    )
    turned_in_window = figures.one("rope.dimension_count_swa", turned, 0, _MAX_SIZE)
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


def _check_plain_heads(figures: _Figures, num_heads: int) -> None:
    """Heads that are equal parts of a token's vector, whose positions turn by the usual base."""
    part = figures.one("embedding_length", 1, 1, _MAX_SIZE) // max(num_heads, 1)
    for key in ("key_length", "value_length"):
        size = figures.one(f"attention.{key}", part, 0, _MAX_SIZE)
        if size != part:
            raise GGUFFault(f"its {figures.architecture}.attention.{key} is {size}, and {part} is possible")
    base = figures.scalars.get(f"{figures.architecture}.rope.freq_base", 10000.0)
    if not isinstance(base, float) or abs(base - 10000.0) >= 1e-4:
        raise GGUFFault(f"its {figures.architecture}.rope.freq_base is {base}, and 10000.0 is possible")


def _check_compressed(figures: _Figures, key: int, value: int, turned: int) -> None:
    """Multi-head latent attention: what the cache holds of a token is one short vector and its rotary part."""
    rank = figures.one("attention.kv_lora_rank", 0, 0, _MAX_SIZE)
    of_head = figures.one("attention.key_length_mla", 0, 0, _MAX_SIZE)
    if of_head and (key, value) != (rank + turned, rank):
        raise GGUFFault(
            f"its attention.key_length and value_length are {key} and {value}, where kv_lora_rank {rank} and "
            f"rope.dimension_count {turned} make {rank + turned} and {rank}"
        )
    if (of_head or figures.architecture == "deepseek2") and (of_head or key) <= turned:
        raise GGUFFault(f"its rope.dimension_count is {turned}, and keys have {of_head or key} numbers")


def _check_layer_kinds(figures: _Figures, num_layers: int) -> None:
    """Lists of which layers do what, where one relies on another."""
    architecture = figures.architecture
    if architecture in ("glm-dsa", "glm5-next", "hy_v4"):
        types = figures.each("attention.indexer.types", num_layers, 1, 0, 1)
        if not types[0]:
            raise GGUFFault(
                f"its {architecture}.attention.indexer.types is {_short(types)}, and the first is 1"
            )
    if architecture == "glm5-next":
        pool = figures.one("attention.indexer.kpool", 4, 2, _MAX_SIZE)
        if figures.one("attention.indexer.top_k", 0, 0, _MAX_SIZE) % pool:
            raise GGUFFault(f"its {architecture}.attention.indexer.top_k is no multiple of its kpool, {pool}")
    if architecture in ("gemma4", "mimo2"):
        _check_windows(figures, num_layers)
    if architecture == "dots3note":
        _check_indexers(figures, num_layers)
    inner, state = (figures.one(f"ssm.{key}", 0, 0, _MAX_SIZE) for key in ("inner_size", "state_size"))
    rank, groups = (figures.one(f"ssm.{key}", 0, 0, _MAX_SIZE) for key in ("time_step_rank", "group_count"))
    if architecture in DELTA_NET and (inner != state * rank or not groups or rank % groups):
        raise GGUFFault(
            f"its ssm.inner_size is {inner}, and not ssm.state_size {state} times ssm.time_step_rank {rank}, "
            f"or its ssm.group_count {groups} does not divide the last"
        )
    size = figures.one("wkv.head_size", 0, 0, _MAX_SIZE)
    width = figures.one("embedding_length", 1, 1, _MAX_SIZE)
    if architecture in TWICE_AS_WIDE and inner != 2 * width:
        raise GGUFFault(f"its {architecture}.ssm.inner_size is {inner}, and {2 * width} is possible")
    if size and width % size:
        raise GGUFFault(f"its {architecture}.wkv.head_size is {size}, which does not divide {width}")


def _check_indexers(figures: _Figures, num_layers: int) -> None:
    """Each layer without a sliding window looks up what it attends to by an indexer, whose keys are turned too."""
    name = f"{figures.architecture}.attention"
    windows = figures.arrays.get(f"{name}.sliding_window_pattern", ())
    types = figures.arrays.get(f"{name}.indexer.types", ())
    ahead = figures.one("nextn_predict_layers", 0, 0, num_layers)  # layers that only draft, with windows
    for layer in range(num_layers - ahead):
        if not any(windows[layer : layer + 1]) and not any(types[layer : layer + 1]):
            raise GGUFFault(
                f"its {name}.indexer.types is {_short(types)}, and layer {layer} has neither an indexer nor a window "
                f"(sliding_window_pattern)"
            )
    turned = figures.one("rope.dimension_count", 0, 0, _MAX_SIZE)
    if figures.one("attention.indexer.key_length", turned, 0, _MAX_SIZE) < turned:
        raise GGUFFault(f"its {name}.indexer.key_length is less than its rope.dimension_count, {turned}")


def _check_windows(figures: _Figures, num_layers: int) -> None:
    """Some layer has a sliding window; layers that share keys and values do so with the last before of their kind."""
    pattern = figures.arrays.get(f"{figures.architecture}.attention.sliding_window_pattern", ())
    if not any(pattern):
        raise GGUFFault(f"its {figures.architecture}.attention.sliding_window_pattern is {_short(pattern)}")
    shared = figures.one("attention.shared_kv_layers", 0, 0, max(num_layers - 2, 0))
    own, kinds = num_layers - shared, (*pattern, *(False,) * num_layers)
    for kind in {bool(one) for one in kinds[own:num_layers]}:
        if bool(kinds[own - 2 if kind else own - 1]) is not kind:
            name = f"{figures.architecture}.attention.shared_kv_layers"
            raise GGUFFault(f"its {name} is {shared}, and no layer before is of their kind")


def _short(values: Numbers) -> str:
    if not values:
        return "missing"
    return str(values[0]) if len({*values}) == 1 else f"{list(values)}"[:80]


def _check_experts(figures: _Figures, num_layers: int) -> None:
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
        raise GGUFFault(f"its {architecture}.expert_used_count is {_short(used)}, and each layer uses some")
    num_groups = figures.one("expert_group_count", 0, 0, max(num_experts - 1, 0))
    if num_groups > 1:
        figures.required("expert_group_used_count", 1, num_groups - 1)
        if num_experts % num_groups:
            raise GGUFFault(f"its {num_experts} experts do not divide into {num_groups} groups")
    if num_experts and architecture in GATED:
        figures.required("expert_gating_func", *_GATING)
    figures.one("expert_gating_func", 1, *_GATING)


def _check_gate(scalars: Mapping[str, Scalar]) -> None:
    for key, good in (("kda.safe_gate", lambda value: value is True), ("kda.gate_lower_bound", _is_below_0)):
        value = scalars.get(f"bailingmoe3.{key}")
        if not good(value):
            raise GGUFFault(f"its bailingmoe3.{key} is {value}")


def _is_below_0(value: Scalar | None) -> bool:
    return isinstance(value, float) and -math.inf < value < 0.0


def _told(figures: _Figures) -> str:
    name = f"{figures.architecture}.expert_used_count"
    return "0" if name in figures.scalars or name in figures.arrays else "missing"
