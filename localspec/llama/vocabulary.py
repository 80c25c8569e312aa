"""Vocabulary: the ids of a loaded GGUF, and its tokenizer."""

from __future__ import annotations

import ctypes
from functools import cached_property
from typing import TYPE_CHECKING, Any

from localspec.errors import InvalidRequest
from localspec.llama import backend
from localspec.system.deep_stack import SHORT, with_deep_stack

if TYPE_CHECKING:
    from localspec.llama.weights import Weights

LONGEST_TEXT = 2_000_000
"""Bytes of one text."""


class Vocabulary:
    """Ids and texts of `weights`, whole or loaded with the vocabulary alone, which it keeps open."""

    def __init__(self, weights: Weights) -> None:
        self.name = weights.path.name
        self._weights = weights
        self._lib = backend.library()
        self._pointer = self._lib.llama_model_get_vocab(weights.handle)
        self.n_vocab = int(self._lib.llama_vocab_n_tokens(self._vocab))

    @property
    def _vocab(self) -> Any:
        """llama.cpp's pointer. Raises `ModelLoadError` where its weights were closed."""
        return self._pointer or self._weights.handle

    @cached_property
    def eog_tokens(self) -> frozenset[int]:
        """Every id that ends a generation: a model has several."""
        is_eog = self._lib.llama_vocab_is_eog
        vocab = self._vocab
        return frozenset(token for token in range(self.n_vocab) if is_eog(vocab, token))

    @cached_property
    def control_literals(self) -> frozenset[str]:
        """Texts that the tokenizer would turn into control tokens."""
        return frozenset(self._weights.metadata.special_texts)

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
        if len(data) <= SHORT:
            tokens = self._tokenize(data, parse_special)
        else:
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

    def forget(self) -> None:
        """The weights are closed: nothing can be asked any more."""
        self._pointer = None

    def close(self) -> None:
        """Free what was loaded for the vocabulary alone; weights to compute with stay open."""
        if self._weights.vocab_only:
            self._weights.close()
