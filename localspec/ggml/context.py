"""NativeContext: KV memory of one model in a form of llama.cpp. Spans in, chosen logit rows out."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from localspec.compute import library, state
from localspec.compute.context_options import ContextOptions
from localspec.decoding.rollback import Rollback
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
from localspec.ggml.callbacks import CancelFlag, LoadingGate, NativeLog
from localspec.ggml.cells import copied_cells, put_cells
from localspec.ggml.native_batch import NativeBatch
from localspec.ggml.pass_thread import made_there
from localspec.ggml.running_state import RunningStates
from localspec.system.cores import physical_cores
from localspec.system.forks import check_process, claim_process, is_forked
from localspec.system.signals import signals_noted


class NativeContext(ABC):
    """KV memory on weights. Close it before them; `close` is idempotent.

    Everything that would abort the process inside the library is refused here first.
    decode_seconds: time spent inside the library's passes so far.
    name: what to call the library in a sentence. lib: its functions. lines, gate: what it calls back.
    cut_short_is_0: a pass that the flag ended returns 0 as a whole one does, and its rows are waste.
    """

    name: str
    cut_short_is_0 = False
    whole_states: bool

    def __init__(
        self,
        weights: library.Weights,
        options: ContextOptions,
        cancel: library.CancelFlag | None,
        *,
        lib: Any,
        lines: NativeLog,
        gate: LoadingGate,
        n_vocab: int,
    ) -> None:
        self._handle: Any = None
        self._batch: NativeBatch | None = None
        self._weights = weights
        self.options = options
        self.n_ctx = options.n_ctx
        self.n_batch = min(options.n_batch, options.n_ctx)
        self.n_outputs = min(options.n_outputs, self.n_batch)
        self.n_vocab = n_vocab
        self.threads = options.threads or physical_cores()
        flag = cancel or CancelFlag()
        assert isinstance(flag, CancelFlag), "a flag of this library"
        self.cancel: CancelFlag = flag
        self.decode_seconds = 0.0
        self._running: RunningStates | None = None
        self._lib, self._lines = lib, lines
        claim_process()
        lines.forget()
        try:
            with signals_noted():
                self._handle = self._opened()
            gate.raise_interrupt()
        except BaseException:
            self._free()
            raise
        if not self._handle:
            raise ModelLoadError(
                f"{self.name} could not make a context of {self.n_ctx} tokens for {weights.path}: "
                f"{lines.last_line() or 'no reason given'}.",
                "Ask for a smaller context or another cache type.",
                path=str(weights.path),
            )
        self._batch = NativeBatch(lib, self.n_batch)
        self.rollback = self._how_to_go_back()
        if not self.can_cut:
            self._running = RunningStates(self, options.n_sequences, self.rollback.depth)

    @property
    def weights(self) -> library.Weights:
        """Those it computes with."""
        return self._weights

    @property
    def batch(self) -> NativeBatch:
        """The tokens of the pass that is made."""
        assert self._batch is not None, "a context that was opened"
        return self._batch

    @property
    def can_cut(self) -> bool:
        """Whether cells can be forgotten from any place on."""
        return self.rollback.kind == "cut"

    @property
    def rollback_seconds(self) -> float:
        """Seconds spent on copies of running states so far."""
        return self._running.seconds if self._running else 0.0

    @abstractmethod
    def _how_to_go_back(self) -> Rollback:
        """What the library can do about tokens that shall not stand, with the context that was opened."""

    @abstractmethod
    def _opened(self) -> Any:
        """The library's own pointer to a new context, null where it could not."""

    @abstractmethod
    def _remove(self, sequence_id: int, start: int) -> bool:
        """Remove the cells from `start` on; whether the library did. start: -1 for all."""

    @abstractmethod
    def _copy(self, source: int, destination: int, count: int) -> None:
        """Let the second sequence hold the first `count` cells of the first one too."""

    @abstractmethod
    def _held(self, sequence_id: int) -> int:
        """Cells that the sequence holds."""

    @abstractmethod
    def _state_call(self, name: str, sequence_id: int, *, partial: bool = False) -> Callable[..., int]:
        """A call of the library's on the state of a sequence ("get_size", "get_data", "set_data").

        partial: on the running state alone, where there are cells of attention too.
        """

    def decode(self, spans: Sequence[Span]) -> list[list[Logits]]:
        """One forward pass over all spans; for each its `num_logits` rows of shape (V,), float32, copied.

        Raises `DecodeCancelled` when stopped, `ContextFull` when there is no room, `DecodeError` otherwise; the
        cells are then what `length` says.
        """
        check_process()
        self._check_spans(spans)
        count = self.batch.fill(spans)
        if self._running is None:
            self._pass(spans, count)
        else:
            self._pass_on_running(self._running, spans, count)
        return self._rows(spans)

    def _pass_on_running(self, running: RunningStates, spans: Sequence[Span], count: int) -> None:
        if not all(map(running.continues, spans)):
            raise DecodeError("A pass must go on where the cells end.", "Read the prompt again.", code=0)
        for span in spans:
            running.before(span)
        try:
            self._pass(spans, count)
        except BaseException:
            for span in spans:
                running.failed(span)
            raise
        for span in spans:
            running.after(span)

    def _pass(self, spans: Sequence[Span], count: int) -> None:
        look = self.cancel.look()
        code = self._timed_pass(wait=any(span.num_logits for span in spans))
        if code == 2 or ((code != 0 or self.cut_short_is_0) and self.cancel.was_set_since(look)):
            raise DecodeCancelled("The pass was cancelled.", code=code)
        if code == 1:
            raise ContextFull(f"The context of {self.n_ctx} tokens has no room for {count} more.", code=code)
        if code != 0:
            raise DecodeError(f"The model's forward pass failed with code {code}.", "Try again.", code=code)

    def _timed_pass(self, wait: bool) -> int:
        """The library's return code; with `wait` a GPU is done when it comes back, as reading a row demands."""

        def decoded() -> int:
            code = int(self._lib.llama_decode(self._handle, self.batch.native))
            if wait:
                self._lib.llama_synchronize(self._handle)
            return code

        started = time.perf_counter()
        with signals_noted():
            code = made_there(decoded)
        self.decode_seconds += time.perf_counter() - started
        return code

    def _check_open(self) -> None:
        if not self._handle:
            raise DecodeError("The context was closed.", code=0)

    def _check_spans(self, spans: Sequence[Span]) -> None:
        self._check_open()
        tokens = sum(len(span.tokens) for span in spans)
        outputs = sum(span.rows for span in spans)
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
            raise DecodeError(f"{self.name} returned no logits for row {index}.", code=0)
        row: Logits = np.ctypeslib.as_array(pointer, (self.n_vocab,)).copy()
        return row

    def set_threads(self, count: int) -> None:
        """Give the passes from now on so many threads."""
        self._check_open()
        self._lib.llama_set_n_threads(self._handle, count, count)
        self.threads = count

    def length(self, sequence_id: int = 0) -> int:
        """Cells that the sequence holds."""
        return self._running.length(sequence_id) if self._running else self._held(sequence_id)

    def truncate(self, sequence_id: int, length: int) -> int:
        """Forget the cells from `length` on; returns how many are left.

        Where the library refuses or a sliding window lacks older cells (a saved state holds no more than the window),
        the whole sequence is forgotten and 0 returned; a running state goes back as far as it must.
        """
        if self._running:
            return self._running.truncate(sequence_id, length)
        held = self.length(sequence_id)
        kept = min(held, length)
        if held > length and not self._remove(sequence_id, length):
            return self._forget(sequence_id)
        return kept if self._is_whole(sequence_id, kept) else self._forget(sequence_id)

    def _is_whole(self, sequence_id: int, length: int) -> bool:
        """Whether the token behind `length` cells finds all that it looks back at."""
        return True

    def _forget(self, sequence_id: int) -> int:
        if self._running:
            return self._running.forget(sequence_id)
        self._remove(sequence_id, -1)
        return 0

    def copy_cells(self, source: int, destination: int, count: int) -> int:
        """Let an empty sequence hold the first `count` cells of another; returns how many it then holds: 0 where
        there is a running state, which has no beginning.
        """
        for sequence_id in (source, destination):
            self._check_sequence(sequence_id)
        if self._running is not None or not 0 < count <= (length := self.length(source)):
            return 0
        if self.options.separate:
            self._put(destination, memoryview(self._cells(source)), length)
        else:
            self._copy(source, destination, count)
        return self.truncate(destination, count)

    def copy_running(self, sequence_id: int) -> Any:
        """A copy of a running state, without the cells of attention; None where there is none to be had."""
        size = int(self._state_call("get_size", sequence_id, partial=True)())
        if not size:
            return None
        try:
            return copied_cells(
                self._state_call("get_data", sequence_id, partial=True), sequence_id, size, self.name
            )
        except StateError:
            return None

    def put_running(self, sequence_id: int, saved: Any) -> bool:
        """Put such a copy back; whether the library took it."""
        return put_cells(self._state_call("set_data", sequence_id, partial=True), memoryview(saved))

    def remove_cells(self, sequence_id: int, start: int) -> bool:
        """Remove the cells from `start` on, -1 for all; whether the library did."""
        return self._remove(sequence_id, start)

    def ends_at(self, sequence_id: int, length: int) -> bool:
        """Whether the library too holds so many cells."""
        return self._held(sequence_id) == length

    @cached_property
    def _owner(self) -> state.Facts:
        return {
            "model": state.weights_digest(self.weights.path, self.weights.metadata.size_bytes),
            "build": self.weights.build,
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
        return int(self._state_call("get_size", sequence_id)())

    def save_state(self, sequence_id: int = 0) -> bytes:
        """The cells of a sequence, for `load_state` of a context on the same model. Raises `StateError`."""
        cells = self._cells(sequence_id)  # first: it checks what is asked for
        return state.pack({**self._owner, "length": self.length(sequence_id)}, cells)

    def _cells(self, sequence_id: int) -> bytearray:
        size = self.state_bytes(sequence_id)
        return copied_cells(self._state_call("get_data", sequence_id), sequence_id, size, self.name)

    def load_state(self, data: bytes, sequence_id: int = 0) -> int:
        """Put saved cells in the place of what the sequence holds; returns how many tokens they are.

        Raises `StateError` for bytes that are damaged, of another model, build or cache type, or too many for this
        context: the sequence is then as it was. If the library itself refuses them, the sequence is empty.
        """
        self._check_sequence(sequence_id)
        found, cells = state.unpack(data)
        length = state.check_owner(found, self._owner, self.n_ctx + self.options.spare)
        self._forget(sequence_id)
        try:
            self._put(sequence_id, cells, length)
        except BaseException:
            self._forget(sequence_id)
            raise
        return length

    def _put(self, sequence_id: int, cells: memoryview, length: int) -> None:
        if length:
            self._lines.forget()
            if not put_cells(self._state_call("set_data", sequence_id), cells):
                raise self._refused(len(cells), "bytes")
            if not self.ends_at(sequence_id, length):
                raise self._refused(length, "tokens")
        if self._running:
            self._running.put(sequence_id, length)

    def _refused(self, count: int, unit: str) -> StateError:
        return StateError(
            f"{self.name} refused a saved state of {count} {unit}: {self._lines.last_line() or 'no reason given'}.",
            "Read the prompt again.",
        )

    def close(self) -> None:
        """Free the memory."""
        if is_forked():  # it waits for its threads
            return
        if self._handle and self._batch is not None:
            self._batch.free()
        self._free()

    def _free(self) -> None:
        handle, self._handle = self._handle, None
        if handle:
            self._lib.llama_free(handle)
