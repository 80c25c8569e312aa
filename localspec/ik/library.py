"""IkLlama: ik_llama.cpp as a compute library, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from localspec.compute.context_options import ContextOptions, StrictForm
from localspec.compute.probe import Probe, probe_in_child
from localspec.errors import BackendError, InvalidRequest
from localspec.gguf.heads import prediction_layers
from localspec.gguf.metadata import Metadata
from localspec.ik import binding, files
from localspec.ik.cancelling import CancelFlag
from localspec.ik.probe import ENTRY
from localspec.ik.wheels import has_wheel

if TYPE_CHECKING:
    from localspec.ik.weights import Weights

_OFFER = (
    "with it passes over several tokens take less time on many processors, so that drafting pays more often"
)
_NO_GPU = "this build of ik_llama.cpp computes on the CPU alone. For a GPU llama.cpp must compute."


class IkLlama:
    """ik_llama.cpp through the library in ik-llama-cpp-python, which is loaded when it is first needed."""

    key = "ik"
    name = "ik_llama.cpp"
    draft_formats = ("q4_0",)
    package = binding.PACKAGE
    requirement = binding.REQUIREMENT
    tested = binding.TESTED
    cache_types = tuple(binding.CACHE_TYPES)
    probe_entry = ENTRY
    reads_all_cells = True  # contexts of several sequences have no fused attention

    def is_tested(self, version: str) -> bool:
        """Whether that version of the package is the tested one."""
        return version == binding.TESTED

    @property
    def version(self) -> str:
        """Of ik-llama-cpp-python. Raises `BackendError`."""
        return binding.version()

    @property
    def build(self) -> str:
        """The package with its version. Raises `BackendError`."""
        return binding.build()

    @property
    def offer(self) -> str:
        """What it would bring where it is not installed and could be."""
        try:
            binding.version()
        except BackendError:
            return _OFFER if has_wheel() else ""
        return ""

    def refusal(self, metadata: Metadata) -> str:
        """Why it cannot compute this file here, or ""."""
        try:
            found = binding.version()
        except BackendError as error:
            return error.message
        if found != binding.TESTED:
            return f"{binding.PACKAGE} {found} is installed, and localspec is tested with {binding.TESTED} alone."
        reason = files.refusal(metadata)
        return f"{self.name} {reason}." if reason else ""

    def why_no_head(self, metadata: Metadata, target: Metadata | None = None) -> str:
        """That none is run: files with prediction layers are refused, for it reads them otherwise."""
        if not prediction_layers(metadata):
            return f"{metadata.path.name} has no prediction layers"
        return f"{self.name} runs no prediction layers here"

    def why_one_sequence(self, metadata: Metadata, options: ContextOptions) -> str:
        """Why a context cannot hold several sequences: with fused attention, which such a V cache needs, it ends; and
        their cells lie in one row, where none has a place of its own.
        """
        if metadata.is_recurrent or metadata.is_hybrid:
            return f"{metadata.path.name} has a running state, of which {self.name} computes one at a time"
        if options.separate:
            return f"{self.name} rounds the sums of an answer by what others ask"
        if files.is_quantized(options.cache_type_v):
            return f"{self.name} computes several answers with a V cache of f16 alone, not {options.cache_type_v}"
        return ""

    def why_no_gpu(self) -> str:
        """Why layers cannot go to a GPU."""
        return _NO_GPU

    def resolve_gpu_layers(self, value: str | int, name: str = "gpu_layers", *, rpc: bool = False) -> int:
        """0: the CPU computes all layers. Raises `InvalidRequest` for anything but auto, all or a number >= 0."""
        if value not in ("auto", "all") and (
            isinstance(value, bool | str) or not isinstance(value, int) or value < 0
        ):
            raise InvalidRequest(f"{name} is {value!r}.", "It must be auto, all or a number, 0 or more.")
        return 0

    def strict_form(self, metadata: Metadata, asked: StrictForm) -> StrictForm:
        """As asked: passes of two tokens and more compute the same bits, rearranged weights or not."""
        return asked

    def cancel_flag(self) -> CancelFlag:
        """A flag for its contexts."""
        return CancelFlag()

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
        """Load a file. Raises `ModelLoadError`, `LoadCancelled`, `BackendError` or `InvalidRequest`."""
        from localspec.ik.weights import Weights  # needs numpy, which `probe` must do without

        assert not rpc, "`EngineOptions` refuses servers for it"
        self.resolve_gpu_layers(gpu_layers)
        return Weights(metadata, use_mmap=use_mmap, repack=repack)

    def probe(self, seconds: float) -> Probe:
        """Load it in a child process and ask it for its facts."""
        return probe_in_child([ENTRY], seconds)[0]
