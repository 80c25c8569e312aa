"""EagleContext: the cells of an EAGLE-3 head."""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from localspec.compute import library
from localspec.compute.context_options import ContextOptions
from localspec.decoding.sampling import Logits
from localspec.decoding.session import Span
from localspec.errors import DecodeCancelled, DecodeError
from localspec.llama.context import Context
from localspec.llama.head_context import HeadContext
from localspec.llama.hidden_states import States
from localspec.system.signals import signals_noted

if TYPE_CHECKING:
    from localspec.llama.weights import Weights


class EagleContext(HeadContext):
    """Runs the layer of an EAGLE-3 file behind what three layers of the target read at the position before.

    These features are made into a state of the head's own first; its guesses go on from the state that they leave.
    The first token of a text has none before it and no cell, as when such heads are trained: the cells that are held
    are counted with it.

    target: keeps the inputs of those layers (`ContextOptions.layer_inputs`).
    """

    def __init__(
        self,
        weights: Weights,
        target: Context,
        options: ContextOptions,
        cancel: library.CancelFlag | None = None,
    ) -> None:
        self._has_first: set[int] = set()
        super().__init__(weights, target, options, cancel)

    def _params(self) -> Any:
        params = super()._params()
        params.ctx_type = self._lib.llama_context_default_params().ctx_type
        return params

    def _held(self, sequence_id: int) -> int:
        return max(super()._held(sequence_id), int(sequence_id in self._has_first))

    def _remove(self, sequence_id: int, start: int) -> bool:
        if start <= 0:
            self._has_first.discard(sequence_id)
        return super()._remove(sequence_id, start)

    def _put(self, sequence_id: int, cells: memoryview, length: int) -> None:
        if length:
            self._has_first.add(sequence_id)
        super()._put(sequence_id, cells, length)

    def _run(self, span: Span, states: States, layer: int) -> list[Logits]:
        if span.start:
            return super()._run(span, states, layer)
        row: list[Logits] = []
        if len(span.tokens) > 1:
            rest = Span(span.sequence_id, span.tokens[1:], 1, span.num_logits)
            row = super()._run(rest, states[1:], layer)
        elif span.num_logits:
            row = super()._run(span, states, layer)
            self._remove(span.sequence_id, 0)
        self._has_first.add(span.sequence_id)
        return row

    def _states_before(self, span: Span) -> States:
        features = super()._states_before(span)
        states = np.zeros((len(span.tokens), self._width), np.float32)
        first = 0 if span.start else 1
        if len(span.tokens) > first:
            states[first:] = self._encoded(span, features[first:], first)
        return states

    def _encoded(self, span: Span, features: States, first: int) -> States:
        tokens, start = span.tokens[first:], span.start + first
        count = self.batch.fill([Span(span.sequence_id, tokens, start, len(tokens))])
        features = np.ascontiguousarray(features, np.float32)
        filled = self.batch.native
        batch = type(filled)(
            n_tokens=count,
            embd=features.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            pos=filled.pos,
            n_seq_id=filled.n_seq_id,
            seq_id=filled.seq_id,
            logits=filled.logits,
        )
        started = time.perf_counter()
        with signals_noted():
            code = int(self._lib.llama_encode(self._handle, batch))
            self._lib.llama_synchronize(self._handle)
        self.decode_seconds += time.perf_counter() - started
        if code and self.cancel.is_set:
            raise DecodeCancelled("The pass was cancelled.", code=code)
        pointer = self._calls.states(self._handle)
        if code or not pointer:
            raise DecodeError(
                f"What the target computed could not be read: code {code}.", "Try again.", code=code
            )
        found: States = np.ctypeslib.as_array(pointer, (count, self._width)).copy()
        return found
