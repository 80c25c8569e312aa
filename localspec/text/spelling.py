"""Speller: bytes as ids of a vocabulary, such that the ids stand for just those bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from localspec.text.prompt import Vocabulary

CACHED = 1 << 14
"""Pieces of text whose ids are remembered: most words come again."""
_ANCHOR = "\n"


class Speller:
    """Spells text as the tokenizer of `vocabulary` does, a piece at a time.

    texts: the bytes of each id. control: one byte each, not 0 for control tokens, which never stand for text here.
    Some tokenizers put a blank in front of every text: it is taken away again, for a piece is no beginning.
    """

    def __init__(self, vocabulary: Vocabulary, texts: Sequence[bytes], control: bytes) -> None:
        self._vocabulary = vocabulary
        self._texts = [b"" if named else text for text, named in zip(texts, control, strict=True)]
        self._ids = {text: token for token, text in reversed([*enumerate(self._texts)]) if text}
        self._longest = max(map(len, self._ids), default=0)
        self.spelled = lru_cache(CACHED)(self._spelled)

    def _spelled(self, data: bytes) -> tuple[int, ...] | None:
        """Ids that stand for `data`, whole; None where no ids do. What is no UTF-8 is spelled by its bytes."""
        found: list[int] = []
        for part, is_text in _decoded(data):
            ids = (self._tokenized(part) if is_text else None) or self._longest_pieces(part)
            if ids is None:
                return None
            found += ids
        return tuple(found)

    def _tokenized(self, data: bytes) -> list[int] | None:
        """As the tokenizer has it; None where its ids stand for other bytes."""
        text = data.decode()
        ids = self._vocabulary.tokenize(text, parse_special=False)
        joined = self._joined(ids)
        if joined == data:
            return ids
        if joined != b" " + data:
            return None
        if data.startswith(b" ") and len(data) > 1:
            ids = self._vocabulary.tokenize(text[1:], parse_special=False)
            return ids if self._joined(ids) == data else None
        anchored = self._vocabulary.tokenize(_ANCHOR + text, parse_special=False)
        for count in range(1, len(anchored)):
            if self._joined(anchored[count:]) == data:
                return anchored[count:]
        return None

    def _joined(self, ids: Sequence[int]) -> bytes:
        return b"".join(self._texts[token] or b"\0" for token in ids)

    def _longest_pieces(self, data: bytes) -> list[int] | None:
        """Cut from its start into the longest pieces there are."""
        ids: list[int] = []
        while data:
            sizes = range(min(self._longest, len(data)), 0, -1)
            size = next((size for size in sizes if data[:size] in self._ids), 0)
            if not size:
                return None
            ids.append(self._ids[data[:size]])
            data = data[size:]
        return ids


def _decoded(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """`data` in parts, and whether each is UTF-8: half a character may stand at the end, or anywhere."""
    while data:
        try:
            data.decode()
        except UnicodeDecodeError as error:
            if error.start:
                yield data[: error.start], True
            yield data[error.start : error.end], False
            data = data[error.end :]
        else:
            yield data, True
            return
