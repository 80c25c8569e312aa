"""llama.cpp's own samplers on a row of logits, as a reference for ours."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from localspec.decoding.params import SamplingParams
from localspec.llama.backend import library


def chain(params: SamplingParams, n_vocab: int, n_ctx: int = 4096) -> list[Any]:
    """The samplers of these parameters in llama.cpp's default order; those that are off are there too."""
    llama = library()
    bias = (llama.llama_logit_bias * len(params.logit_bias))(
        *(llama.llama_logit_bias(token, value) for token, value in params.logit_bias.items())
    )
    window = n_ctx if params.repeat_last_n == -1 else params.repeat_last_n
    penalties = (params.repeat_penalty, params.frequency_penalty, params.presence_penalty)
    return [
        llama.llama_sampler_init_logit_bias(n_vocab, len(bias), bias),
        llama.llama_sampler_init_penalties(n_vocab, window, *penalties),
        llama.llama_sampler_init_top_n_sigma(params.top_n_sigma),
        llama.llama_sampler_init_top_k(params.top_k),
        llama.llama_sampler_init_typical(params.typical_p, 0),
        llama.llama_sampler_init_top_p(params.top_p, 0),
        llama.llama_sampler_init_min_p(params.min_p, 0),
        llama.llama_sampler_init_temp(params.temperature),
    ]


def apply(samplers: Iterable[Any], logits: np.ndarray, history: Sequence[int] = ()) -> np.ndarray:
    """What they leave, as probabilities of shape (V,); frees them. history: accepted before."""
    llama = library()
    whole = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
    for sampler in samplers:
        llama.llama_sampler_chain_add(whole, sampler)
    for token in history:
        llama.llama_sampler_accept(whole, token)
    items = np.zeros(len(logits), dtype=[("id", "i4"), ("logit", "f4"), ("p", "f4")])
    items["id"], items["logit"] = np.arange(len(logits)), logits
    data = (llama.llama_token_data * len(logits)).from_buffer(items)
    row = llama.llama_token_data_array(data, len(logits), -1, False)
    llama.llama_sampler_apply(whole, ctypes.byref(row))
    # The samplers may have put another array there, which is theirs.
    left = np.frombuffer(ctypes.string_at(row.data, row.size * items.itemsize), dtype=items.dtype)
    llama.llama_sampler_free(whole)
    mass = np.zeros(len(logits))
    mass[left["id"]] = np.exp(left["logit"].astype(np.float64) - left["logit"].max())
    return mass / mass.sum()
