"""Ids to text as they come: characters split over tokens are held back until they are whole."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class Detokenizer:
    """piece: the bytes of one id.

    The pieces of text joined are the whole answer's bytes decoded as UTF-8, with U+FFFD for what is not
    valid.
    """

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The text completed by `token`, possibly ""."""
        return self._decoder.decode(self._piece(token))

    def flush(self) -> str:
        """What is left when no more tokens come: U+FFFD for half a character, else ""."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
