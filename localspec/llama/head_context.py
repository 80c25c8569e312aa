"""HeadContext: the cells of a model's prediction layers. A drafter sees a context like any other."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from localspec.compute import library, state
from localspec.compute.context_options import ContextOptions
from localspec.decoding.rollback import CUT, Rollback
from localspec.decoding.sampling import Logits
from localspec.decoding.session import Span
from localspec.errors import DecodeError
from localspec.llama import head_calls
from localspec.llama.context import Context
from localspec.llama.hidden_states import States

if TYPE_CHECKING:
    from localspec.llama.weights import Weights

_NO_STATES = ctypes.POINTER(ctypes.c_float)()


class HeadContext(Context):
    """Runs the prediction layers of `weights` beside the context of their target.

    The cell at position p is of the token there and the target's hidden state at p - 1; its row says what follows.
    Behind what the target has read, the state is what the layer itself made of the position before.
    With several layers, each guesses one token further than the one before it, and all read every token of the text.

    target: keeps its hidden states (`ContextOptions.hidden_states`). depth: tokens it can guess in a row; None: any.
    """

    def __init__(
        self,
        weights: Weights,
        target: Context,
        options: ContextOptions,
        cancel: library.CancelFlag | None = None,
    ) -> None:
        assert target.hidden is not None, "a target that keeps its hidden states"
        self.target = target
        self._hidden, self._calls = target.hidden, head_calls.calls()
        self._num_layers = weights.num_heads
        self.depth = self._num_layers if self._num_layers > 1 else None
        self._guesses: dict[int, _Guesses] = {}
        super().__init__(weights, options, cancel)
        self.whole_states = weights.n_swa > 0
        self._width = int(self._lib.llama_model_n_embd_out(weights.handle))
        self._calls.set_states(self._handle, True, True)

    def _how_to_go_back(self) -> Rollback:
        """These layers are of attention, also where the target holds a running state."""
        return CUT

    def _params(self) -> Any:
        params = super()._params()
        params.ctx_type, params.ctx_other = head_calls.MTP, self.target.handle
        return params

    def known(self, sequence_id: int = 0) -> int:
        """Tokens at the start of a sequence that the target has read, so that their hidden states are known."""
        return self._hidden.known(sequence_id)

    def truncate(self, sequence_id: int, length: int) -> int:
        """Forget the cells from `length` on; returns how many are left."""
        self._guesses.pop(sequence_id, None)
        return super().truncate(sequence_id, length)

    def load_state(self, data: bytes, sequence_id: int = 0) -> int:
        """Put saved cells in the place of what the sequence holds; returns how many tokens they are."""
        self._guesses.pop(sequence_id, None)
        return super().load_state(data, sequence_id)

    def decode(self, spans: Sequence[Span]) -> list[list[Logits]]:
        """As that of any context, with at most one row for a span, of its last token."""
        self._check_spans(spans)
        if any(span.num_logits > 1 or span.num_padding for span in spans):
            raise DecodeError("Prediction layers give one row for a pass, without padding.", code=0)
        return [self._read(span) for span in spans]

    def _read(self, span: Span) -> list[Logits]:
        before = self._guesses.get(span.sequence_id)
        if (
            before is not None
            and before.goes_on(span)
            and span.start > self.known(span.sequence_id)
            and (
                self.depth is None or len(before.tokens) + 1 < self.depth
            )  # the library would end the process
        ):
            before.tokens.append(span.tokens[0])
            return self._guess(span.sequence_id, before)
        states = self._states_before(span)
        for layer in range(self._num_layers - 1, 0, -1):
            self._run(span, states, layer)
            self._remove(span.sequence_id, span.start)
        # Only the last token has a row, and the layer's own state is found by it: a pass of its own.
        rest = len(span.tokens) - span.num_logits
        self._guesses.pop(span.sequence_id, None)
        if rest:
            self._run(_part(span, 0, rest), states[:rest], 0)
        if not span.num_logits:
            return []
        last = _part(span, rest, rest + 1)
        row = self._run(last, states[rest:], 0)
        self._guesses[span.sequence_id] = _Guesses(last.start + 1, [], [self._own_state()])
        return row

    def _states_before(self, span: Span) -> States:
        return self._hidden.before(span.sequence_id, span.start, len(span.tokens))

    def _guess(self, sequence_id: int, so_far: _Guesses) -> list[Logits]:
        """One token further: with several layers by the next one, which reads all tokens guessed so far."""
        if self._num_layers == 1:
            read, layer = so_far.tokens[-1:], 0
        else:
            read, layer = so_far.tokens, len(so_far.tokens)
            self._remove(sequence_id, so_far.start)
        start = so_far.start + len(so_far.tokens) - len(read)
        states = np.stack(so_far.states[-len(read) :])
        row = self._run(Span(sequence_id, tuple(read), start, 1), states, layer)
        so_far.states.append(self._own_state())
        return row

    def _own_state(self) -> States:
        pointer = self._calls.state(self._handle, -1)
        if not pointer:
            raise DecodeError(f"{self.name} returned no hidden state.", code=0)
        found: States = np.ctypeslib.as_array(pointer, (self._width,)).copy()
        return found

    def _run(self, span: Span, states: States, layer: int) -> list[Logits]:
        if self._num_layers > 1:
            self._calls.set_layer(self._handle, layer)
        states = np.ascontiguousarray(states, np.float32)
        self.batch.native.embd = states.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        try:
            (rows,) = super().decode([span])
        finally:
            self.batch.native.embd = _NO_STATES  # which the library would free with the batch
        return rows

    @cached_property
    def _owner(self) -> state.Facts:
        return {**super()._owner, "model": f"{super()._owner['model']} prediction layers"}


class _Guesses:
    """Tokens that a head guessed from `start` on and read again.

    states: its own, before each of these positions and the next one.
    """

    def __init__(self, start: int, tokens: list[int], states: list[States]) -> None:
        self.start, self.tokens, self.states = start, tokens, states

    def goes_on(self, span: Span) -> bool:
        """Whether the span is the next token behind them, as many as there are."""
        return len(span.tokens) == 1 == span.num_logits and span.start == self.start + len(self.tokens)


def _part(span: Span, begin: int, end: int) -> Span:
    num_logits = span.num_logits if end == len(span.tokens) else 0
    return Span(span.sequence_id, span.tokens[begin:end], span.start + begin, num_logits)
