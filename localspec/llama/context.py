"""Context: KV memory of one model. Spans in, chosen logit rows out; and the flag that stops a pass."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from localspec.compute import library, state
from localspec.compute.context_options import ContextOptions
from localspec.decoding.sampling import Logits
from localspec.decoding.session import Span
from localspec.errors import (
    ContextFull,
    DecodeCancelled,
    DecodeError,
    InvalidRequest,
    ModelLoadError,
    StateError,
)
from localspec.llama import backend
from localspec.llama.cells import copied_cells, put_cells, refused_cells
from localspec.system.cores import physical_cores
from localspec.system.forks import check_process, claim_process, is_forked
from localspec.system.signals import signals_noted

if TYPE_CHECKING:
    from localspec.llama.weights import Weights


class CancelFlag:
    """Read by llama.cpp between the operations of a pass (CPU only; elsewhere between passes).

    The callback is C's own `strlen` over a two-byte buffer: empty means go on. A callback written in Python takes
    the interpreter lock hundreds of times a pass, which made passes 20 times slower beside a busy thread.
    """

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(2)
        self.callback: Any = ctypes.cast(backend.native_strlen(), backend.library().ggml_abort_callback)
        self.data: Any = ctypes.cast(self._buffer, ctypes.c_void_p)

    def set(self) -> None:
        """Stop the pass that runs, and every later one until `clear`."""
        self._buffer[0] = b"x"

    def clear(self) -> None:
        """Let passes run."""
        self._buffer[0] = b"\0"

    @property
    def is_set(self) -> bool:
        """Whether passes are being stopped."""
        return self._buffer[0] != b"\0"


class Context:
    """KV memory on weights. Close it before them; `close` is idempotent.

    Everything that would abort the process inside llama.cpp is refused here first.
    decode_seconds: time spent inside llama.cpp's passes so far.
    """

    def __init__(
        self, weights: Weights, options: ContextOptions, cancel: library.CancelFlag | None = None
    ) -> None:
        self._handle: Any = None
        self.weights = weights
        self.options = options
        self.n_ctx = options.n_ctx
        self.n_batch = min(options.n_batch, options.n_ctx)
        self.n_outputs = min(options.n_outputs, self.n_batch)
        self.n_vocab = weights.vocabulary.n_vocab
        self.threads = options.threads or physical_cores()
        self.can_cut = not (weights.is_recurrent or weights.is_hybrid)
        # A saved state holds no more of a sliding window than the window.
        self.whole_states = weights.n_swa > 0 or not self.can_cut
        self.cancel = cancel or CancelFlag()
        assert isinstance(self.cancel, CancelFlag), "a flag of this library"
        self.decode_seconds = 0.0
        self._lib = lib = backend.library()
        claim_process()
        backend.forget_log()
        try:
            with signals_noted():
                self._handle = lib.llama_init_from_model(weights.handle, self._params())
            backend.raise_interrupt()
        except BaseException:
            self._free()
            raise
        if not self._handle:
            raise ModelLoadError(
                f"llama.cpp could not make a context of {self.n_ctx} tokens for {weights.path}: "
                f"{backend.last_log_line() or 'no reason given'}.",
                "Ask for a smaller context or another cache type.",
                path=str(weights.path),
            )
        lib.llama_set_abort_callback(self._handle, self.cancel.callback, self.cancel.data)
        self._memory = lib.llama_get_memory(self._handle)
        self._batch = lib.llama_batch_init(self.n_batch, 0, 1)
        self._view_batch()

    def _params(self) -> Any:
        options = self.options
        return backend.set_fields(
            self._lib.llama_context_default_params(),
            n_ctx=options.n_ctx + options.spare,
            n_batch=self.n_batch,
            n_ubatch=self.n_batch,
            n_seq_max=options.n_sequences,
            n_outputs_max=self.n_outputs,
            n_outputs_max_per_seq=self.n_outputs,
            n_threads=self.threads,
            n_threads_batch=self.threads,
            type_k=backend.CACHE_TYPES[options.cache_type_k],
            type_v=backend.CACHE_TYPES[options.cache_type_v],
            swa_full=True,  # a wrapped window cannot be rolled back
            kv_unified=True,
        )

    def _view_batch(self) -> None:
        """numpy views of the batch's arrays, so that filling it costs no Python loop."""
        view = np.ctypeslib.as_array
        shape = (self.n_batch,)
        self._token, self._pos = view(self._batch.token, shape), view(self._batch.pos, shape)
        self._logits, self._n_seq = view(self._batch.logits, shape), view(self._batch.n_seq_id, shape)
        self._n_seq[:] = 1

    def decode(self, spans: Sequence[Span]) -> list[list[Logits]]:
        """One forward pass over all spans; for each its `num_logits` rows of shape (V,), float32, copied.

        Raises `DecodeCancelled` when stopped, `ContextFull` when there is no room, `DecodeError` otherwise; the
        cells are then what `length` says.
        """
        check_process()
        self._check_spans(spans)
        count = self._fill(spans)
        code = self._timed_pass(wait=any(span.num_logits for span in spans))
        if code == 2 or (code != 0 and self.cancel.is_set):
            raise DecodeCancelled("The pass was cancelled.", code=code)
        if code == 1:
            raise ContextFull(f"The context of {self.n_ctx} tokens has no room for {count} more.", code=code)
        if code != 0:
            raise DecodeError(f"The model's forward pass failed with code {code}.", "Try again.", code=code)
        return self._rows(spans)

    def _timed_pass(self, wait: bool) -> int:
        """llama_decode's return code; with `wait` a GPU is done when it comes back, as reading a row demands."""
        started = time.perf_counter()
        with signals_noted():
            code = int(self._lib.llama_decode(self._handle, self._batch))
            if wait:
                self._lib.llama_synchronize(self._handle)
        self.decode_seconds += time.perf_counter() - started
        return code

    def _check_open(self) -> None:
        if not self._handle:
            raise DecodeError("The context was closed.", code=0)

    def _check_spans(self, spans: Sequence[Span]) -> None:
        self._check_open()
        tokens = sum(len(span.tokens) for span in spans)
        outputs = sum(span.num_logits for span in spans)
        if not 1 <= tokens <= self.n_batch or outputs > self.n_outputs:
            raise DecodeError(
                f"A pass of {tokens} tokens and {outputs} rows exceeds {self.n_batch} tokens or {self.n_outputs} rows.",
                code=0,
            )
        for span in spans:
            if (
                not 0 <= span.sequence_id < self.options.n_sequences
                or span.start + len(span.tokens) > self.n_ctx + self.options.spare
            ):
                raise DecodeError(
                    f"Cells {span.start} on do not fit a context of {self.n_ctx} tokens.", code=0
                )
            if not all(0 <= token < self.n_vocab for token in span.tokens):
                raise DecodeError(f"A token id is outside the vocabulary of {self.n_vocab}.", code=0)

    def _fill(self, spans: Sequence[Span]) -> int:
        end = 0
        for span in spans:
            begin, end = end, end + len(span.tokens)
            self._token[begin:end] = span.tokens
            self._pos[begin:end] = np.arange(span.start, span.start + end - begin)
            self._logits[begin:end] = 0
            wanted = end - span.num_padding
            self._logits[wanted - span.num_logits : wanted] = 1
            for index in range(begin, end):
                self._batch.seq_id[index][0] = span.sequence_id
        self._batch.n_tokens = end
        return end

    def _rows(self, spans: Sequence[Span]) -> list[list[Logits]]:
        rows: list[list[Logits]] = []
        end = 0
        for span in spans:
            end += len(span.tokens)
            wanted = end - span.num_padding
            rows.append([self._row(index) for index in range(wanted - span.num_logits, wanted)])
        return rows

    def _row(self, index: int) -> Logits:
        pointer = self._lib.llama_get_logits_ith(self._handle, index)
        if not pointer:
            raise DecodeError(f"llama.cpp returned no logits for row {index}.", code=0)
        row: Logits = np.ctypeslib.as_array(pointer, (self.n_vocab,)).copy()
        return row

    def length(self, sequence_id: int = 0) -> int:
        """Cells that the sequence holds."""
        return int(self._lib.llama_memory_seq_pos_max(self._memory, sequence_id)) + 1

    def truncate(self, sequence_id: int, length: int) -> int:
        """Forget the cells from `length` on; returns how many are left.

        Where llama.cpp refuses (recurrent state) or a sliding window lacks older cells (a saved state holds no more
        than the window), the whole sequence is forgotten and 0 returned.
        """
        held = self.length(sequence_id)
        kept = min(held, length)
        if held > length and not self._lib.llama_memory_seq_rm(self._memory, sequence_id, length, -1):
            return self._forget(sequence_id)
        if self.weights.n_swa and not self._holds_window(sequence_id, kept):
            return self._forget(sequence_id)
        return kept

    def _holds_window(self, sequence_id: int, length: int) -> bool:
        """Whether the next token finds all that its sliding window reaches."""
        first = int(self._lib.llama_memory_seq_pos_min(self._memory, sequence_id))
        reaches_to = length - self.weights.n_swa + 1  # the window counts the token that looks back
        return self.length(sequence_id) == length and first <= max(reaches_to, 0)

    def _forget(self, sequence_id: int) -> int:
        self._lib.llama_memory_seq_rm(self._memory, sequence_id, -1, -1)
        return 0

    @cached_property
    def _owner(self) -> state.Facts:
        return {
            "model": state.weights_digest(self.weights.path, self.weights.metadata.size_bytes),
            "build": backend.build(),
            "cache_type_k": self.options.cache_type_k,
            "cache_type_v": self.options.cache_type_v,
            "repack": self.weights.repack,
        }

    def _check_sequence(self, sequence_id: int) -> None:
        self._check_open()
        if not 0 <= sequence_id < self.options.n_sequences:
            raise InvalidRequest(
                f"sequence_id is {sequence_id}.",
                f"It must be a number from 0 to {self.options.n_sequences - 1}.",
                name="sequence_id",
            )

    def state_bytes(self, sequence_id: int = 0) -> int:
        """Bytes that `save_state` would take, about."""
        self._check_sequence(sequence_id)
        return int(self._lib.llama_state_seq_get_size(self._handle, sequence_id))

    def save_state(self, sequence_id: int = 0) -> bytes:
        """The cells of a sequence, for `load_state` of a context on the same model. Raises `StateError`."""
        cells = copied_cells(self._lib, self._handle, sequence_id, self.state_bytes(sequence_id))
        return state.pack({**self._owner, "length": self.length(sequence_id)}, cells)

    def load_state(self, data: bytes, sequence_id: int = 0) -> int:
        """Put saved cells in the place of what the sequence holds; returns how many tokens they are.

        Raises `StateError` for bytes that are damaged, of another model, build or cache type, or too many for this
        context: the sequence is then as it was. If llama.cpp itself refuses them, the sequence is empty.
        """
        self._check_sequence(sequence_id)
        found, cells = state.unpack(data)
        length = state.check_owner(found, self._owner, self.n_ctx + self.options.spare)
        self._forget(sequence_id)
        try:
            if length:
                put_cells(self._lib, self._handle, sequence_id, cells)
        except StateError:
            self._forget(sequence_id)
            raise
        if self.length(sequence_id) != length:
            self._forget(sequence_id)
            raise refused_cells(length)
        return length

    def set_threads(self, count: int) -> None:
        """Give the passes from now on so many threads."""
        self._check_open()
        self._lib.llama_set_n_threads(self._handle, count, count)
        self.threads = count

    def close(self) -> None:
        """Free the memory."""
        if is_forked():  # it waits for its threads
            return
        if self._handle:
            self._lib.llama_batch_free(self._batch)
        self._free()

    def _free(self) -> None:
        handle, self._handle = self._handle, None
        if handle:
            self._lib.llama_free(handle)
