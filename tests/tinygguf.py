"""Tiny GGUF files with random weights, written in milliseconds, that really load in llama.cpp.

They have 1-2 layers and a byte-level vocabulary: 256 bytes, a few merged pairs and four control tokens. Two
files of the same `seed`, one with a `noise` of 0.05, are a target and a draft that mostly agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

N_VOCAB = 300
END, START, STOP, BOS = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|bos|>"
CONTROL = (END, START, STOP, BOS)
PAIRS = ("he", "th", "in", "er", "an", "re", "on", "at", "en", "nd", "ti", "es", "or", "te", "of", "ed", "is")
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NORMAL, CONTROL_TYPE, UNUSED, BYTE_TYPE = 1, 3, 5, 6
_N_EMBD, _N_HEAD, _N_FF = 64, 4, 128


@dataclass
class Vocab:
    """What goes into the tokenizer's key-values. tokens and types by id; special: bos, eos, ... -> id."""

    tokens: list[str]
    types: list[int]
    special: dict[str, int]
    merges: list[str] = field(default_factory=list)
    model: str = "gpt2"
    pre: str = "gpt-2"
    add_bos: bool = False


def byte_vocab(n_vocab: int = N_VOCAB, *, changed: Mapping[int, str] | None = None) -> Vocab:
    """A gpt2-style vocabulary; what exceeds the real tokens is padding. changed: id -> another spelling."""
    tokens = [*_byte_letters().values(), *PAIRS, *CONTROL]
    if n_vocab < len(tokens):
        raise ValueError(f"n_vocab must be at least {len(tokens)}")
    first_control = len(tokens) - len(CONTROL)
    types = [NORMAL] * first_control + [CONTROL_TYPE] * len(CONTROL)
    types += [UNUSED] * (n_vocab - len(tokens))
    tokens += [f"[PAD{token}]" for token in range(len(tokens), n_vocab)]
    for token, spelling in (changed or {}).items():
        tokens[token] = spelling
    special = {"bos": first_control + 3, "eos": first_control + 2, "padding": first_control}
    return Vocab(tokens, types, special, [f"{pair[0]} {pair[1]}" for pair in PAIRS])


def sentencepiece_vocab() -> Vocab:
    """One of the kind that Gemma and the first Llamas have: special tokens, the bytes, then pieces of text."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>"]
    pieces = [f"▁{pair}" for pair in PAIRS] + [
        chr(letter) for letter in range(97, 97 + N_VOCAB - 260 - len(PAIRS))
    ]
    tokens = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [CONTROL_TYPE] * 3 + [2] + [BYTE_TYPE] * 256 + [NORMAL] * len(pieces)
    special = {"bos": 2, "eos": 1, "padding": 0, "unknown": 3}
    return Vocab(tokens, types, special, model="llama", pre="default")


def write_llama(
    path: Path,
    *,
    seed: int = 0,
    noise: float = 0.0,
    noise_seed: int = 1,
    n_vocab: int = N_VOCAB,
    changed_tokens: Mapping[int, str] | None = None,
    template: str | None = CHATML,
    n_layer: int = 2,
    n_ctx_train: int = 512,
    add_bos: bool = False,
    ends: bool = False,
    pre: str = "gpt-2",
    extra: Mapping[str, Any] | None = None,
    leave_out: Sequence[str] = (),
    per_part: int = 0,
) -> Path:
    """A model with plain attention.

    noise: 0 to 1, how much of the weights comes from `noise_seed` and not `seed`. ends: whether it is likely
    to choose the end-of-generation token soon; otherwise greedy output goes on until a limit. extra: more
    key-values, which replace the usual ones. leave_out: tensors not written. per_part: tensors of each file of a
    split model, whose first part is returned; 0 is one file.
    """
    vocab = byte_vocab(n_vocab, changed=changed_tokens)
    vocab.add_bos, vocab.pre = add_bos, pre
    values = _attention_values("llama", n_layer, n_ctx_train) | dict(extra or {})
    weights = _Weights(seed, noise, noise_seed)
    tensors = _attention_tensors(weights, n_vocab, n_layer)
    _mute(tensors, vocab)
    if ends:
        tensors["output.weight"][vocab.special["eos"]] = _Weights(seed, 0.0, 1)(_N_EMBD, gain=8.0)
    return _write(path, "llama", vocab, template, values, _without(tensors, leave_out), per_part)


def write_pair(folder: Path, **options: Any) -> tuple[Path, Path]:
    """`target.gguf`, and `draft.gguf` that proposes mostly what it says. options: of both, as for `write_llama`."""
    return (
        write_llama(folder / "target.gguf", seed=1, **options),
        write_llama(folder / "draft.gguf", seed=1, noise=0.05, **options),
    )


def write_trio(folder: Path) -> dict[str, Path]:
    """A pair, and a target so deep that something is always under way."""
    target, draft = write_pair(folder)
    return {"target": target, "draft": draft, "deep": write_llama(folder / "deep.gguf", seed=1, n_layer=40)}


def write_gemma(
    path: Path,
    *,
    seed: int = 0,
    noise: float = 0.0,
    n_swa: int = 16,
    n_layer: int = 2,
    template: str | None = CHATML,
    vocab: Vocab | None = None,
) -> Path:
    """A gemma3 model: attention over a sliding window of `n_swa` tokens in its layers, BOS added."""
    vocab = vocab or byte_vocab()
    vocab.add_bos = True
    values = _attention_values("gemma3", n_layer, 512) | {
        "gemma3.attention.sliding_window": n_swa,
        "gemma3.attention.key_length": _N_EMBD // _N_HEAD,
        "gemma3.attention.value_length": _N_EMBD // _N_HEAD,
    }
    weights = _Weights(seed, noise, 1)
    tensors = _attention_tensors(weights, N_VOCAB, n_layer, embedding_gain=1.0)
    for layer in range(n_layer):
        for name, width in (("attn_q_norm", 16), ("attn_k_norm", 16), ("post_attention_norm", _N_EMBD)):
            tensors[f"blk.{layer}.{name}.weight"] = np.ones(width, dtype=np.float32)
        tensors[f"blk.{layer}.post_ffw_norm.weight"] = np.ones(_N_EMBD, dtype=np.float32)
    _mute(tensors, vocab)
    return _write(path, "gemma3", vocab, template, values, tensors)


def write_mamba(path: Path, *, seed: int = 0, n_layer: int = 2, template: str | None = CHATML) -> Path:
    """A recurrent model."""
    vocab = byte_vocab()
    inner, state, conv, rank = 2 * _N_EMBD, 8, 4, 4
    values = _common_values("mamba", n_layer, 512) | {
        "mamba.feed_forward_length": 0,
        "mamba.attention.head_count": 0,
        "mamba.ssm.conv_kernel": conv,
        "mamba.ssm.inner_size": inner,
        "mamba.ssm.state_size": state,
        "mamba.ssm.time_step_rank": rank,
    }
    weights = _Weights(seed, 0.0, 1)
    tensors = _embedding_tensors(weights, N_VOCAB)
    for layer in range(n_layer):
        block = f"blk.{layer}"
        tensors |= {
            f"{block}.attn_norm.weight": np.ones(_N_EMBD, dtype=np.float32),
            f"{block}.ssm_in.weight": weights(2 * inner, _N_EMBD),
            f"{block}.ssm_conv1d.weight": weights(inner, conv),
            f"{block}.ssm_conv1d.bias": weights(inner),
            f"{block}.ssm_x.weight": weights(rank + 2 * state, inner),
            f"{block}.ssm_dt.weight": weights(inner, rank),
            f"{block}.ssm_dt.bias": weights(inner),
            f"{block}.ssm_a": -np.ones((inner, state), dtype=np.float32),
            f"{block}.ssm_d": np.ones(inner, dtype=np.float32),
            f"{block}.ssm_out.weight": weights(_N_EMBD, inner),
        }
    _mute(tensors, vocab)
    return _write(path, "mamba", vocab, template, values, tensors)


def write_tokenizer_only(path: Path, vocab: Vocab, *, template: str | None = None) -> Path:
    """A file with a given tokenizer and one small tensor: enough for metadata, not for llama.cpp."""
    tensors = {"token_embd.weight": np.zeros((1, 8), dtype=np.float32)}
    return _write(path, "llama", vocab, template, _attention_values("llama", 1, 512), tensors)


def write_stranger(path: Path) -> Path:
    """A file that no draft of another file's vocabulary fits: what its tokens are in bytes is not known."""
    return write_tokenizer_only(path, Vocab(["a", "b", "c"], [NORMAL] * 3, {}, model="t5"))


class _Weights:
    """Random matrices of unit gain, blended from two seeds."""

    def __init__(self, seed: int, noise: float, noise_seed: int) -> None:
        self._main, self._other = np.random.default_rng(seed), np.random.default_rng([seed, noise_seed])
        self._shares = np.sqrt(1.0 - noise**2), noise

    def __call__(self, *shape: int, gain: float = 1.0) -> np.ndarray:
        main, other = self._main.standard_normal(shape), self._other.standard_normal(shape)
        blend = self._shares[0] * main + self._shares[1] * other
        return (gain * blend / np.sqrt(shape[-1])).astype(np.float32)


def _byte_letters() -> dict[int, str]:
    """GPT-2's printable letter for each byte, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return {byte: chr(byte) if byte in printable else chr(next(others)) for byte in range(256)}


def _common_values(architecture: str, n_layer: int, n_ctx_train: int) -> dict[str, Any]:
    return {
        f"{architecture}.context_length": n_ctx_train,
        f"{architecture}.embedding_length": _N_EMBD,
        f"{architecture}.block_count": n_layer,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        "general.file_type": 0,
    }


def _attention_values(architecture: str, n_layer: int, n_ctx_train: int) -> dict[str, Any]:
    return _common_values(architecture, n_layer, n_ctx_train) | {
        f"{architecture}.feed_forward_length": _N_FF,
        f"{architecture}.attention.head_count": _N_HEAD,
        f"{architecture}.attention.head_count_kv": 2,
        f"{architecture}.rope.freq_base": 10000.0,
    }


def _embedding_tensors(weights: _Weights, n_vocab: int, *, gain: float = 8.0) -> dict[str, np.ndarray]:
    """Padding tokens get rows of zeros, so that padding changes nothing else."""
    embedding, output = weights(N_VOCAB, _N_EMBD, gain=gain), weights(N_VOCAB, _N_EMBD, gain=3.0)
    padding = np.zeros((max(n_vocab - N_VOCAB, 0), _N_EMBD), dtype=np.float32)
    return {
        "token_embd.weight": np.concatenate([embedding, padding])[:n_vocab],
        "output_norm.weight": np.ones(_N_EMBD, dtype=np.float32),
        "output.weight": np.concatenate([output, padding])[:n_vocab],
    }


def _attention_tensors(
    weights: _Weights, n_vocab: int, n_layer: int, *, embedding_gain: float = 8.0
) -> dict[str, np.ndarray]:
    tensors = _embedding_tensors(weights, n_vocab, gain=embedding_gain)
    ones = np.ones(_N_EMBD, dtype=np.float32)
    half = _N_EMBD // 2  # two key-value heads for four query heads
    for layer in range(n_layer):
        block = f"blk.{layer}"
        tensors |= {
            f"{block}.attn_norm.weight": ones,
            f"{block}.attn_q.weight": weights(_N_EMBD, _N_EMBD, gain=1.5),
            f"{block}.attn_k.weight": weights(half, _N_EMBD, gain=1.5),
            f"{block}.attn_v.weight": weights(half, _N_EMBD, gain=2.0),
            f"{block}.attn_output.weight": weights(_N_EMBD, _N_EMBD, gain=4.0),
            f"{block}.ffn_norm.weight": ones,
            f"{block}.ffn_gate.weight": weights(_N_FF, _N_EMBD),
            f"{block}.ffn_up.weight": weights(_N_FF, _N_EMBD),
            f"{block}.ffn_down.weight": weights(_N_EMBD, _N_FF),
        }
    return tensors


def _mute(tensors: dict[str, np.ndarray], vocab: Vocab) -> None:
    """Logit 0 for control and padding tokens, so that greedy decoding does not pick one."""
    silent = [token for token, kind in enumerate(vocab.types) if kind != NORMAL]
    tensors["output.weight"][silent] = 0.0


def _without(tensors: dict[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
    return {name: tensor for name, tensor in tensors.items() if name not in names}


def _write(
    path: Path,
    architecture: str,
    vocab: Vocab,
    template: str | None,
    values: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    per_part: int = 0,
) -> Path:
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=per_part)
    writer.add_name(path.stem)
    for key, value in values.items():
        _add(writer, key, value)
    writer.add_tokenizer_model(vocab.model)
    writer.add_tokenizer_pre(vocab.pre)
    writer.add_token_list(vocab.tokens)
    writer.add_token_types(vocab.types)
    if vocab.merges:
        writer.add_token_merges(vocab.merges)
    for name, token in vocab.special.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
    writer.add_add_bos_token(vocab.add_bos)
    if template is not None:
        writer.add_chat_template(template)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    count = -(-len(tensors) // per_part) if per_part else 1
    return path if count == 1 else path.with_name(f"{path.stem}-00001-of-{count:05}.gguf")


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    adders = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    adders.get(type(value), writer.add_array)(key, value)
