"""Tiny files of models with prediction layers, whose weights are set so that it is known what their heads say.

Layers add nothing unless `noise` lets them: then a token depends on its predecessor alone. The texts that such a
target prefers go round through 64 letters, and its head knows the next but one from the hidden state alone: from
that of another position it would say something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tests.tinygguf import CHATML, N_VOCAB, _write, byte_vocab

LETTERS, FIRST = 64, 32
"""The ids of the round: FIRST and the 63 behind it."""
_HEADS, _FF = 2, 32
Stands = Literal["always", "half", "never"]


def following(token: int) -> int:
    """What the target prefers behind `token`, where its layers add nothing."""
    return FIRST + _step(token % LETTERS - FIRST % LETTERS)


def says(token: int, stands: Stands) -> int:
    """What a head takes for `following(token)`."""
    letter = (token % LETTERS - FIRST % LETTERS) % LETTERS
    return FIRST + _guess(letter, stands)


def _step(letter: int) -> int:
    return (5 * letter + 3) % LETTERS  # passes through all of them


def _guess(letter: int, stands: Stands) -> int:
    right = stands == "always" or (stands == "half" and letter // 2 % 2 == 0)
    return _step(letter) if right else (_step(letter) + 1) % LETTERS


def write_headed(
    path: Path,
    *,
    architecture: str = "step35",
    heads: int = 1,
    stands: Stands = "always",
    noise: float = 0.0,
    head_noise: float = 0.0,
    gain: float = 2.0,
    seed: int = 1,
    parts: Literal["all", "trunk", "heads"] = "all",
    n_ctx_train: int = 512,
) -> Path:
    """A target with `heads` prediction layers, or none with 0.

    architecture: "step35" (attention alone, any number of heads), "qwen35" (a gated delta net and attention, one
    head) or "llama" (attention alone, no heads). noise, head_noise: how much attention and feed-forward layers of the
    target and of its heads add. gain: how sure the target is. parts: "trunk" leaves the heads' tensors out, "heads"
    all others but the embeddings and the output.
    """
    trunk = 2
    rng = np.random.default_rng(seed)
    tensors = _ends(gain)
    for layer in range(trunk + heads):
        is_head = layer >= trunk
        if parts == ("heads" if not is_head else "trunk"):
            continue
        recurrent = architecture == "qwen35" and layer == 0
        kind = _delta_net if recurrent else _attention
        tensors |= kind(f"blk.{layer}", architecture, rng, head_noise if is_head else noise)
        if is_head:
            tensors |= _head(f"blk.{layer}", stands)
    values = _values(architecture, trunk, heads, n_ctx_train)
    return _write(path, architecture, byte_vocab(), CHATML, values, tensors)


def write_eagle(
    path: Path,
    *,
    stands: Stands = "always",
    head_noise: float = 0.0,
    seed: int = 3,
    own_ends: bool = True,
    drafted: Sequence[int] = (),
    extra: Mapping[str, Any] | None = None,
    changed: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """An EAGLE-3 head for a target of `write_headed`, which says what that one's prediction layer would say.

    head_noise: how much attention adds. own_ends: whether it has embeddings and an output of its own. drafted: the
    tokens that it can draft, if not all. extra, changed: key-values and tensors that replace the usual ones.
    """
    rng = np.random.default_rng(seed)
    eye, ones = np.eye(LETTERS, dtype=np.float32), np.ones(LETTERS, dtype=np.float32)
    guess = np.zeros_like(eye)
    for letter in range(LETTERS):
        guess[_guess(letter, stands), letter] = 1
    ends = _ends(2.0)
    tensors = {"fc.weight": np.concatenate([eye, eye, eye], axis=1) / 3, "output_norm.weight": ones}
    if own_ends or drafted:
        tensors |= {name: ends[name] for name in ("token_embd.weight", "output.weight")}
    if drafted:
        tensors["output.weight"] = tensors["output.weight"][list(drafted)]
        tensors["d2t"] = np.array(drafted, dtype=np.int64)
    # Norms make a state that stands for a letter 8 long; of such a one the gates let 8 * 64 through.
    tensors |= {
        "blk.0.attn_norm.weight": ones,
        "blk.0.attn_norm_2.weight": ones,
        "blk.0.ffn_norm.weight": ones,
        **{f"blk.0.attn_{of}.weight": _matrix(rng, LETTERS, 2 * LETTERS) for of in "qkv"},
        "blk.0.attn_output.weight": head_noise * _matrix(rng, LETTERS, LETTERS),
        "blk.0.ffn_gate.weight": 8 * eye,
        "blk.0.ffn_up.weight": eye,
        "blk.0.ffn_down.weight": (guess - eye) / (8 * 64),
    }
    values: dict[str, Any] = {
        "context_length": 512, "embedding_length": LETTERS, "block_count": 1, "feed_forward_length": LETTERS,
        "attention.layer_norm_rms_epsilon": 1e-5, "attention.head_count": _HEADS, "attention.head_count_kv": _HEADS,
        "rope.freq_base": 10000.0, "target_layers": [0, 1, 1], "target_hidden_size": LETTERS,
    }  # fmt: skip
    values |= dict(extra or {})
    values = {"general.file_type": 0} | {f"eagle3.{key}": value for key, value in values.items()}
    kept = {name: value for name, value in {**tensors, **(changed or {})}.items() if value.size}
    return _write(path, "eagle3", byte_vocab(), None, values, kept)


def _ends(gain: float) -> dict[str, np.ndarray]:
    embedding = np.zeros((N_VOCAB, LETTERS), dtype=np.float32)
    output = np.zeros((N_VOCAB, LETTERS), dtype=np.float32)
    for token in range(N_VOCAB):
        embedding[token, (token - FIRST) % LETTERS] = 1.0
    for letter in range(LETTERS):
        output[FIRST + _step(letter), letter] = gain
    return {
        "token_embd.weight": embedding,
        "output_norm.weight": np.ones(LETTERS, dtype=np.float32),
        "output.weight": output,
    }


def _head(block: str, stands: Stands) -> dict[str, np.ndarray]:
    """It makes the hidden state of the token that it guesses of the hidden state before it; norms make it 8 times as
    long, for there are 64 letters."""
    guess = np.zeros((LETTERS, LETTERS), dtype=np.float32)
    for letter in range(LETTERS):
        guess[_guess(letter, stands), letter] = 1 / 8
    ones = np.ones(LETTERS, dtype=np.float32)
    return {
        f"{block}.nextn.eh_proj.weight": np.concatenate([np.zeros_like(guess), guess], axis=1),
        f"{block}.nextn.enorm.weight": ones,
        f"{block}.nextn.hnorm.weight": ones,
        f"{block}.nextn.shared_head_norm.weight": ones,
    }


def _feed_forward(block: str, rng: np.random.Generator, noise: float) -> dict[str, np.ndarray]:
    return {
        f"{block}.ffn_gate.weight": _matrix(rng, _FF, LETTERS),
        f"{block}.ffn_up.weight": _matrix(rng, _FF, LETTERS),
        f"{block}.ffn_down.weight": noise * _matrix(rng, LETTERS, _FF),
    }


def _attention(
    block: str, architecture: str, rng: np.random.Generator, noise: float
) -> dict[str, np.ndarray]:
    ones, size = np.ones(LETTERS, dtype=np.float32), LETTERS // _HEADS
    doubled = 2 if architecture == "qwen35" else 1  # queries and the gates of what they find
    made = {
        f"{block}.attn_norm.weight": ones,
        f"{block}.attn_q.weight": _matrix(rng, doubled * LETTERS, LETTERS),
        f"{block}.attn_k.weight": _matrix(rng, LETTERS, LETTERS),
        f"{block}.attn_v.weight": _matrix(rng, LETTERS, LETTERS),
        f"{block}.attn_output.weight": noise * _matrix(rng, LETTERS, LETTERS),
        f"{block}.{'post_attention_norm' if architecture == 'qwen35' else 'ffn_norm'}.weight": ones,
        **_feed_forward(block, rng, noise),
    }
    if architecture == "qwen35":
        made |= {f"{block}.attn_{of}_norm.weight": np.ones(size, dtype=np.float32) for of in "qk"}
    return made


def _delta_net(
    block: str, architecture: str, rng: np.random.Generator, noise: float
) -> dict[str, np.ndarray]:
    ones = np.ones(LETTERS, dtype=np.float32)
    state, groups, ranks, conv = 16, 2, 2, 4
    keys, inner = state * groups, state * ranks
    return {
        f"{block}.attn_norm.weight": ones,
        f"{block}.post_attention_norm.weight": ones,
        f"{block}.attn_qkv.weight": _matrix(rng, 2 * keys + inner, LETTERS),
        f"{block}.attn_gate.weight": _matrix(rng, inner, LETTERS),
        f"{block}.ssm_conv1d.weight": _matrix(rng, 2 * keys + inner, conv),
        f"{block}.ssm_dt.bias": np.ones(ranks, dtype=np.float32),
        f"{block}.ssm_a": -np.ones(ranks, dtype=np.float32),
        f"{block}.ssm_beta.weight": _matrix(rng, ranks, LETTERS),
        f"{block}.ssm_alpha.weight": _matrix(rng, ranks, LETTERS),
        f"{block}.ssm_norm.weight": np.ones(state, dtype=np.float32),
        f"{block}.ssm_out.weight": noise * _matrix(rng, LETTERS, inner),
        **_feed_forward(block, rng, noise),
    }


def _matrix(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def _values(architecture: str, trunk: int, heads: int, n_ctx_train: int) -> dict[str, Any]:
    layers, size = trunk + heads, LETTERS // _HEADS
    values: dict[str, Any] = {
        "context_length": n_ctx_train, "embedding_length": LETTERS, "block_count": layers, "feed_forward_length": _FF,
        "attention.layer_norm_rms_epsilon": 1e-5, "attention.head_count": _HEADS, "attention.head_count_kv": _HEADS,
        "attention.key_length": size, "attention.value_length": size, "rope.freq_base": 10000.0,
        "rope.dimension_count": size,
    }  # fmt: skip
    if heads:
        values["nextn_predict_layers"] = heads
    if architecture == "step35":
        values |= {
            "expert_feed_forward_length": _FF, "expert_shared_feed_forward_length": _FF,
            "attention.sliding_window": 4096, "attention.sliding_window_pattern": [1] * layers,
            "expert_count": 0, "expert_used_count": 0,
        }  # fmt: skip
    if architecture == "qwen35":
        values |= {
            "rope.dimension_sections": [4, 4, 4, 0], "full_attention_interval": 2, "ssm.conv_kernel": 4,
            "ssm.inner_size": 32, "ssm.state_size": 16, "ssm.time_step_rank": 2, "ssm.group_count": 2,
        }  # fmt: skip
    return {"general.file_type": 0} | {f"{architecture}.{key}": value for key, value in values.items()}
