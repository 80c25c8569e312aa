"""Weights: a GGUF that ik_llama.cpp loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from localspec.compute.context_options import ContextOptions
from localspec.compute.library import CancelFlag
from localspec.compute.vocabulary import Vocabulary
from localspec.errors import ModelLoadError
from localspec.gguf.metadata import Metadata
from localspec.ik import binding
from localspec.ik.context import Context
from localspec.system.forks import check_process, is_forked
from localspec.system.load_watch import check_cancelled
from localspec.system.signals import signals_noted


class Weights:
    """A loaded GGUF. Close it after its contexts; `close` is idempotent.

    repack: rearrange weights for faster passes; they are then read into memory and not mapped.
    Raises `ModelLoadError` when ik_llama.cpp refuses the file.
    """

    gpu_layers = 0
    vocabulary: Vocabulary | None = None
    """The reference reads it."""

    def __init__(self, metadata: Metadata, *, use_mmap: bool = True, repack: bool = True) -> None:
        self._handle: Any = None
        check_process()
        self.path: Path = metadata.path
        self.metadata = metadata
        self.repack = repack
        self._lib = binding.library()
        params = self._lib.llama_model_default_params()
        params.use_mmap = use_mmap and not repack
        params.repack_tensors = repack
        try:
            self._load(params)
            binding.gate.raise_interrupt()
            check_cancelled()
        except BaseException:
            self.close()
            raise
        if not self._handle:
            raise ModelLoadError(
                f"ik_llama.cpp could not load {self.path}: {binding.lines.last_line() or 'no reason given'}.",
                "Check the file and the free memory, or let llama.cpp compute it.",
                path=str(self.path),
            )

    def _load(self, params: Any) -> None:
        binding.lines.forget()
        with signals_noted() as noted:
            gate = binding.gate.parameters(type(params.progress_callback), noted)
            for name, value in gate.items():
                setattr(params, name, value)
            self._handle = self._lib.llama_model_load_from_file(_encoded(self.path), params)

    @property
    def handle(self) -> Any:
        """ik_llama.cpp's pointer, for this room only."""
        if not self._handle:
            raise ModelLoadError(f"{self.path} was closed.", path=str(self.path))
        return self._handle

    @property
    def build(self) -> str:
        """The library's own: see `Library.build`."""
        return binding.build()

    def open_context(self, options: ContextOptions, cancel: CancelFlag | None = None) -> Context:
        """A context on these weights. Raises `ModelLoadError`."""
        return Context(self, options, cancel)

    def close(self) -> None:
        """Free the weights."""
        if is_forked():
            return
        handle, self._handle = self._handle, None
        if handle:
            self._lib.llama_free_model(handle)


def _encoded(path: Path) -> bytes:
    """The bytes that a file is opened by: UTF-8 on Windows, the file system's own elsewhere."""
    return str(path).encode("utf-8") if os.name == "nt" else os.fsencode(path)
