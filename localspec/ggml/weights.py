"""NativeWeights: a GGUF that a form of llama.cpp loaded."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from localspec.errors import ModelLoadError
from localspec.ggml.callbacks import LoadingGate, NativeLog
from localspec.gguf.metadata import Metadata
from localspec.system.forks import is_forked
from localspec.system.load_watch import check_cancelled
from localspec.system.signals import signals_noted


class NativeWeights(ABC):
    """A loaded GGUF. Close it after its contexts; `close` is idempotent.

    name: what to call the library in a sentence. remedy: what to do where it refuses a file.
    Raises `ModelLoadError` when the library refuses the file, and `LoadCancelled`.
    """

    name: str
    remedy: str

    def __init__(
        self, metadata: Metadata, params: Any, progress_type: Any, lines: NativeLog, gate: LoadingGate
    ) -> None:
        """params: the library's own of a load. progress_type: its type of function that is told how far it is."""
        self._handle: Any = None
        self.path: Path = metadata.path
        self.metadata = metadata
        try:
            lines.forget()
            with signals_noted() as noted:
                callbacks = gate.parameters(progress_type, noted)
                for field, value in callbacks.items():
                    setattr(params, field, value)
                self._handle = self._loaded(encoded(self.path), params)
            gate.raise_interrupt()
            check_cancelled()
        except BaseException:
            self.close()
            raise
        if not self._handle:
            raise ModelLoadError(
                f"{self.name} could not load {self.path}: {lines.last_line() or 'no reason given'}.",
                self.remedy,
                path=str(self.path),
            )

    @abstractmethod
    def _loaded(self, path: bytes, params: Any) -> Any:
        """The library's pointer to the weights, null where it refuses them."""

    @abstractmethod
    def _freed(self, handle: Any) -> None:
        """Let the library free them."""

    @property
    def handle(self) -> Any:
        """The library's pointer, for its room only."""
        if not self._handle:
            raise ModelLoadError(f"{self.path} was closed.", path=str(self.path))
        return self._handle

    def close(self) -> None:
        """Free the weights."""
        if is_forked():
            return
        handle, self._handle = self._handle, None
        if handle:
            self._freed(handle)


def encoded(path: Path) -> bytes:
    """The bytes that a file is opened by: UTF-8 on Windows, the file system's own elsewhere."""
    return str(path).encode("utf-8") if os.name == "nt" else os.fsencode(path)
