"""TokenTable: the vocabulary as a grammar sees it."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from localspec.compute.vocabulary import Vocabulary
from localspec.errors import MissingPackage
from localspec.system.packages import install

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_NO_TEXT = b"\xff"
"""No byte of UTF-8: a token that starts with it stands for no text."""


LONGEST_PIECE = 64
"""Bytes; longer ones are runs of blanks and the like."""


class TokenTable:
    """The bytes of every id that is text, and the ids that end a generation.

    pieces: bytes of each id, b"" for one that is no text: control tokens, padding, unused ids.
    eog:    ends of generation, at least one; never text, whatever their bytes.
    """

    def __init__(self, pieces: Sequence[bytes], eog: frozenset[int]) -> None:
        self.eog = eog
        self.pieces = [
            b"" if token in eog or piece.startswith(_NO_TEXT) else piece for token, piece in enumerate(pieces)
        ]

    def __len__(self) -> int:
        return len(self.pieces)

    @cached_property
    def tokenizer(self) -> LLTokenizer:
        """The library's view of it, shared by all grammars: takes a second for 150,000 ids.

        Raises `MissingPackage` without llguidance.
        """
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ImportError as error:
            raise MissingPackage(
                "Grammars and JSON schemas need the package llguidance, which is not installed.",
                install("llguidance"),
                package="llguidance",
            ) from error
        ends = sorted(self.eog)
        marked = list(self.pieces)
        for token in ends:
            marked[token] = _NO_TEXT + b"%d" % token
        return LLTokenizer(TokenizerWrapper(_Vocabulary(marked, ends)), n_vocab=len(marked), eos_token=ends)

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        """The lowest id of each piece."""
        return {piece: token for token, piece in reversed([*enumerate(self.pieces)]) if piece}

    @cached_property
    def _longest(self) -> int:
        return min(max(map(len, self.pieces), default=0), LONGEST_PIECE)

    def longest_pieces(self, text: bytes) -> list[int]:
        """`text` cut from its start into the longest pieces there are; ends where there is none."""
        ids: list[int] = []
        while text:
            sizes = range(min(self._longest, len(text)), 0, -1)
            size = next((size for size in sizes if text[:size] in self._ids), 0)
            if not size:
                break
            ids.append(self._ids[text[:size]])
            text = text[size:]
        return ids


class _Vocabulary:
    """What the library asks a tokenizer for. It refers to no model: the library's objects escape garbage collection."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], ends: list[int]) -> None:
        self.tokens = tokens
        self.eos_token_id = ends[0]
        self.special_token_ids = ends

    def __call__(self, text: bytes) -> list[int]:
        """Never called: masks that force no text need the bytes of each token only."""
        raise NotImplementedError


_tables: weakref.WeakKeyDictionary[Vocabulary, TokenTable] = weakref.WeakKeyDictionary()


def table_of(vocabulary: Vocabulary) -> TokenTable:
    """The vocabulary as a grammar sees it, made once. The text of an id is what an answer shows of it."""
    table = _tables.get(vocabulary)
    if table is None:
        pieces = [vocabulary.piece(token) for token in range(vocabulary.n_vocab)]
        table = _tables[vocabulary] = TokenTable(pieces, vocabulary.eog_tokens)
    return table
