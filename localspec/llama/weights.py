"""Weights: a GGUF that llama.cpp loaded."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from localspec.compute import library
from localspec.compute.context_options import ContextOptions
from localspec.compute.library import CancelFlag
from localspec.errors import ModelLoadError
from localspec.ggml.weights import NativeWeights
from localspec.gguf.eagle import is_eagle
from localspec.gguf.heads import prediction_layers
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.llama import backend
from localspec.llama.context import Context
from localspec.llama.eagle_context import EagleContext
from localspec.llama.head_context import HeadContext
from localspec.llama.rpc import server_devices
from localspec.llama.vocabulary import Vocabulary
from localspec.system.forks import check_process, is_forked


class Weights(NativeWeights):
    """A loaded GGUF. Close it after its contexts; `close` is idempotent.

    gpu_layers: "auto" (all, where the build can offload), "all", or how many.
    repack:     let the CPU rearrange weights for faster passes (more memory, rows depend on batch width more).
    vocab_only: load the vocabulary and nothing to compute with.
    heads:      load the prediction layers too, where `why_no_head` has nothing against them.
    rpc:        servers that get the layers, all of those that do not stay with the CPU.
    Raises `ModelFileError` for a file that is no usable GGUF, `ModelLoadError` when llama.cpp refuses it.
    """

    name = "llama.cpp"
    remedy = "Check the file, the free memory and the number of GPU layers."

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        gpu_layers: str | int = "auto",
        use_mmap: bool = True,
        repack: bool = True,
        metadata: Metadata | None = None,
        vocab_only: bool = False,
        heads: bool = False,
        rpc: Sequence[str] = (),
    ) -> None:
        check_process()
        metadata = metadata or read_metadata(Path(path))
        self.gpu_layers = backend.resolve_gpu_layers(gpu_layers, rpc=bool(rpc))
        self._rpc = tuple(rpc)
        self.repack = repack
        self.vocab_only = vocab_only
        self.num_heads = prediction_layers(metadata) if heads else 0
        self._lib = backend.library()
        params = backend.set_fields(
            self._lib.llama_model_default_params(),
            n_gpu_layers=self.gpu_layers,
            load_mode=self._lib.LLAMA_LOAD_MODE_MMAP if use_mmap else self._lib.LLAMA_LOAD_MODE_NONE,
            use_extra_bufts=repack,
            vocab_only=vocab_only,
            load_mtp=heads and not is_eagle(metadata),
        )
        if rpc:
            self._devices = server_devices(rpc)  # the library reads it during the load
            backend.set_fields(params, devices=ctypes.cast(self._devices, ctypes.c_void_p))
        super().__init__(
            metadata,
            params,
            self._lib.llama_progress_callback,
            backend.lines,
            backend.gate,
        )
        self.n_swa: int = int(self._lib.llama_model_n_swa(self._handle))
        self.is_recurrent: bool = bool(self._lib.llama_model_is_recurrent(self._handle))
        self.is_hybrid: bool = bool(self._lib.llama_model_is_hybrid(self._handle))

    def _loaded(self, path: bytes, params: Any) -> Any:
        return self._lib.llama_model_load_from_file(path, params)

    def _freed(self, handle: Any) -> None:
        self._lib.llama_model_free(handle)

    @property
    def build(self) -> str:
        """The library's own: see `Library.build`. With servers passes cost other times, and may compute other bits."""
        return f"{backend.build()}, layers on {', '.join(self._rpc)}" if self._rpc else backend.build()

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the file; of use as long as the weights are open."""
        return Vocabulary(self)

    def open_context(self, options: ContextOptions, cancel: CancelFlag | None = None) -> Context:
        """A context on these weights. Raises `ModelLoadError`."""
        if is_eagle(self.metadata):  # the library would end the process
            raise ModelLoadError(
                f"{self.path.name} is an EAGLE-3 head, which computes nothing without its target.",
                "Load the model that it was trained for, and give this file as its draft.",
                path=str(self.path),
            )
        return Context(self, options, cancel)

    def open_head(
        self, target: library.Context, options: ContextOptions, cancel: CancelFlag | None = None
    ) -> HeadContext:
        """A context on the prediction layers, for the texts of `target`. Raises `ModelLoadError`."""
        assert isinstance(target, Context) and self.num_heads, "a target of this library, its head loaded"
        kind = EagleContext if is_eagle(self.metadata) else HeadContext
        return kind(self, target, options, cancel)

    def close(self) -> None:
        """Free the weights."""
        if not is_forked() and (vocabulary := self.__dict__.get("vocabulary")):  # where it was ever asked for
            vocabulary.forget()
        super().close()
