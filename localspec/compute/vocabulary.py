"""A model's vocabulary and tokenizer, apart from its weights."""

from __future__ import annotations

from typing import Protocol

from localspec.text.continuation import SpellingVocabulary


class Vocabulary(SpellingVocabulary, Protocol):
    """The ids of one model file, and the texts they stand for."""

    @property
    def name(self) -> str:
        """What to call the file in a sentence."""

    @property
    def n_vocab(self) -> int:
        """Number of ids."""

    @property
    def eog_tokens(self) -> frozenset[int]:
        """Every id that ends a generation: a model has several."""

    @property
    def eos_text(self) -> str:
        """Text of the EOS token, or ""."""

    def close(self) -> None:
        """Free what was loaded for the vocabulary alone. Idempotent; that of open weights is freed with them."""
