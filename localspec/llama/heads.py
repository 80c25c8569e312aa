"""Prediction heads in llama.cpp: which files' it computes, and the calls that it has for them.

They are no part of its stable interface: what this build lacks is found out before they are used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.decoding.session import Span
from localspec.errors import BackendError
from localspec.gguf.heads import layers_in, prediction_layers
from localspec.gguf.metadata import Metadata
from localspec.llama import backend

States = npt.NDArray[np.float32]

MTP = 1
"""The type of a context that runs prediction layers (enum llama_context_type)."""


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


def why_no_head(metadata: Metadata) -> str:
    """Why no head of this file can draft here, as a clause, or ""."""
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
    return _missing()


def _layers(count: int) -> str:
    return "layer" if count == 1 else "layers"


@cache
def _missing() -> str:
    try:
        calls()
    except BackendError as error:
        return error.message.rstrip(".")
    return ""


@dataclass(frozen=True)
class Calls:
    """set_states(context, on, masked); states(context) -> all rows; state(context, i) -> that of an output row;
    set_layer(context, offset)."""

    set_states: Any
    states: Any
    state: Any
    set_layer: Any


@cache
def calls() -> Calls:
    """Those of the library that is loaded. Raises `BackendError` naming what it lacks."""
    lib = backend.library().llama_cpp._lib
    pointer, floats = ctypes.c_void_p, ctypes.POINTER(ctypes.c_float)
    return Calls(
        _call(lib, "llama_set_embeddings_nextn", "bb", [pointer, ctypes.c_bool, ctypes.c_bool], None),
        _call(lib, "llama_get_embeddings_nextn", "", [pointer], floats),
        _call(lib, "llama_get_embeddings_nextn_ith", "i", [pointer, ctypes.c_int32], floats),
        _call(lib, "llama_set_nextn_layer_offset", "i", [pointer, ctypes.c_int32], None),
    )


_MICROSOFT = {"": "", "i": "H", "bb": "_N1"}
"""How its compiler spells the arguments behind the context, and what comes back."""


def _call(lib: Any, name: str, arguments: str, argtypes: list[Any], restype: Any) -> Any:
    """A C++ function, whose name in the library depends on the compiler."""
    result = "PEAM" if restype else "X"
    spelled = (
        name,
        f"_Z{len(name)}{name}P13llama_context{arguments}",
        f"?{name}@@YA{result}PEAUllama_context@@{_MICROSOFT[arguments]}@Z",
    )
    for one in spelled:
        if (function := getattr(lib, one, None)) is not None:
            function.argtypes, function.restype = argtypes, restype
            return function
    raise BackendError(
        f"This build of {backend.PACKAGE} lacks {name}, which prediction layers need.",
        f"Install a tested version: pip install '{backend.PACKAGE}=={backend.TESTED[0]}'.",
    )


class HiddenStates:
    """The target's hidden state at each cell of a sequence, which its head reads beside the next token.

    Kept as the upper halves of float32 numbers. Of cells that were taken back from saved ones, and never seen, they
    are zeros, as before the first token.
    """

    def __init__(self, n_cells: int, width: int) -> None:
        self._shape = n_cells, width
        self._rows: dict[int, npt.NDArray[np.uint16]] = {}
        self._known: dict[int, int] = {}

    def known(self, sequence_id: int) -> int:
        """Of how many tokens of the sequence, counted from the first: of some, perhaps, whose cells are read again."""
        return self._known.get(sequence_id, 0)

    def take(self, spans: Sequence[Span], states: States) -> None:
        """What a pass over these spans gave, one row for each token."""
        end = 0
        for span in spans:
            begin, end = end, end + len(span.tokens)
            rows = self._rows.get(span.sequence_id)
            if rows is None:
                rows = self._rows[span.sequence_id] = np.zeros(self._shape, np.uint16)
            rows[self.known(span.sequence_id) : span.start] = 0
            last = span.start + end - begin
            rows[span.start : last] = (states[begin:end].view(np.uint32) >> 16).astype(np.uint16)
            self._known[span.sequence_id] = last

    def cut(self, sequence_id: int, length: int) -> None:
        """The tokens from `length` on do not stand."""
        self._known[sequence_id] = min(self.known(sequence_id), length)

    def forget(self, sequence_id: int, length: int) -> None:
        """The cells are `length` others, of which nothing was seen."""
        if sequence_id in self._rows:
            self._rows[sequence_id][:length] = 0
        self._known[sequence_id] = length

    def before(self, sequence_id: int, start: int, count: int) -> States:
        """For each of `count` positions from `start` on the state at the one before it, of shape (count, width)."""
        found = np.zeros((count, self._shape[1]), np.float32)
        rows = self._rows.get(sequence_id)
        first, last = max(start - 1, 0), min(start - 1 + count, self.known(sequence_id))
        if rows is not None and last > first:
            halves = rows[first:last].astype(np.uint32) << 16
            found[first - (start - 1) : last - (start - 1)] = halves.view(np.float32)
        return found
