"""Context: KV memory of one model in llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from localspec.compute import library
from localspec.compute.context_options import ContextOptions
from localspec.decoding.rollback import CUT, Rollback
from localspec.decoding.sampling import Logits
from localspec.decoding.session import Span
from localspec.errors import DecodeError
from localspec.ggml.context import NativeContext
from localspec.llama import backend, head_calls
from localspec.llama.hidden_states import HiddenStates, States

if TYPE_CHECKING:
    from localspec.llama.weights import Weights


class Context(NativeContext):
    """KV memory on weights of llama.cpp. hidden: the hidden states of its cells, where the options ask for them."""

    name = "llama.cpp"
    hidden: HiddenStates | None = None

    def __init__(
        self, weights: Weights, options: ContextOptions, cancel: library.CancelFlag | None = None
    ) -> None:
        self._model = weights
        self._has_running_state = weights.is_recurrent or weights.is_hybrid
        # A saved state holds no more of a sliding window than the window.
        self.whole_states = weights.n_swa > 0 or self._has_running_state
        super().__init__(
            weights,
            options,
            cancel,
            lib=backend.library(),
            lines=backend.lines,
            gate=backend.gate,
            n_vocab=weights.vocabulary.n_vocab,
        )
        self._memory = self._lib.llama_get_memory(self._handle)
        if options.hidden_states:
            self._state_width = int(self._lib.llama_model_n_embd_out(weights.handle))
            head_calls.calls().set_states(self._handle, True, False)
        if options.layer_inputs:
            self._state_width = int(self._lib.llama_model_n_embd(weights.handle))
            for layer in options.layer_inputs:
                head_calls.layer_inputs().keep(self._handle, layer, True)
        if options.hidden_states or options.layer_inputs:
            width = self._state_width * (len(options.layer_inputs) or 1)
            self.hidden = HiddenStates(self.n_ctx + options.spare, width)

    @property
    def handle(self) -> Any:
        """llama.cpp's pointer, for its room only."""
        self._check_open()
        return self._handle

    def decode(self, spans: Sequence[Span]) -> list[list[Logits]]:
        """One forward pass over all spans; for each its `num_logits` rows of shape (V,), float32, copied."""
        rows = super().decode(spans)
        if self.hidden is not None:
            self.hidden.take(spans, self._computed(sum(len(span.tokens) for span in spans)))
        return rows

    def _computed(self, num_tokens: int) -> States:
        """What is kept of the latest pass: its hidden states, or the inputs of some layers side by side."""
        if self.options.layer_inputs:
            calls = head_calls.layer_inputs()
            found = [calls.rows(self._handle, layer) for layer in self.options.layer_inputs]
        else:
            found = [head_calls.calls().states(self._handle)]
        if not all(found):
            raise DecodeError(f"{self.name} returned no hidden states.", code=0)
        shape = num_tokens, self._state_width
        return np.concatenate([np.ctypeslib.as_array(pointer, shape) for pointer in found], axis=1)

    def truncate(self, sequence_id: int, length: int) -> int:
        """Forget the cells from `length` on; returns how many are left."""
        if self.hidden is not None:
            # Also where fewer cells are left: the same tokens are read again.
            self.hidden.cut(sequence_id, length)
        return super().truncate(sequence_id, length)

    def load_state(self, data: bytes, sequence_id: int = 0) -> int:
        """Put saved cells in the place of what the sequence holds; returns how many tokens they are."""
        if self.hidden is not None:
            self.hidden.forget(sequence_id, 0)
        length = super().load_state(data, sequence_id)
        if self.hidden is not None:
            self.hidden.forget(sequence_id, length)
        return length

    def _how_to_go_back(self) -> Rollback:
        if not self._has_running_state:
            return CUT
        # Granted for some architectures alone: for others it is set to 0 in silence.
        granted = int(self._lib.llama_n_rs_seq(self._handle))
        return Rollback("snapshots", granted) if granted else Rollback("replay")

    def _opened(self) -> Any:
        handle = self._lib.llama_init_from_model(self._model.handle, self._params())
        if handle:
            callback = self.cancel.callback(self._lib.ggml_abort_callback)
            self._lib.llama_set_abort_callback(handle, callback, self.cancel.data)
        return handle

    def _params(self) -> Any:
        options = self.options
        return backend.set_fields(
            self._lib.llama_context_default_params(),
            n_ctx=options.n_ctx + options.spare,
            n_batch=self.n_batch,
            n_ubatch=self.n_batch,
            n_seq_max=options.n_sequences,
            # With as many snapshots as a pass has tokens, or one less, llama.cpp ends the process.
            n_rs_seq=max(min(options.snapshots, self.n_batch - 2), 0) if self._has_running_state else 0,
            n_outputs_max=self.n_outputs,
            n_outputs_max_per_seq=self.n_outputs,
            n_threads=self.threads,
            n_threads_batch=self.threads,
            type_k=backend.CACHE_TYPES[options.cache_type_k],
            type_v=backend.CACHE_TYPES[options.cache_type_v],
            swa_full=True,  # a wrapped window cannot be rolled back
            kv_unified=not options.separate,
        )

    def _remove(self, sequence_id: int, start: int) -> bool:
        return bool(self._lib.llama_memory_seq_rm(self._memory, sequence_id, start, -1))

    def _copy(self, source: int, destination: int, count: int) -> None:
        self._lib.llama_memory_seq_cp(self._memory, source, destination, 0, count)

    def _held(self, sequence_id: int) -> int:
        return int(self._lib.llama_memory_seq_pos_max(self._memory, sequence_id)) + 1

    def _is_whole(self, sequence_id: int, length: int) -> bool:
        """Whether the next token finds all that its sliding window reaches."""
        if not (window := self._model.n_swa):
            return True
        first = int(self._lib.llama_memory_seq_pos_min(self._memory, sequence_id))
        reaches_to = length - window + 1  # the window counts the token that looks back
        return self.length(sequence_id) == length and first <= max(reaches_to, 0)

    def _state_call(self, name: str, sequence_id: int, *, partial: bool = False) -> Callable[..., int]:
        flags = self._lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY if partial else 0
        call = getattr(self._lib, f"llama_state_seq_{name}_ext")
        return lambda *place: call(self._handle, *place, sequence_id, flags)
