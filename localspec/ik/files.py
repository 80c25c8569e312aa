"""Which files ik_llama.cpp computes as llama.cpp does, and without ending the process.

Found by comparing the logits of tiny files of each architecture, key by key, and in the pinned version's source. It
reads fewer keys and tensors than llama.cpp: what it does not know it leaves out in silence, so that whatever is not
listed here is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from localspec.gguf.architectures import DELTA_NET
from localspec.gguf.metadata import Metadata, read_headers
from localspec.gguf.tensors import TensorInfo
from localspec.gguf.types import TENSOR_TYPES

ARCHITECTURES = frozenset({
    "arctic", "bailingmoe2", "chatglm", "command-r", "dots1", "ernie4_5", "falcon", "gemma", "glm4", "glm4moe",
    "gptneox", "hunyuan-moe", "internlm2", "llama", "minimax-m2", "olmo", "phi2", "phi3", "qwen", "qwen2", "qwen2moe",
    "qwen3", "qwen35", "qwen35moe", "qwen3moe", "seed_oss", "smollm3", "stablelm", "xverse",
})  # fmt: skip
"""Those whose logits agree. It knows more, which are left out for one of these reasons.

It ends the process: bloom, codeshell, gpt2, mpt, orion, starcoder, starcoder2 (their second norm is computed as another
kind), baichuan (other numbers of layers than two), deepseek2 (most forms of its attention). Other logits: ernie4_5-moe,
granite, minicpm, refact, mistral3 (YaRN). A sliding window is cut short in passes that begin between two multiples of
256, and one of 64 tokens or fewer ends the process: cohere2, gemma2, gemma3, gpt-oss. It prints to the standard output:
deepseek2. Its first pass ends the process: mamba. It has attention in every fourth layer, whatever the file says:
qwen3next. Not tried, or not with layers that differ, as theirs do: dbrx, deci, granitemoe, openelm.
"""

FORMATS = frozenset({
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ2_XXS",
    "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "IQ4_NL", "IQ4_XS", "MXFP4",
})  # fmt: skip
"""Number formats of weights that mean the same in both libraries."""

_BLOCKS = {name: block for name, block, _ in TENSOR_TYPES.values()}

KEYS = frozenset({
    "attention.clamp_kqv", "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon", "attention.sliding_window",
    "attention.value_length", "block_count", "context_length", "embedding_length", "expert_count",
    "expert_feed_forward_length", "expert_gating_func", "expert_group_count", "expert_group_used_count",
    "expert_shared_count", "expert_shared_feed_forward_length", "expert_used_count", "expert_weights_norm",
    "expert_weights_scale", "feed_forward_length", "full_attention_interval", "leading_dense_block_count",
    "logit_scale", "rope.dimension_count", "rope.freq_base", "rope.scale_linear", "rope.scaling.attn_factor",
    "rope.scaling.factor", "rope.scaling.finetuned", "rope.scaling.original_context_length", "rope.scaling.type",
    "ssm.conv_kernel", "ssm.group_count", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank",
    "tensor_data_layout", "use_parallel_residual", "vocab_size",
})  # fmt: skip
"""An architecture's keys that it reads as llama.cpp does, or that neither needs."""

_BOUNDS = {
    "attention.layer_norm_epsilon": (1e-12, 1.0),
    "attention.layer_norm_rms_epsilon": (1e-12, 1.0),
    "rope.freq_base": (1.0, 1e12),
    "rope.scaling.attn_factor": (0.01, 10.0),
}
"""Beyond them its norms or its attention end the process: the latter over one number that is none, too."""
_KERNELS = (64, 96, 128, 192, 256)
_IN_KERNELS = ("q4_0", "q4_1", "iq4_nl")
"""Types of a K cache that its kernels for heads of those sizes alone read rightly."""
_LISTS = frozenset((name, f"{name}.rope.dimension_sections") for name in ("qwen35", "qwen35moe"))
"""Architectures and keys of theirs that are lists and are read as such."""
_STATES = (64, 128)
"""Sizes of a gated delta net's state that its kernels compute rightly."""
_MAX_EXPERTS = 512
_ROPE_SCALING = ("none", "linear", "yarn")
_PASSED_OVER = ("rope_freqs.", "rope_factors_", "output.bias", "cls.")
"""Tensors that most of its graphs load and do not use: the first two stretch rotary positions (Llama 3.1 and later)."""
_USED = {"phi2": ("output.bias",), "phi3": ("rope_factors_",)}
"""Architecture -> those of them that its graph uses."""


def refusal(metadata: Metadata) -> str:
    """What of the file it does not compute here, as the end of a sentence, or ""."""
    return next(_faults(metadata), "")


def cache_fault(metadata: Metadata, cache_type_k: str, cache_type_v: str) -> str:
    """Why the file's heads do not fit these cache types, or "": it would end the process or compute wrong numbers."""
    heads = max(*metadata.per_layer("attention.head_count"), 1)
    for of, cache_type in (("key", cache_type_k), ("value", cache_type_v)):
        (size,) = set(metadata.per_layer(f"attention.{of}_length", metadata.n_embd // heads))
        if size % (block := _BLOCKS[cache_type.upper()]):
            return f"{of}s of {size} numbers do not fit the block size {block} of {cache_type}"
        if of == "key" and cache_type in _IN_KERNELS and size not in _KERNELS:
            return f"keys of {size} numbers come out wrong in {cache_type}"
    return ""


def _faults(metadata: Metadata) -> Iterator[str]:
    architecture = metadata.architecture
    if architecture not in ARCHITECTURES:
        yield f"does not compute models of architecture {architecture} here"
    for key in metadata.key_values:
        name = key.removeprefix(f"{architecture}.")
        if name != key and name not in KEYS:
            yield f"may not read {key} as llama.cpp does"
    for key in metadata.numbers:
        if key.startswith(f"{architecture}.") and (architecture, key) not in _LISTS:
            yield f"may not read a list, {key}, as llama.cpp does"
    yield from _figures(metadata)
    for header in read_headers(metadata.path):
        for tensor in header.tensors:
            yield from _tensor_faults(architecture, tensor)


def _figures(metadata: Metadata) -> Iterator[str]:
    def value(name: str) -> object:
        return metadata.key_values.get(f"{metadata.architecture}.{name}")

    if 0 < metadata.n_swa < metadata.n_ctx_train:
        yield f"cuts a sliding window of {metadata.n_swa} tokens short in some passes"
    for name, (low, high) in _BOUNDS.items():
        if isinstance(number := value(name), float) and not low <= number <= high:
            yield f"cannot compute with {name} {number}"
    if metadata.architecture in DELTA_NET and (size := value("ssm.state_size")) not in _STATES:
        yield f"computes wrong numbers with ssm.state_size {size}"
    if metadata.architecture == "phi3" and value("attention.sliding_window") is None:
        yield "needs attention.sliding_window in a file of phi3"
    if (scaling := value("rope.scaling.type")) not in (None, *_ROPE_SCALING):
        yield f"does not know rope.scaling.type {scaling}"
    if isinstance(experts := value("expert_count"), int) and experts > _MAX_EXPERTS:
        yield f"holds {_MAX_EXPERTS} experts at most, not {experts}"


def _tensor_faults(architecture: str, tensor: TensorInfo) -> Iterator[str]:
    if tensor.type_name not in FORMATS:
        yield f"does not know weights of format {tensor.type_name}"
    used = _USED.get(architecture, ())
    if tensor.name.startswith(_PASSED_OVER) and not tensor.name.startswith(used):
        yield f"passes over {tensor.name}"
    if tensor.name.endswith("scale"):
        yield f"does not know {tensor.name}"


def is_quantized(cache_type: str) -> bool:
    """Whether cells of that type are kept in blocks."""
    return cache_type not in ("f32", "f16", "bf16")
