"""LlamaCpp: llama.cpp as a compute library, and as the reference for the others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.compute.context_options import CACHE_TYPES, ContextOptions, StrictForm
from localspec.compute.probe import Probe
from localspec.ggml.callbacks import CancelFlag
from localspec.gguf.architectures import HYBRID, RECURRENT, SEVERAL_STATES
from localspec.gguf.metadata import Metadata
from localspec.llama import backend, quantize
from localspec.llama.probe import ENTRY, probe_library
from localspec.system import packages

if TYPE_CHECKING:
    from localspec.compute.vocabulary import Vocabulary
    from localspec.llama.weights import Weights


class LlamaCpp:
    """llama.cpp through llama-cpp-python. The package is loaded when it is first needed."""

    key = "llama"
    name = "llama.cpp"
    draft_formats = ("q4_0",)
    """CPUs have repacked kernels for Q4_0, and a token costs what is read: Q8_0 was slower everywhere."""
    package = backend.PACKAGE
    requirement = f"'{backend.PACKAGE}>={backend.TESTED[0]},<{backend.TESTED[1]}'"
    tested = f"{backend.TESTED[0]} up to below {backend.TESTED[1]}"
    cache_types = CACHE_TYPES
    probe_entry = ENTRY
    offer = ""
    reads_all_cells = False  # fused attention passes over those of others

    def is_tested(self, version: str) -> bool:
        """Whether that version of llama-cpp-python is in the tested range."""
        return backend.is_tested(version)

    @property
    def version(self) -> str:
        """Of llama-cpp-python. Raises `BackendError`."""
        return backend.version()

    @property
    def build(self) -> str:
        """The package with its version, which pins llama.cpp's. Raises `BackendError`."""
        return backend.build()

    def refusal(self, metadata: Metadata) -> str:
        """Nothing that `read_metadata` lets pass: it refuses what llama.cpp cannot load."""
        return ""

    def why_no_head(self, metadata: Metadata, target: Metadata | None = None) -> str:
        """Why the file's prediction layers, or its EAGLE-3 head, cannot draft here, as a clause, or ""."""
        from localspec.llama.heads import why_no_head

        return why_no_head(metadata, target)

    def why_one_sequence(self, metadata: Metadata, options: ContextOptions) -> str:
        """Why a context cannot hold several sequences: of some running states it computes one at a time only."""
        if metadata.architecture in (RECURRENT | HYBRID) - SEVERAL_STATES:
            return f"of {metadata.path.name}, with a running state of {metadata.architecture}, only one is computed"
        return ""

    def why_no_gpu(self) -> str:
        """Why layers cannot go to a GPU, or ""."""
        if backend.supports_gpu():
            return ""
        compiled = 'CMAKE_ARGS="-DGGML_CUDA=on"'
        remedy = packages.mend(
            f"Reinstall it with {compiled} (docs/install.md tells how).", f"{self.package} with {compiled}"
        )
        return f"this {self.package} has no GPU support: running on the CPU. {remedy}"

    def resolve_gpu_layers(self, value: str | int, name: str = "gpu_layers", *, rpc: bool = False) -> int:
        """Number of layers to offload; 0 where the build cannot. Raises `InvalidRequest` naming the option."""
        return backend.resolve_gpu_layers(value, name, rpc=rpc)

    def check_rpc(self) -> None:
        """Raise `BackendError` where this build cannot compute with servers."""
        from localspec.llama.rpc import check_rpc

        check_rpc()

    def strict_form(self, metadata: Metadata, asked: StrictForm) -> StrictForm:
        """The settings asked for, changed where they cannot be strict.

        Attention over a 16-bit V cache splits a one-token pass where the context is long; over a BF16 or an 8-bit one
        it does not. Rearranged K-quants are computed by other kernels for one, four and eight rows.
        """
        k, v = asked.cache_type_k, asked.cache_type_v
        rounded_alike = k == v == "q8_0" or v == "bf16"
        return StrictForm(
            k if rounded_alike else "f16",
            v if rounded_alike else "bf16",
            asked.repack and metadata.file_type in ("Q4_0", "Q8_0"),
        )

    def cancel_flag(self) -> CancelFlag:
        """A flag for contexts of llama.cpp."""
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
        from localspec.llama.weights import Weights  # needs numpy, which `probe` must do without

        return Weights(
            metadata.path,
            gpu_layers=gpu_layers,
            use_mmap=use_mmap,
            repack=repack,
            metadata=metadata,
            heads=heads,
            rpc=rpc,
        )

    def open_vocabulary(self, metadata: Metadata) -> Vocabulary:
        """A file's vocabulary without its weights."""
        from localspec.llama.weights import Weights

        return Weights(metadata.path, gpu_layers=0, metadata=metadata, vocab_only=True).vocabulary

    def requantize(
        self, source: Path, destination: Path, format_name: str, *, threads: int | None = None
    ) -> None:
        """Write `source` to `destination` with every matrix in one format; there only when it is whole."""
        quantize.requantize(source, destination, format_name, threads=threads)

    def keep_layers(self, source: Path, destination: Path, layers: Collection[int]) -> None:
        """Write `source` to `destination` with these layers only; there only when it is whole."""
        quantize.keep_layers(source, destination, layers)

    def probe(self, seconds: float) -> Probe:
        """Load it in a child process and ask it for its facts."""
        return probe_library(seconds)
