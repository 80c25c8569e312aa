"""What a draft of another vocabulary reads of the target's ids, and what its own ids are to the target.

Texts pass between the two, as bytes. The draft reads its own spelling of the text so far, not the target's: a model
guesses badly behind tokens that it never saw side by side. How a text is spelled depends on the text alone, never on
the steps in which it came, so that an answer does not depend on what was read before it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from localspec.text.spelling import Speller

_BORDER = re.compile(rb"(?<=\S)(?= \S)|(?<=\n)(?=\S)")
"""Where pieces are spelled apart: in front of a blank between two words, and behind the end of a line. Tokenizers that
cut text before they merge cut there, and those that do not have no piece across it that matters."""
LONGEST = 128
"""Bytes of one piece: text without blanks is cut somewhere, so that another letter does not spell all of it anew."""


class _Piece(NamedTuple):
    """A stretch of text that is spelled by itself.

    start: byte of the text. ids: how many ids of the draft stand before it. joins: whether text before it belongs to
    the same run of text. control: the target's id where it is a control token, else -1.
    """

    start: int
    ids: int
    joins: bool
    control: int


@dataclass(frozen=True)
class Side:
    """One model's vocabulary.

    texts:   the bytes of each id; a control token has its name.
    control: one byte each, not 0 for control tokens.
    bos:     the id that a text may begin with, -1 for none. add_bos: whether the model's own prompts do.
    """

    speller: Speller
    texts: Sequence[bytes] = field(repr=False)
    control: bytes = field(repr=False)
    bos: int = -1
    add_bos: bool = False


class Translation:
    """Between the ids of a target and those of a draft.

    shared: id of the draft -> id of the target, one to one, for tokens that stand for the same bytes; control tokens
    only for control tokens of the same name.
    """

    def __init__(self, target: Side, draft: Side, shared: Mapping[int, int]) -> None:
        self.target, self.draft, self.shared = target, draft, dict(shared)
        self.to_draft = {theirs: ours for ours, theirs in self.shared.items()}

    def reading(self) -> Reading:
        """What the draft reads of a text, at first of none."""
        return Reading(self)

    def is_text(self, token: int) -> bool:
        """Whether an id of the draft stands for text, and is no control token."""
        return not self.draft.control[token]

    def own_bytes(self, token: int) -> bytes:
        """What an id of the draft stands for; the name of a control token."""
        return self.draft.texts[token]

    def target_bytes(self, token: int) -> bytes:
        """The same for an id of the target."""
        return self.target.texts[token]

    def retold(self, text: bytes) -> tuple[int, ...]:
        """The target's ids for drafted text, up to a character that is not whole; none where it has none."""
        return self.target.speller.spelled(_whole_characters(text)) or ()


class Reading:
    """The draft's ids for a sequence of the target, kept while it grows and is cut.

    ids:  of the draft, up to text for which it has none. ends: for each the bytes of the text up to and with it.
    """

    def __init__(self, translation: Translation) -> None:
        self._between = translation
        self.ids: list[int] = []
        self.ends: list[int] = []
        self._head = 0
        self._seen: list[int] = []
        self._seen_ends: list[int] = []
        self._text = bytearray()
        self._pieces: list[_Piece] = []
        self._gaps: list[int] = []

    @property
    def whole(self) -> bool:
        """Whether the ids stand for all of the text."""
        return not self._gaps

    @property
    def seen(self) -> Sequence[int]:
        """The target's ids that it follows."""
        return self._seen

    def follow(self, sequence: Sequence[int]) -> None:
        """Read what is new in `sequence`, which begins as the one that was followed before (`cut` it first)."""
        if not self._seen and sequence:
            self._begin(sequence[0])
        waiting = bytearray()
        target = self._between.target
        for token in sequence[len(self._seen) :]:
            text = target.texts[token] if self._seen or not self._is_bare_start(token) else b""
            if text and target.control[token]:
                self._add_text(waiting)
                waiting = bytearray()
                self._add_piece(_Piece(len(self._text), len(self.ids), False, token), text)
            else:
                waiting += text
            self._seen.append(token)
            self._seen_ends.append((self._seen_ends[-1] if self._seen_ends else 0) + len(text))
        self._add_text(waiting)

    def size(self, length: int) -> int:
        """Bytes of the text that the first `length` ids of the target stand for, of all where they are fewer."""
        count = min(length, len(self._seen_ends))
        return self._seen_ends[count - 1] if count > 0 else 0

    def cut(self, length: int) -> None:
        """Keep the first `length` ids of the target."""
        if length >= len(self._seen):
            return
        size = self.size(length)
        del self._seen[length:], self._seen_ends[length:]
        del self._text[size:]
        # A blank is a border only where something follows it, so a piece of the last byte alone is none.
        while self._pieces and (
            self._pieces[-1].start >= size or (self._pieces[-1].joins and self._pieces[-1].start + 1 >= size)
        ):
            self._pieces.pop()
        if self._pieces:
            self._spell(self._pieces.pop())
        else:
            self._drop(self._head if self._seen else 0, 0)

    def _begin(self, first: int) -> None:
        """A BOS where the draft is used to one and the text does not bring it."""
        draft = self._between.draft
        if draft.add_bos and self._between.to_draft.get(first, -1) != draft.bos:
            self.ids.append(draft.bos)
            self.ends.append(0)
        self._head = len(self.ids)

    def _is_bare_start(self, token: int) -> bool:
        """Whether it is a BOS that the draft does not know: nothing is said with it."""
        return token == self._between.target.bos and token not in self._between.to_draft

    def _add_text(self, text: bytes | bytearray) -> None:
        if not text:
            return
        if self._pieces and self._pieces[-1].control < 0:
            piece = self._pieces.pop()
        else:
            piece = _Piece(len(self._text), len(self.ids), False, -1)
        self._text += text
        self._spell(piece)

    def _spell(self, piece: _Piece) -> None:
        """Spell all from this piece to the end of the text, in as many pieces as there are now."""
        self._drop(piece.ids, piece.start)
        tail = bytes(self._text[piece.start :])
        if piece.control >= 0:
            self._add_piece(piece, tail, new=False)
            return
        starts = [0, *(match.start() for match in _BORDER.finditer(tail)), len(tail)]
        for number, (start, end) in enumerate(pairwise(starts)):
            joins = piece.joins or number > 0
            self._add_piece(_Piece(piece.start + start, len(self.ids), joins, -1), tail[start:end], new=False)

    def _drop(self, count: int, start: int) -> None:
        """Forget the ids from `count` on, which stand for the text from `start` on."""
        del self.ids[count:], self.ends[count:]
        while self._gaps and self._gaps[-1] >= start:
            self._gaps.pop()

    def _add_piece(self, piece: _Piece, text: bytes, *, new: bool = True) -> None:
        if new:
            self._text += text
        self._pieces.append(piece)
        ids = None if self._gaps else self._ids_of(piece, text)
        if ids is None:
            self._gaps.append(piece.start)
            return
        end = piece.start
        for token in ids:
            end += len(self._between.draft.texts[token])
            self.ids.append(token)
            self.ends.append(end)

    def _ids_of(self, piece: _Piece, text: bytes) -> list[int] | None:
        """The draft's ids of a piece, or None where it has none for it. A control token that it lacks is text to it."""
        if piece.control in self._between.to_draft:
            return [self._between.to_draft[piece.control]]
        ids: list[int] = []
        for part in _parts(text):
            spelled = self._between.draft.speller.spelled(part)
            if spelled is None:
                return None
            ids += spelled
        return ids


def _whole_characters(text: bytes) -> bytes:
    """`text` without the beginning of a character at its end."""
    for count in range(1, min(len(text), 3) + 1):
        byte = text[-count]
        if byte & 0xC0 != 0x80:  # the first byte of a character; those behind it continue it
            needed = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return text[:-count] if count < needed else text
    return text


def _parts(text: bytes) -> list[bytes]:
    """`text` in parts of at most LONGEST bytes, cut between characters."""
    parts, start = [], 0
    while len(text) - start > LONGEST:
        end = start + LONGEST
        while end > start + LONGEST - 4 and text[end] & 0xC0 == 0x80:
            end -= 1
        parts.append(text[start:end])
        start = end
    return [*parts, text[start:]]
