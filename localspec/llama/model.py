"""Model: weights and vocabulary."""

from __future__ import annotations

import ctypes
import os
from functools import cached_property
from pathlib import Path
from typing import Any

from localspec.errors import InvalidRequest, LoadCancelled, ModelLoadError
from localspec.llama import backend
from localspec.llama.deep_stack import with_deep_stack
from localspec.llama.forks import check_process, is_forked
from localspec.llama.metadata import Metadata, read_metadata
from localspec.llama.token_table import TokenTable
from localspec.llama.watch import check_cancelled

ALL_LAYERS = 2**31 - 1
LONGEST_TEXT = 2_000_000
"""Bytes of one text."""


class Model:
    """A loaded GGUF. Close it after its contexts; `close` is idempotent.

    gpu_layers: "auto" (all, where the build can offload), "all", or how many.
    repack:     let the CPU rearrange weights for faster passes (more memory, rows depend on batch width more).
    Raises `ModelFileError` for a file that is no usable GGUF, `ModelLoadError` when llama.cpp refuses it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        gpu_layers: str | int = "auto",
        use_mmap: bool = True,
        repack: bool = True,
        metadata: Metadata | None = None,
    ) -> None:
        self._handle: Any = None
        check_process()
        self.path = Path(path)
        self.metadata = metadata or read_metadata(self.path)
        self.gpu_layers = resolve_gpu_layers(gpu_layers)
        self.repack = repack
        self._lib = backend.library()
        gate = backend.loading_gate(self._lib)
        params = backend.set_fields(
            self._lib.llama_model_default_params(),
            n_gpu_layers=self.gpu_layers,
            load_mode=self._lib.LLAMA_LOAD_MODE_MMAP if use_mmap else self._lib.LLAMA_LOAD_MODE_NONE,
            use_extra_bufts=repack,
            **gate,
        )
        backend.forget_log()
        self._handle = self._lib.llama_model_load_from_file(encode_path(self.path), params)
        if backend.interrupted():
            self.close()
            backend.raise_interrupt()
        try:
            check_cancelled()
        except LoadCancelled:
            self.close()
            raise
        if not self._handle:
            raise ModelLoadError(
                f"llama.cpp could not load {self.path}: {backend.last_log_line() or 'no reason given'}.",
                "Check the file, the free memory and the number of GPU layers.",
                path=str(self.path),
            )
        self._vocab = self._lib.llama_model_get_vocab(self._handle)
        self.n_vocab = int(self._lib.llama_vocab_n_tokens(self._vocab))
        self.n_ctx_train = int(self._lib.llama_model_n_ctx_train(self._handle))
        self.n_swa = int(self._lib.llama_model_n_swa(self._handle))
        self.is_recurrent = bool(self._lib.llama_model_is_recurrent(self._handle))
        self.is_hybrid = bool(self._lib.llama_model_is_hybrid(self._handle))

    @property
    def handle(self) -> Any:
        """llama.cpp's pointer, for this room only."""
        if not self._handle:
            raise ModelLoadError(f"{self.path} was closed.", path=str(self.path))
        return self._handle

    @cached_property
    def eog_tokens(self) -> frozenset[int]:
        """Every id that ends a generation: a model has several."""
        is_eog = self._lib.llama_vocab_is_eog
        return frozenset(token for token in range(self.n_vocab) if is_eog(self._vocab, token))

    @cached_property
    def token_table(self) -> TokenTable:
        """The vocabulary as a grammar sees it: text is what an answer shows of each id."""
        _ = self.handle  # a closed model has no vocabulary to read
        return TokenTable([self.piece(token) for token in range(self.n_vocab)], self.eog_tokens)

    @cached_property
    def control_literals(self) -> frozenset[str]:
        """Texts that the tokenizer would turn into control tokens."""
        return frozenset(self.metadata.special_texts)

    @property
    def add_bos(self) -> bool:
        """Whether a prompt starts with BOS unless its template already wrote one."""
        return bool(self._lib.llama_vocab_get_add_bos(self._vocab)) and self._bos >= 0

    @property
    def bos_text(self) -> str:
        """Text of the BOS token, or ""."""
        return self._special_text(self._bos)

    @property
    def eos_text(self) -> str:
        """Text of the EOS token, or ""."""
        return self._special_text(int(self._lib.llama_vocab_eos(self._vocab)))

    @property
    def _bos(self) -> int:
        return int(self._lib.llama_vocab_bos(self._vocab))

    def _special_text(self, token: int) -> str:
        return self.piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    def tokenize(self, text: str, *, parse_special: bool, add_bos: bool = False) -> list[int]:
        """Ids of `text`; with `parse_special` the texts of control tokens become those tokens."""
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"The text holds a lone surrogate at position {error.start}, which is no character.",
                "Decode the input as UTF-8 before passing it on.",
            ) from error
        if len(data) > LONGEST_TEXT:
            raise InvalidRequest(
                f"The text has {len(data)} bytes.",
                f"At most {LONGEST_TEXT} can be tokenized at once: shorten it.",
                name="text",
            )
        tokens = with_deep_stack(lambda: self._tokenize(data, parse_special), len(data))
        return [self._bos, *tokens] if add_bos and self.add_bos else tokens

    def _tokenize(self, data: bytes, parse_special: bool) -> list[int]:
        size = len(data) + 2
        while True:
            buffer = (self._lib.llama_token * size)()
            count = self._lib.llama_tokenize(self._vocab, data, len(data), buffer, size, False, parse_special)
            if count >= 0:
                return [int(token) for token in buffer[:count]]
            size = -count

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Bytes of one id; b"" for control tokens unless `special`."""
        if not 0 <= token < self.n_vocab:
            return b""
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = int(self._lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, special))
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def close(self) -> None:
        """Free the weights."""
        if is_forked():
            return
        handle, self._handle = self._handle, None
        if handle:
            self._lib.llama_model_free(handle)


def encode_path(path: Path) -> bytes:
    """The bytes llama.cpp opens a file by: UTF-8 on Windows, the file system's own elsewhere."""
    return str(path).encode("utf-8") if os.name == "nt" else os.fsencode(path)


def resolve_gpu_layers(value: str | int, name: str = "gpu_layers") -> int:
    """Number of layers to offload; 0 where the build cannot.

    Raises `InvalidRequest` for anything but auto, all or a number >= 0.
    """
    if isinstance(value, str) and value in ("auto", "all"):
        return ALL_LAYERS if backend.supports_gpu() else 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= ALL_LAYERS:
        raise InvalidRequest(f"{name} is {value!r}.", "It must be auto, all or a number, 0 or more.")
    return value if backend.supports_gpu() else 0
