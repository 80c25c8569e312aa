"""What a compute library is: it opens the weights of a file, and contexts on them that compute logits.

A library is a room of its own beside `localspec.llama`; `localspec.engine.libraries` lists those there are. Whatever is
measured with a library, or made for it, is kept under its `build`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from localspec.compute.context_options import ContextOptions, StrictForm
from localspec.compute.probe import Probe
from localspec.compute.vocabulary import Vocabulary
from localspec.decoding import session
from localspec.decoding.rollback import Rollback
from localspec.gguf.metadata import Metadata


class CancelFlag(Protocol):
    """Stops the passes of the contexts that were given it, from any thread."""

    @property
    def is_set(self) -> bool:
        """Whether passes are being stopped."""

    def set(self) -> None:
        """Stop the pass that runs, and every later one until `clear`."""

    def clear(self) -> None:
        """Let passes run."""


class Context(session.Context, session.Saving, Protocol):
    """KV memory on weights: spans in, chosen logit rows out. Close it before the weights; `close` is idempotent.

    A pass raises `DecodeCancelled`, `ContextFull` or `DecodeError`; the cells are then what `length` says.
    """

    @property
    def weights(self) -> Weights:
        """Those it computes with."""

    @property
    def options(self) -> ContextOptions:
        """As it was opened with."""

    @property
    def threads(self) -> int:
        """CPU threads of the next pass: at first those of the options, else the machine's physical cores."""

    @property
    def can_cut(self) -> bool:
        """Whether cells can be forgotten from any place on; if not, `rollback` says what can be done."""

    @property
    def rollback(self) -> Rollback:
        """How it takes tokens back that it has read."""

    @property
    def rollback_seconds(self) -> float:
        """Seconds spent on that so far, apart from passes."""

    @property
    def whole_states(self) -> bool:
        """Whether saved cells can only be used whole: they are no start for a prompt that leaves them half-way."""

    @property
    def decode_seconds(self) -> float:
        """Seconds spent inside passes so far."""

    def set_threads(self, count: int) -> None:
        """Give the passes from now on so many threads. For whoever has the context, between two passes."""

    def close(self) -> None:
        """Free the memory."""


class Weights(Protocol):
    """The weights of one model file, in memory. Close them after their contexts; `close` is idempotent."""

    @property
    def path(self) -> Path:
        """The file, the first one of a split model."""

    @property
    def metadata(self) -> Metadata:
        """What the file says of itself."""

    @property
    def build(self) -> str:
        """Of the library that opened them."""

    @property
    def gpu_layers(self) -> int:
        """How many layers were asked to be on the GPU."""

    @property
    def repack(self) -> bool:
        """Whether the CPU may rearrange weights for faster passes."""

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The file's vocabulary, where this library reads it; else the reference reads it without weights."""

    def open_context(self, options: ContextOptions, cancel: CancelFlag | None = None) -> Context:
        """Raises `ModelLoadError`. cancel: one of this library's flags; None: nobody stops its passes, nor
        the cancelling of a load."""

    def close(self) -> None:
        """Free the weights."""


@runtime_checkable
class HeadContext(Context, Protocol):
    """Cells of a head: prediction layers that draft for the target, from its hidden states.

    Its `decode` gives one row for a span at most, and takes no padding.
    """

    @property
    def depth(self) -> int | None:
        """Tokens that it can guess in a row; None: any number."""

    def known(self, sequence_id: int) -> int:
        """Tokens at the start of a sequence that the target has read."""


@runtime_checkable
class Headed(Protocol):
    """Weights with prediction layers."""

    def open_head(
        self, target: Context, options: ContextOptions, cancel: CancelFlag | None = None
    ) -> HeadContext:
        """A context on the prediction layers, for the texts of `target`, which keeps its hidden states
        (`ContextOptions.hidden_states`; for an EAGLE-3 head `layer_inputs`) and is closed after it.

        Raises `ModelLoadError`.
        """


class Library(Protocol):
    """Computes logits on this machine."""

    @property
    def key(self) -> str:
        """What to ask for it by: one of `checks.LIBRARIES`."""

    @property
    def name(self) -> str:
        """What to call it in a sentence."""

    @property
    def draft_formats(self) -> Sequence[str]:
        """Number formats, by ggml's names, in which a copy of a draft may be faster than the draft."""

    @property
    def package(self) -> str:
        """The Python package that brings it."""

    @property
    def requirement(self) -> str:
        """What to give to `pip install`, quoted for a shell."""

    @property
    def tested(self) -> str:
        """Versions of the package that localspec is tested with, in words."""

    def is_tested(self, version: str) -> bool:
        """Whether a version of the package is one of them."""

    @property
    def version(self) -> str:
        """That package's version. Raises `BackendError` where it is not installed."""

    @property
    def build(self) -> str:
        """Tells builds apart whose passes may cost other times or compute other bits. Raises `BackendError`."""

    @property
    def cache_types(self) -> Sequence[str]:
        """Element types of the KV cache that it knows, by their names in `ContextOptions`."""

    @property
    def probe_entry(self) -> str:
        """The function that a child process calls to load it, for `compute.probe.probe_in_child`."""

    @property
    def offer(self) -> str:
        """What installing it would bring, as a clause; "" where it is installed, or needed, or where no wheel of it
        exists for this system."""

    @property
    def reads_all_cells(self) -> bool:
        """Whether a pass over some sequences of a context takes longer by the cells of the others."""

    def refusal(self, metadata: Metadata) -> str:
        """Why it cannot compute this file here, in a sentence, or "". That it is not installed is such
        a reason, except for the reference, which must be there."""

    def why_no_head(self, metadata: Metadata, target: Metadata | None = None) -> str:
        """Why the file's own prediction layers cannot draft for it here, as a clause; "" where they can.

        target: for which an EAGLE-3 head shall draft, where the file is one.
        """

    def why_one_sequence(self, metadata: Metadata, options: ContextOptions) -> str:
        """Why a context of these options cannot hold several sequences of the file, as a clause; "" where it can."""

    def why_no_gpu(self) -> str:
        """Why layers cannot go to a GPU, with the remedy, in sentences; "" where they can."""

    def resolve_gpu_layers(self, value: str | int, name: str = "gpu_layers", *, rpc: bool = False) -> int:
        """Number of layers to offload; 0 where the build cannot. Raises `InvalidRequest` naming the option.

        rpc: to servers, and not to a GPU.
        """

    def strict_form(self, metadata: Metadata, asked: StrictForm) -> StrictForm:
        """The settings asked for, changed where passes of this file cannot be strict under them."""

    def cancel_flag(self) -> CancelFlag:
        """A flag for contexts of this library."""

    def open_weights(
        self,
        metadata: Metadata,
        *,
        gpu_layers: str | int = "auto",
        use_mmap: bool = True,
        repack: bool = True,
        heads: bool = False,
        rpc: Sequence[str] = (),
    ) -> Weights:
        """Load a file. Raises `ModelLoadError`, `LoadCancelled`, `BackendError` or `InvalidRequest`.

        rpc: addresses of servers that get its layers; only of the reference, and only where its `check_rpc` passes.
        heads: the prediction layers too, where `why_no_head` says "": the weights are `Headed` then.
        It reports to this thread's `load_watch` and ends when that was cancelled. A library with threads of its own
        claims the process first (`system.forks`), and has everything closed before its own end (`system.at_exit`).
        """

    def probe(self, seconds: float) -> Probe:
        """Load it in a child process and ask it for its facts, within that time; whatever becomes of the child."""


class Reference(Library, Protocol):
    """The library by which all others are judged; it also reads vocabularies and writes files."""

    def check_rpc(self) -> None:
        """Raise `BackendError` where this build cannot compute with servers."""

    def open_vocabulary(self, metadata: Metadata) -> Vocabulary:
        """A file's vocabulary without its weights. Raises what `open_weights` raises."""

    def requantize(
        self, source: Path, destination: Path, format_name: str, *, threads: int | None = None
    ) -> None:
        """Write `source` to `destination` with every matrix in one format; there only when it is whole.

        Raises `ModelFileError`, `InvalidRequest` or `ModelLoadError`.
        """

    def keep_layers(self, source: Path, destination: Path, layers: Collection[int]) -> None:
        """Write `source` to `destination` with these layers only, their numbers unchanged; there only when it is whole.

        Raises `ModelFileError`, `InvalidRequest` or `ModelLoadError`.
        """
