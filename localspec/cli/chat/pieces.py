"""Text with the mark of a drafted token on it: which characters of an answer the target accepted from the draft."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby

Pieces = Sequence[tuple[str, bool]]
"""Pieces of text, and whether each came from the draft."""
_AHEAD = 64
"""So many characters of the tokens may be missing from the text: control tokens, a blank at the start."""


class Marks:
    """Finds out for each character of the text whether the token that it came with was drafted.

    Text comes later than its tokens (half characters, what may become a stop string), and can lack some of theirs.
    piece: the bytes of one token.
    """

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._coming: deque[tuple[str, bool]] = deque()

    def heed(self, tokens: Sequence[int], drafted: Sequence[bool]) -> None:
        """Take in tokens, before the text that they make."""
        for token, mark in zip(tokens, drafted, strict=False):
            self._coming.extend((character, mark) for character in self._decoder.decode(self._piece(token)))

    def marked(self, text: str) -> Pieces:
        """The text in pieces, each with its mark."""
        marks = [(character, self._mark(character)) for character in text]
        return [
            ("".join(character for character, _ in group), mark)
            for mark, group in groupby(marks, key=lambda marked: marked[1])
        ]

    def _mark(self, character: str) -> bool:
        for place, (coming, mark) in enumerate(self._coming):
            if place == _AHEAD:
                break
            if coming == character:
                for _ in range(place + 1):
                    self._coming.popleft()
                return mark
        return False
