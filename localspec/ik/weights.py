"""Weights: a GGUF that ik_llama.cpp loaded."""

from __future__ import annotations

from typing import Any

from localspec.compute.context_options import ContextOptions
from localspec.compute.library import CancelFlag
from localspec.compute.vocabulary import Vocabulary
from localspec.ggml.weights import NativeWeights
from localspec.gguf.metadata import Metadata
from localspec.ik import binding
from localspec.ik.context import Context
from localspec.ik.structs import ProgressCallback
from localspec.system.forks import check_process


class Weights(NativeWeights):
    """A loaded GGUF. Close it after its contexts; `close` is idempotent.

    repack: rearrange weights for faster passes; they are then read into memory and not mapped.
    Raises `ModelLoadError` when ik_llama.cpp refuses the file.
    """

    name = "ik_llama.cpp"
    remedy = "Check the file and the free memory, or let llama.cpp compute it."
    gpu_layers = 0
    vocabulary: Vocabulary | None = None
    """The reference reads it."""

    def __init__(self, metadata: Metadata, *, use_mmap: bool = True, repack: bool = True) -> None:
        check_process()
        self.repack = repack
        self._lib = binding.library()
        params = self._lib.llama_model_default_params()
        params.use_mmap = use_mmap and not repack
        params.repack_tensors = repack
        super().__init__(metadata, params, ProgressCallback, binding.lines, binding.gate)

    def _loaded(self, path: bytes, params: Any) -> Any:
        return self._lib.llama_model_load_from_file(path, params)

    def _freed(self, handle: Any) -> None:
        self._lib.llama_free_model(handle)

    @property
    def build(self) -> str:
        """The library's own: see `Library.build`."""
        return binding.build()

    def open_context(self, options: ContextOptions, cancel: CancelFlag | None = None) -> Context:
        """A context on these weights. Raises `ModelLoadError`."""
        return Context(self, options, cancel)
