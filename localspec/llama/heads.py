"""Which files' prediction layers llama.cpp computes."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.gguf.eagle import is_eagle, why_no_eagle
from localspec.gguf.heads import layers_in, prediction_layers
from localspec.gguf.metadata import Metadata
from localspec.llama import head_calls


@dataclass(frozen=True)
class Form:
    """How an architecture's prediction layers are computed.

    several: more than one of them can be run, each of which guesses one token further. needs: tensors of each layer
    without which the process would end, beside those that all have. without: keys of the file with which it would.
    """

    several: bool = False
    needs: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


_ALL = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")
_EXPERTS = "ffn_gate_inp"
_LATENT = (
    "attn_q_a", "attn_q_a_norm", "attn_q_b", "attn_kv_a_mqa", "attn_kv_a_norm", "attn_k_b", "ffn_norm", _EXPERTS,
    "ffn_down_exps", "ffn_gate_shexp", "ffn_down_shexp", "ffn_up_shexp",
)  # fmt: skip
FORMS = {
    "bailingmoe3": Form(needs=("layer_output_norm",)),
    "cohere2moe": Form(needs=(_EXPERTS,)),
    "deepseek2": Form(needs=_LATENT, without=("attention.temperature_scale",)),
    "glm4moe": Form(needs=(_EXPERTS,), without=("rope.dimension_sections",)),
    "hy_v3": Form(),
    "mimo2": Form(several=True, needs=("attn_qkv", "ffn_gate", "ffn_down", "ffn_up")),
    "nemotron_h_moe": Form(needs=(_EXPERTS, "nextn.shared_head_norm")),
    "qwen35": Form(),
    "qwen35moe": Form(needs=(_EXPERTS,)),
    "qwen3next": Form(needs=(_EXPERTS,)),
    "step35": Form(several=True),
}
"""Architectures whose prediction layers were run here. Others load them and leave them aside, or were not tried."""


EAGLE_TARGETS = frozenset(
    {
        "bailingmoe3", "gemma4", "gpt-oss", "hunyuan-dense", "lfm2", "lfm2moe", "llama", "mimo2", "minimax-m2",
        "nemotron_h", "nemotron_h_moe", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "qwen3next",
    }
)  # fmt: skip
"""Architectures whose layers' inputs were read here. With others the process may end."""


def why_no_head(metadata: Metadata, target: Metadata | None = None) -> str:
    """Why no head of this file can draft here, as a clause, or "". target: for which an EAGLE-3 head shall."""
    if is_eagle(metadata):
        return _why_no_eagle(metadata, target)
    name, count = metadata.path.name, prediction_layers(metadata)
    if not count:
        return f"{name} has no prediction layers"
    form = FORMS.get(metadata.architecture)
    if form is None:
        return f"llama.cpp does not run the prediction layers of {metadata.architecture} models here"
    if count > 1 and not form.several:
        return (
            f"llama.cpp runs one prediction layer of {metadata.architecture} models, and {name} has {count}"
        )
    keys = {*metadata.key_values, *metadata.numbers}
    if unknown := [one for one in form.without if f"{metadata.architecture}.{one}" in keys]:
        return f"llama.cpp does not run prediction layers beside {metadata.architecture}.{unknown[0]}"
    layers = layers_in(metadata).predicting
    if not any(layers):
        return f"{name} names {count} prediction {_layers(count)} without their tensors"
    wanted = [f"{one}.weight" for one in (*_ALL, *form.needs)]
    missing = [one for layer in layers for one in wanted if one not in layer]
    if missing:
        return f"the prediction layers of {name} lack {missing[0]}"
    return head_calls.missing()


def _why_no_eagle(metadata: Metadata, target: Metadata | None) -> str:
    if target is not None:
        if target.architecture not in EAGLE_TARGETS:
            return f"llama.cpp does not give out what layers of {target.architecture} models read"
        if reason := why_no_eagle(metadata, target):
            return reason
    return head_calls.missing() or head_calls.layer_inputs_missing()


def _layers(count: int) -> str:
    return "layer" if count == 1 else "layers"
