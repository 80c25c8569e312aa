"""A tiny file of any architecture, made by asking llama.cpp itself which tensors it wants for given key-values.

Only the header is written anew for each change of a key-value, byte by byte, so that wrong types, lengths and values
come out as a damaged file has them.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.tinygguf import byte_vocab

N_VOCAB, N_EMBD, N_HEAD, N_FF, N_LAYER = 300, 128, 2, 192, 2
_RECURRENT_LAYERS = frozenset(
    {
        "bailingmoe3", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear", "lfm2", "lfm2moe",
        "nemotron_h", "nemotron_h_moe", "plamo2",
    }
)  # fmt: skip
"""Which layers hold a running state stands in `head_count_kv`: 0 for those."""
_COMPRESSED = frozenset(
    {
        "bailingmoe3", "deepseek2", "deepseek32", "dots3note", "glm-dsa", "glm5-next", "hy_v4", "kimi-k3",
        "kimi-linear", "mistral4",
    }
)  # fmt: skip
"""Multi-head latent attention: keys and values are made of one short vector."""
_WINDOW_ARRAY = frozenset(
    {
        "cohere2moe",
        "dots3note",
        "granite_swa",
        "maple",
        "mimo2",
        "muse-glimmer",
        "spark2_5",
        "spark2-5",
        "step35",
    }
)
_LAYERS = {"llama4": 4, "gemma4": 5, "gemma3n": 22, "deepseek4": 4, "nemotron_h": 3, "nemotron_h_moe": 3}


def values_of(architecture: str, *, experts: bool = False) -> dict[str, Any]:
    """Key-values, without `general` and `tokenizer`, that satisfy every architecture; most are of no use to it."""
    n_layer = _LAYERS.get(architecture, 6 if architecture == "hrm_text" else N_LAYER)
    compressed = architecture in _COMPRESSED
    n_head = 1 if compressed or architecture == "gemma3n" else N_HEAD
    n_embd = 64 if architecture == "gemma3n" else N_EMBD
    if architecture == "deepseek4":
        n_embd, n_head = 512, 8
    head = n_embd // n_head
    alternating = [layer % 2 for layer in range(n_layer)]
    heads: Any = n_head
    if architecture in _RECURRENT_LAYERS:
        heads = [0 if layer == 1 else n_head for layer in range(n_layer)]
    values: dict[str, Any] = {
        "vocab_size": N_VOCAB, "context_length": 256, "embedding_length": n_embd, "block_count": n_layer,
        "leading_dense_block_count": 1, "feed_forward_length": N_FF, "use_parallel_residual": False,
        "logit_scale": 1.0, "time_mix_extra_dim": 64, "time_decay_extra_dim": 128, "full_attention_interval": 2,
        "attention.head_count": n_head if architecture == "glm5-next" else heads,
        "attention.head_count_kv": 1 if architecture == "deepseek4" else heads,
        "attention.clamp_kqv": 1.0, "attention.layer_norm_epsilon": 1e-5, "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.group_norm_epsilon": 1e-5, "attention.group_norm_groups": 8, "attention.q_lora_rank": 64,
        "attention.kv_lora_rank": 512, "attention.relative_buckets_count": 8, "attention.sliding_window": 32,
        "attention.max_alibi_bias": 8.0,
        "attention.sliding_window_pattern": alternating if architecture in _WINDOW_ARRAY else 2,
        "attention.indexer.head_count": 2 if architecture == "minimax-m3" else 64,
        "attention.indexer.key_length": 64 if architecture == "minimax-m3" else 128,
        "attention.indexer.top_k": 8, "attention.indexer.block_size": 4, "attention.indexer.local_blocks": 1,
        "attention.indexer.kpool": 4, "attention.indexer.kpool_select_tail": True,
        "rope.dimension_sections": [head // 4] * 4, "rope.freq_base": 10000.0,
        "ssm.inner_size": 2 * n_embd, "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.time_step_rank": 2,
        "ssm.group_count": 0 if architecture == "plamo2" else 2, "kda.head_dim": 128, "kda.safe_gate": True,
        "kda.gate_lower_bound": -5.0, "wkv.head_size": head, "shortconv.l_cache": 3, "residual_scale": 3.5,
        "attn_res.block_size": 12, "activation.situ_beta": 4.0, "activation.situ_linear_beta": 25.0,
        "attention.decay_lora_rank": 16, "attention.iclr_lora_rank": 16, "attention.value_residual_mix_lora_rank": 16,
        "attention.gate_lora_rank": 16,
        "token_shift_count": 1 if architecture in ("arwkv7", "rwkv6qwen2") else 2,
        "embedding_length_per_layer_input": n_embd // 2,
        "attention.shared_kv_layers": 0, "expert_weights_scale": 1.0, "expert_weights_norm": True,
        "hyper_connection.count": 4, "hyper_connection.sinkhorn_iterations": 2, "hyper_connection.epsilon": 1e-6,
        "hyper_connection.low_rank": 8, "hyper_connection.magnitude": 2.0, "hash_layer_count": 0,
        "swiglu_clamp_exp": 10.0,
        "attention.output_group_count": 8, "attention.output_lora_rank": 32,
        "attention.compress_rope_freq_base": 160000.0,
        "hrm.layers_per_stack": 1, "hrm.h_cycles": 2, "hrm.l_cycles": 2,
    }  # fmt: skip
    if compressed:
        nope = architecture == "glm5-next"
        values |= {
            "attention.key_length": 512 if nope else 576, "attention.value_length": 512,
            "rope.dimension_count": 0 if nope else 64, "attention.key_length_mla": 192,
            "attention.value_length_mla": 128,
        }  # fmt: skip
    if architecture in ("deepseek4",):
        values |= {"attention.key_length": head, "attention.value_length": head, "rope.dimension_count": head // 2,
                   "attention.compress_ratios": [0, 0, 4, 128]}  # fmt: skip
    if architecture in ("glm5-next", "qwen4exp"):
        heads_of_grams = 4
        values |= {
            "attention.compress_ratios": [4] * n_layer, "ple.layers": [0], "ple.ngram_size": 3,
            "ple.heads_per_ngram": 2,
            "ple.conv_kernel": 4, "ple.eos_token_id": 0, "embedding_length_per_layer_input": n_embd // heads_of_grams,
            "ple.layer_multipliers": np.array([1, 3, 5], dtype=np.uint64),
            "ple.head_offsets": np.arange(heads_of_grams, dtype=np.uint64) * N_VOCAB,
            "ple.head_vocab_sizes": np.full(heads_of_grams, N_VOCAB, dtype=np.uint64),
        }  # fmt: skip
    if architecture in ("dots3note", "hy_v4"):
        values["attention.indexer.types"] = [1 - one for one in alternating]
    if architecture == "dots3note":
        values |= {
            "attention.kv_lora_rank_swa": 512, "attention.key_length_swa": 576, "attention.value_length_swa": 512,
            "attention.key_length_mla_swa": 192, "attention.value_length_mla_swa": 128, "rope.freq_base_swa": 10000.0,
        }  # fmt: skip
    if architecture == "gemma4":
        values |= {"attention.key_length_swa": head, "attention.value_length_swa": head, "rope.freq_base_swa": 10000.0,
                   "attention.sliding_window_pattern": [1, 1, 1, 1, 0]}  # fmt: skip
    if architecture == "minimax-m3":
        values["rope.dimension_count"] = 64
    if architecture == "bailingmoe3":
        values |= {
            "rope.dimension_sections": [8, 12, 12, 0],
            "swiglu_clamp_exp": [0.0, 4.0],
            "swiglu_clamp_shexp": [0.0, 5.0],
        }
    if architecture in ("qwen3next", "qwen35", "qwen35moe", "qwen4exp"):
        values |= {"ssm.inner_size": 256, "ssm.state_size": 128}
    if architecture.startswith("nemotron_h"):
        values["feed_forward_length"] = [0, 0, N_FF]
    if experts:
        values |= {
            "expert_feed_forward_length": N_FF, "expert_shared_feed_forward_length": N_FF // 2,
            "expert_latent_length": N_FF, "interleave_moe_layer_step": 2, "expert_count": 2, "expert_used_count": 2,
            "expert_shared_count": 1, "expert_gating_func": 4 if architecture == "deepseek4" else 2,
            "expert_group_scale": 1.0, "experts_per_group": 1,
        }  # fmt: skip
    return {f"{architecture}.{key}": value for key, value in values.items()} | {
        "xielu.alpha_n": 1.0, "xielu.alpha_p": 1.0, "xielu.beta": 1.0, "xielu.eps": 1e-7,
    }  # fmt: skip


def tokenizer_values() -> dict[str, Any]:
    vocab = byte_vocab(N_VOCAB)
    return {
        "tokenizer.ggml.model": vocab.model, "tokenizer.ggml.pre": vocab.pre, "tokenizer.ggml.tokens": vocab.tokens,
        "tokenizer.ggml.token_type": np.array(vocab.types, dtype=np.int32), "tokenizer.ggml.merges": vocab.merges,
        "tokenizer.ggml.add_bos_token": False,
        **{f"tokenizer.ggml.{name}_token_id": token for name, token in vocab.special.items()},
    }  # fmt: skip


# -- the bytes of a header


def text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


_ARRAYS = {np.dtype(np.uint32): 4, np.dtype(np.int32): 5, np.dtype(np.float32): 6, np.dtype(np.bool_): 7,
           np.dtype(np.uint64): 10, np.dtype(np.int64): 11, np.dtype(np.float64): 12}  # fmt: skip


def value_bytes(value: Any) -> bytes:
    """Type and value: bool, int as 32-bit unsigned (64-bit where it is larger or negative), float32, str, arrays."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        if value < 0:
            return struct.pack("<Ii", 5, value) if value >= -(1 << 31) else struct.pack("<Iq", 11, value)
        return struct.pack("<II", 4, value) if value < 1 << 32 else struct.pack("<IQ", 10, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, list) and value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    if isinstance(value, list):
        kind = (
            np.bool_
            if value and isinstance(value[0], bool)
            else np.float32
            if value and isinstance(value[0], float)
            else np.int32
            if any(one < 0 for one in value)
            else np.uint32
        )
        value = np.array(value, dtype=kind)
    return struct.pack("<IIQ", 9, _ARRAYS[value.dtype], len(value)) + value.tobytes()


@dataclass
class TinyFile:
    """A file taken apart. values: all key-values. tensors: name -> shape, fastest axis first; all are F32."""

    architecture: str
    values: dict[str, Any]
    tensors: dict[str, tuple[int, ...]] = field(default_factory=dict)
    data: bytes = b""

    def write(
        self, path: Path, changes: Mapping[str, Any] | None = None, without: tuple[str, ...] = ()
    ) -> Path:
        """changes: key -> another value, None to leave it out. without: tensors left out."""
        values = {
            key: value for key, value in {**self.values, **(changes or {})}.items() if value is not None
        }
        tensors = {name: shape for name, shape in self.tensors.items() if name not in without}
        head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(values))
        head += b"".join(text(key) + value_bytes(value) for key, value in values.items())
        offset = 0
        for name, shape in tensors.items():
            head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset)
            offset += -(-int(np.prod(shape)) * 4 // 32) * 32
        path.write_bytes(head + bytes(-len(head) % 32) + self.data[:offset])
        return path


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16), ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10), ("view_src", ctypes.c_void_p), ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p), ("name", ctypes.c_char * 64),
    )  # fmt: skip


class _Init(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


def wanted_tensors(header: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors that llama.cpp asks for, from a file of key-values only."""
    import llama_cpp

    from localspec.llama import backend

    library = backend.library()
    found: dict[str, tuple[int, ...]] = {}
    kind = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Tensor), ctypes.c_void_p)

    def note(tensor: Any, _data: Any) -> None:
        shape = list(tensor.contents.ne)
        while len(shape) > 1 and shape[-1] == 1:
            shape.pop()
        found[tensor.contents.name.decode()] = tuple(shape)

    base = ctypes.CDLL(str(next(Path(llama_cpp.__file__).parent.glob("lib/*ggml-base*"))))
    base.gguf_init_from_file.argtypes = [ctypes.c_char_p, _Init]
    base.gguf_init_from_file.restype = ctypes.c_void_p
    context = base.gguf_init_from_file(str(header).encode(), _Init(True, None))
    init = llama_cpp.llama_cpp._lib.llama_model_init_from_user
    init.argtypes = [ctypes.c_void_p, kind, ctypes.c_void_p, llama_cpp.llama_model_params]
    init.restype = ctypes.c_void_p
    callback = kind(note)
    params = library.llama_model_default_params()
    params.n_gpu_layers = 0
    params.load_mtp = True
    model = init(context, callback, None, params)
    if not model:
        raise RuntimeError(backend.lines.last_line())
    library.llama_model_free(model)
    return found


def header_only(architecture: str, *, experts: bool = False) -> TinyFile:
    """Key-values with one small tensor: enough for metadata, not for llama.cpp."""
    values = {
        "general.architecture": architecture,
        **values_of(architecture, experts=experts),
        **tokenizer_values(),
    }
    return TinyFile(architecture, values, {"token_embd.weight": (8, 1)}, bytes(32))


def _with_heads(architecture: str, values: dict[str, Any], heads: int) -> None:
    """Prediction layers behind the others, of the last one's kind, or with attention where that has none."""
    layers = values[f"{architecture}.block_count"]
    values |= {f"{architecture}.block_count": layers + heads, f"{architecture}.nextn_predict_layers": heads}
    for key, value in values.items():
        if isinstance(value, list) and len(value) == layers and key.startswith(f"{architecture}."):
            values[key] = value + [max(value) if "head_count" in key else value[-1]] * heads
    if architecture == "glm4moe":
        del values[f"{architecture}.rope.dimension_sections"]


def _in_one(tensors: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Queries, keys and values of a layer in one tensor, as mimo2's converter writes them."""
    whole: dict[str, tuple[int, ...]] = {}
    for name, shape in tensors.items():
        block, _, kind = name.rpartition(".attn_")
        if kind == "q.weight":
            whole[f"{block}.attn_qkv.weight"] = (
                shape[0],
                sum(tensors[f"{block}.attn_{one}.weight"][1] for one in "qkv"),
            )
        elif kind.partition(".")[0] not in ("q", "k", "v"):
            whole[name] = shape
    return whole


def tiny(architecture: str, folder: Path, *, experts: bool = False, heads: int = 0) -> TinyFile:
    """A whole small file. heads: prediction layers. Raises RuntimeError with llama.cpp's word where the values do not
    suit it.
    """
    made = header_only(architecture, experts=experts)
    if heads:
        _with_heads(architecture, made.values, heads)
    header = TinyFile(architecture, made.values).write(folder / f"{architecture}.header")
    made.tensors = wanted_tensors(header)
    if heads:
        made.tensors = {name: shape for name, shape in made.tensors.items() if not name.endswith("scale")}
        made.tensors = _in_one(made.tensors) if architecture == "mimo2" else made.tensors
    rng = np.random.default_rng(1)
    parts = []
    for name, shape in made.tensors.items():
        one = rng.standard_normal(int(np.prod(shape)), dtype=np.float32) * 0.1
        if "norm" in name and name.endswith("weight"):
            one = np.ones_like(one)
        if "ssm_a" in name:
            one = -np.abs(one)
        raw = one.tobytes()
        parts.append(raw + bytes(-len(raw) % 32))
    made.data = b"".join(parts)
    return made
