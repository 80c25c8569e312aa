"""A compute library without C: a cell is a digest of all that was read up to it, and a row a function of the cell.

Two files mostly agree, as a draft and its target do. Whatever is wrong in the cells makes every later row another one.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from localspec.compute import state
from localspec.compute.context_options import ContextOptions, StrictForm
from localspec.compute.probe import Probe, write_notes
from localspec.decoding.rollback import CUT, Rollback
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
from localspec.gguf.metadata import Metadata
from localspec.system.cores import physical_cores
from localspec.system.load_watch import check_cancelled

if TYPE_CHECKING:
    from localspec.compute.library import CancelFlag, Library

NORMAL = 1
"""The type of a token that is text."""
SHARE = 0.2
"""Of a row that the file and the kernels alone decide."""
SILENT = -30.0
"""Logit of what is no text: control tokens and padding."""
SIZE = 8
"""Bytes of a digest; a cell has two, of the ids alone and of the kernels that read them too."""
START = bytes(2 * SIZE)
"""What goes before the first cell."""
GONE = b""
"""A cell that a saved state did not hold."""


def nothing() -> None:
    """What happens in the middle of a pass."""


def accepts(metadata: Metadata) -> str:
    """It can compute any file."""
    return ""


class FakeCancelFlag:
    """A flag for the contexts of one library."""

    def __init__(self, library: FakeLibrary) -> None:
        self.library = library
        self._is_set = False

    @property
    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False


class FakeVocabulary:
    """Ids and texts as the metadata spell them; a text is cut into the longest tokens from left to right."""

    def __init__(self, metadata: Metadata) -> None:
        self.name = metadata.path.name
        self.n_vocab = metadata.n_vocab
        self.eog_tokens = metadata.eog_ids
        self.control_literals = metadata.special_texts
        self.add_bos = metadata.add_bos and metadata.bos_id is not None
        self._bos = metadata.bos_id
        self._texts = [_bytes_of(token) for token in metadata.tokens]
        self._is_text = [kind == NORMAL for kind in metadata.token_types]
        self._ids = {text: token for token, text in enumerate(self._texts) if self._is_text[token] and text}
        self._controls = {
            text.encode(): metadata.tokens.index(text.encode()) for text in self.control_literals
        }
        self.bos_text, self.eos_text = (
            "" if token is None else self._texts[token].decode()
            for token in (metadata.bos_id, metadata.eos_id)
        )

    def tokenize(self, text: str, *, parse_special: bool, add_bos: bool = False) -> list[int]:
        known = self._ids | (self._controls if parse_special else {})
        longest = max(map(len, known))
        data, ids = text.encode("utf-8", "surrogatepass"), [self._bos] if add_bos and self.add_bos else []
        while data:
            size = next((size for size in range(longest, 0, -1) if data[:size] in known), 0)
            if not size:
                raise InvalidRequest(f"No token begins as {data[:10]!r}.", "Use other words.", name="text")
            ids.append(known[data[:size]])
            data = data[size:]
        return [token for token in ids if token is not None]

    def piece(self, token: int, *, special: bool = False) -> bytes:
        is_known = 0 <= token < self.n_vocab and (special or self._is_text[token])
        return self._texts[token] if is_known else b""

    def close(self) -> None:
        """It goes with the weights."""


class FakeContext:
    """Cells of several sequences. A pass must go on exactly where they end; it reads token by token.

    during: called before each token of a pass; may set the flag, or raise what a pass raises. passes: their widths.
    """

    def __init__(self, weights: FakeWeights, options: ContextOptions, cancel: CancelFlag | None) -> None:
        library = weights.library
        assert not weights.closed, "a context on closed weights"
        assert cancel is None or (isinstance(cancel, FakeCancelFlag) and cancel.library is library)
        for name in (options.cache_type_k, options.cache_type_v):
            if name not in library.cache_types:
                raise ModelLoadError(f"{library.name} knows no cache type {name}.", "Use another one.")
        self.weights, self.options, self.cancel = weights, options, cancel
        self.n_ctx, self.n_vocab = options.n_ctx, weights.metadata.n_vocab
        self.n_batch = min(options.n_batch, options.n_ctx)
        self.n_outputs = min(options.n_outputs, self.n_batch)
        self.threads = options.threads or physical_cores()
        self.can_cut = not library.recurrent
        self.rollback = Rollback("none") if library.recurrent else CUT
        self.rollback_seconds = 0.0
        self.whole_states = library.recurrent or library.window > 0
        self.decode_seconds = 0.0
        self.closed = False
        self.during: Callable[[], None] = nothing
        self.passes: list[int] = []
        self._cells: list[list[bytes]] = [[] for _ in range(options.n_sequences)]
        self._reach = 1 if library.recurrent else library.window or options.n_ctx + options.spare

    def decode(self, spans: Sequence[Span]) -> list[list[Logits]]:
        assert not self.closed, "a pass of a closed context"
        width, rows = sum(len(span.tokens) for span in spans), sum(span.num_logits for span in spans)
        if not 1 <= width <= self.n_batch or rows > self.n_outputs:
            raise DecodeError(f"A pass of {width} tokens and {rows} rows is too wide.", code=0)
        if sum(map(len, self._cells)) + width > self.n_ctx + self.options.spare:
            raise ContextFull(f"The context of {self.n_ctx} tokens has no room for {width} more.", code=1)
        self.passes.append(width)
        kernel = sum(width >= least for least in self.weights.library.kernels)
        started = time.perf_counter()
        try:
            return [self._read(span, kernel) for span in spans]
        finally:
            self.decode_seconds += time.perf_counter() - started

    def _read(self, span: Span, kernel: int) -> list[Logits]:
        cells = self._cells[span.sequence_id]
        assert span.start == len(cells), f"cells end at {len(cells)}, the span starts at {span.start}"
        assert GONE not in cells[-self._reach :], "cells are missing that the next token looks at"
        for token in span.tokens:
            assert 0 <= token < self.n_vocab, "an id outside the vocabulary"
            self.during()
            if self.cancel is not None and self.cancel.is_set:
                raise DecodeCancelled("The pass was cancelled.", code=2)
            cells.append(_cell(cells[-1] if cells else START, token, kernel))
        last = len(cells) - span.num_padding
        return [self.weights.row(cell) for cell in cells[last - span.num_logits : last]]

    def set_threads(self, count: int) -> None:
        assert not self.closed and count >= 1
        self.threads = count

    def length(self, sequence_id: int = 0) -> int:
        return len(self._cells[sequence_id])

    def truncate(self, sequence_id: int, length: int) -> int:
        assert not self.closed, "a closed context is cut"
        cells = self._cells[sequence_id]
        cut = length < len(cells)
        del cells[length:]
        if (cut and not self.can_cut) or GONE in cells[-self._reach :]:
            cells.clear()
        return len(cells)

    @cached_property
    def _owner(self) -> state.Facts:
        weights = self.weights
        return {
            "model": state.weights_digest(weights.path, weights.metadata.size_bytes),
            "build": weights.build,
            "cache_type_k": self.options.cache_type_k,
            "cache_type_v": self.options.cache_type_v,
            "repack": weights.repack,
        }

    def state_bytes(self, sequence_id: int = 0) -> int:
        return len(self.save_state(sequence_id))

    def save_state(self, sequence_id: int = 0) -> bytes:
        assert not self.closed, "a closed context is saved"
        cells = self._cells[sequence_id]
        return state.pack({**self._owner, "length": len(cells)}, b"".join(cells[-self._reach :]))

    def load_state(self, data: bytes, sequence_id: int = 0) -> int:
        assert not self.closed, "a state for a closed context"
        facts, packed = state.unpack(data)
        length = state.check_owner(facts, self._owner, self.n_ctx + self.options.spare)
        size = len(START)
        held = [bytes(packed[start : start + size]) for start in range(0, len(packed), size)]
        if len(held) != min(length, self._reach):
            self._cells[sequence_id] = []
            raise StateError(f"A state of {length} tokens has {len(held)} cells.", "Read the prompt again.")
        self._cells[sequence_id] = [GONE] * (length - len(held)) + held
        return length

    def close(self) -> None:
        assert self.closed or not self.weights.closed, "the weights were closed before their context"
        self.closed = True


class FakeWeights:
    """What a file says of itself, and rows made up from that."""

    def __init__(self, library: FakeLibrary, metadata: Metadata, gpu_layers: int, repack: bool) -> None:
        self.library, self.metadata, self.path = library, metadata, metadata.path
        self.build, self.gpu_layers, self.repack = library.build, gpu_layers, repack
        self.vocabulary = FakeVocabulary(metadata) if library.own_vocabulary else None
        self.contexts: list[FakeContext] = []
        self.closed = False
        self._own = state.weights_digest(self.path, metadata.size_bytes).encode()
        self._silent = [token for token, kind in enumerate(metadata.token_types) if kind != NORMAL]
        self._row = lru_cache(1 << 12)(self._make_row)

    def row(self, cell: bytes) -> Logits:
        """Logits of what follows a cell: (V,)."""
        return self._row(cell).copy()

    def expected(self, prefix: Sequence[int]) -> Logits:
        """Logits of what follows `prefix`, without a context."""
        cell = START
        for token in prefix:
            cell = _cell(cell, token, 0)
        return self.row(cell)

    def _make_row(self, cell: bytes) -> Logits:
        common, own = self._noise(cell[:SIZE]), self._noise(cell[SIZE:], self._own)
        row = self.library.scale * ((1 - SHARE) * common + SHARE * own)
        row[self._silent] = SILENT
        return row.astype(np.float32)

    def _noise(self, *parts: bytes) -> Logits:
        seed = int.from_bytes(_digest(*parts), "little")
        return np.random.default_rng(seed).standard_normal(self.metadata.n_vocab, dtype=np.float32)

    def open_context(self, options: ContextOptions, cancel: CancelFlag | None = None) -> FakeContext:
        context = FakeContext(self, options, cancel)
        self.contexts.append(context)
        return context

    def close(self) -> None:
        assert all(context.closed for context in self.contexts), "weights are closed after their contexts"
        self.closed = True


@dataclass(eq=False)
class FakeLibrary:
    """A library that behaves as its fields say.

    refuses: why it cannot compute a file, or "". recurrent: its cells cannot be cut. window: how many cells a token
    sees, and a saved state holds; 0 for all. own_vocabulary: whether it reads it. kernels: the widths of a pass
    from which on another kernel computes it, with other bits. scale: how sure of themselves its models are.
    opened: all weights that were.
    """

    build: str = "fake 1"
    name: str = "the made-up library"
    refuses: Callable[[Metadata], str] = accepts
    recurrent: bool = False
    window: int = 0
    own_vocabulary: bool = True
    kernels: tuple[int, ...] = ()
    scale: float = 8.0
    opened: list[FakeWeights] = field(default_factory=list)
    key: str = "fake"

    package = "made-up"
    requirement = "'made-up>=1,<2'"
    tested = "1"
    version = "1.0"
    probe_entry = "tests.fake_library:main"
    offer = ""
    reads_all_cells = False
    cache_types = ("f32", "f16")
    draft_formats = ("q4_0",)

    @property
    def all_closed(self) -> bool:
        """Whether nothing that it opened is open."""
        return all(
            weights.closed and all(context.closed for context in weights.contexts) for weights in self.opened
        )

    def is_tested(self, version: str) -> bool:
        return version.startswith("1.")

    def refusal(self, metadata: Metadata) -> str:
        return self.refuses(metadata)

    def why_no_head(self, metadata: Metadata, target: Metadata | None = None) -> str:
        return "it has no heads"

    def why_one_sequence(self, metadata: Metadata, options: ContextOptions) -> str:
        return ""

    def why_no_gpu(self) -> str:
        return "numbers are made up on the CPU alone."

    def resolve_gpu_layers(self, value: str | int, name: str = "gpu_layers", *, rpc: bool = False) -> int:
        if value in ("auto", "all") or (isinstance(value, int) and value >= 0):
            return 0
        raise InvalidRequest(f"{name} is {value!r}.", "It must be a number, auto or all.", name=name)

    def strict_form(self, metadata: Metadata, asked: StrictForm) -> StrictForm:
        return StrictForm("f32", "f32", False)

    def cancel_flag(self) -> FakeCancelFlag:
        return FakeCancelFlag(self)

    def open_weights(
        self,
        metadata: Metadata,
        *,
        gpu_layers: str | int = "auto",
        use_mmap: bool = True,
        repack: bool = True,
        heads: bool = False,
        rpc: Sequence[str] = (),
    ) -> FakeWeights:
        assert not heads and not rpc, "none can be computed"
        if reason := self.refusal(metadata):
            raise ModelLoadError(reason, path=str(metadata.path))
        check_cancelled()
        weights = FakeWeights(self, metadata, self.resolve_gpu_layers(gpu_layers), repack)
        self.opened.append(weights)
        return weights

    def probe(self, seconds: float) -> Probe:
        return Probe(stage="done", version=self.version)


def main(path: str) -> None:
    """Its child of a probe."""
    write_notes(path, FakeLibrary.package, FakeLibrary, lambda library: ())


@lru_cache(1 << 16)
def _cell(before: bytes, token: int, kernel: int) -> bytes:
    """The cell behind `before`."""
    read = token.to_bytes(4, "little")
    return _digest(before[:SIZE], read) + _digest(before[SIZE:], read, bytes([kernel]))


def _digest(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"\0".join(parts), digest_size=SIZE).digest()


def _bytes_of(token: bytes) -> bytes:
    """The bytes that a gpt2 token stands for, which spells those that cannot be printed by other letters."""
    letters = token.decode("utf-8")
    return bytes(_BYTES[letter] for letter in letters) if set(letters) <= set(_BYTES) else token


def _byte_letters() -> dict[str, int]:
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }


_BYTES = _byte_letters()

_: Library = FakeLibrary()  # checked by mypy, with all that it opens
