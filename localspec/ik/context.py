"""Context: KV memory of one model in ik_llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import byref
from typing import TYPE_CHECKING, Any

from localspec.compute import library
from localspec.compute.context_options import ContextOptions
from localspec.decoding.rollback import CUT, Rollback
from localspec.decoding.sampling import Logits
from localspec.decoding.session import Span
from localspec.errors import ModelLoadError
from localspec.ggml.context import NativeContext
from localspec.ggml.pass_thread import made_there
from localspec.ik import binding, files
from localspec.ik.cancelling import CancelFlag
from localspec.ik.structs import AbortCallback

if TYPE_CHECKING:
    from localspec.ik.weights import Weights

_NO_FLAGS, _PARTIAL_ONLY = 0, 1


class Context(NativeContext):
    """KV memory on weights of ik_llama.cpp. All cells of a sliding window are kept, so any of them can be forgotten."""

    name = "ik_llama.cpp"
    cut_short_is_0 = True
    _holes = False

    def __init__(
        self, weights: Weights, options: ContextOptions, cancel: library.CancelFlag | None = None
    ) -> None:
        self._model = weights
        lib = binding.library()
        self._has_running_state = bool(lib.llama_model_has_recurrent(weights.handle))
        self.whole_states = self._has_running_state
        super().__init__(
            weights,
            options,
            cancel or CancelFlag(),
            lib=lib,
            lines=binding.lines,
            gate=binding.gate,
            n_vocab=int(lib.llama_n_vocab(weights.handle)),
        )

    def _how_to_go_back(self) -> Rollback:
        # It removes cells behind a running state and says yes, and leaves the state as it is.
        return Rollback("replay") if self._has_running_state else CUT

    def _opened(self) -> Any:
        options, params = self.options, self._lib.llama_context_default_params()
        fault = files.cache_fault(self._model.metadata, options.cache_type_k, options.cache_type_v)
        if fault:
            raise ModelLoadError(
                f"{self.name} could not make a context for {self._model.path}: {fault}.",
                "Ask for another cache type.",
                path=str(self._model.path),
            )
        params.n_ctx = options.n_ctx + options.spare
        params.n_batch = params.n_ubatch = self.n_batch
        params.n_seq_max = options.n_sequences
        # Its fused attention, which a quantized V cache needs, ends the process where a whole block of cells is other
        # sequences'.
        params.flash_attn = options.n_sequences == 1 or files.is_quantized(options.cache_type_v)
        params.n_threads = params.n_threads_batch = self.threads
        params.type_k = binding.CACHE_TYPES[options.cache_type_k]
        params.type_v = binding.CACHE_TYPES[options.cache_type_v]
        self._stops = self.cancel.callback(AbortCallback)
        params.abort_callback = self._stops
        params.abort_callback_data = self.cancel.data
        return self._lib.llama_init_from_model(self._model.handle, params)

    def decode(self, spans: Sequence[Span]) -> list[list[Logits]]:
        """One forward pass over all spans; for each its `num_logits` rows of shape (V,), float32, copied."""
        self._close_holes()
        return super().decode(spans)

    def _put(self, sequence_id: int, cells: memoryview, length: int) -> None:
        self._close_holes()  # saved cells need a place in one piece
        super()._put(sequence_id, cells, length)

    def _close_holes(self) -> None:
        """Move the last cells to where cells of other sequences were removed.

        It looks at every 256th or 32nd cell alone for the last one in use, and does not see what lies beyond where such
        a cell is free: the pass would leave that out. One sequence has no holes.
        """
        if self._holes and not self._is_in_one_piece():
            # Moved to the end, whatever the flag says: its books have each cell in the new place before it is there.
            self._lib.llama_set_abort_callback(self._handle, AbortCallback(), None)
            try:
                for _ in range(self.options.n_ctx):  # one call moves a limited number of pieces
                    self._lib.llama_kv_cache_defrag(self._handle)
                    made_there(lambda: int(self._lib.llama_kv_cache_update(self._handle)))  # it computes too
                    if self._is_in_one_piece():
                        break
            finally:
                self._lib.llama_set_abort_callback(self._handle, self._stops, self.cancel.data)
        self._holes = False

    def _is_in_one_piece(self) -> bool:
        """Whether all free cells lie side by side: behind those in use, for there it puts them."""
        view = self._lib.llama_kv_cache_view_init(self._handle, 1)
        try:
            self._lib.llama_kv_cache_view_update(self._handle, byref(view))
            return bool(view.max_contiguous == view.n_cells - view.used_cells)
        finally:
            self._lib.llama_kv_cache_view_free(byref(view))

    def _remove(self, sequence_id: int, start: int) -> bool:
        self._holes = self.options.n_sequences > 1
        return bool(self._lib.llama_kv_cache_seq_rm(self._handle, sequence_id, start, -1))

    def _copy(self, source: int, destination: int, count: int) -> None:
        self._lib.llama_kv_cache_seq_cp(self._handle, source, destination, 0, count)

    def _held(self, sequence_id: int) -> int:
        # The largest position of an empty sequence is said to be 0, and its least -1.
        if int(self._lib.llama_kv_cache_seq_pos_min(self._handle, sequence_id)) < 0:
            return 0
        return int(self._lib.llama_kv_cache_seq_pos_max(self._handle, sequence_id)) + 1

    def _state_call(self, name: str, sequence_id: int, *, partial: bool = False) -> Callable[..., int]:
        call = getattr(self._lib, f"llama_state_seq_{name}")
        flags = _PARTIAL_ONLY if partial else _NO_FLAGS
        return lambda *place: call(self._handle, *place, sequence_id, flags)
