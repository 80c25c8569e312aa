"""GrammarConstraint: a grammar in the ids of one vocabulary, asked about any answer."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from localspec.decoding.session import common_prefix
from localspec.errors import NoTokenLeft
from localspec.grammar.token_table import TokenTable

if TYPE_CHECKING:
    from llguidance import LLMatcher

Mask = NDArray[np.bool_]
Answer = TypeVar("Answer")

KEPT_MASKS = 64
"""Masks kept for the last prefixes: a round asks for one per row, and draft and target ask for the same ones."""

LONGEST_REASON = 300
_PLACE = re.compile(r"^(at \d+\(\d+\): )?(failed to (compile JSON schema|parse \"%json\"): )?")
NOTHING_LEFT = "no token of the vocabulary may come next"


class GrammarConstraint:
    """What may follow an answer: a function of its ids, whatever was asked before (see `Constraint`).

    One matcher is moved from answer to answer: back to what they share, then on. Nothing may follow an answer that
    the grammar does not allow.
    matcher: at its start. field: the option it came from, named in errors.
    `allowed` raises `NoTokenLeft` where the grammar has become too complex for the library, or no token fits. Drafts
    then end there: whether the answer gets that far is up to the target.
    """

    def __init__(self, matcher: LLMatcher, table: TokenTable, field: str) -> None:
        self._start = matcher
        self._table = table
        self._field = field
        self._lock = threading.Lock()
        self._matcher = matcher.deep_copy()
        self._read: list[int] = []  # what the matcher has read
        self._mask_at = 0  # how much it had read when it computed its last mask
        self._path: list[int] = []  # the answer that the masks belong to
        self._masks: dict[int, Mask] = {}  # by length of the prefix of `_path`
        self._ends = _read_only(np.isin(np.arange(len(table)), list(table.eog)))
        self._nothing = _read_only(np.zeros(len(table), dtype=bool))

    def allowed(self, answer: Sequence[int]) -> Mask:
        """Boolean mask (V,) of the ids that may follow; read-only. All ends of generation where the answer may end."""
        with self._lock:
            return self._allowed(list(answer))

    def forced(self, answer: Sequence[int], limit: int) -> tuple[int, ...]:
        """At most `limit` ids that must follow, each the only one its mask allows; ends are left out."""
        span: list[int] = []
        # The masks are those that the target's rows ask for anyway: looking costs nothing. A prefix that cannot be
        # followed is the target's to report, should it get there.
        with self._lock, suppress(NoTokenLeft):
            while len(span) < limit:
                (choices,) = self._allowed([*answer, *span]).nonzero()
                if len(choices) != 1 or int(choices[0]) in self._table.eog:
                    break
                span.append(int(choices[0]))
        return tuple(span)

    def count_legal(self, answer: Sequence[int], tokens: Sequence[int]) -> int:
        """How many of `tokens` may follow in this order."""
        ids = [*answer, *tokens]
        text = self._before_end(ids)
        with self._lock, suppress(NoTokenLeft):
            read = self._move_to(text)
            if read < len(text):
                return max(read - len(answer), 0)
            count = max(len(text), len(answer))
            while (
                count < len(ids) and ids[count] in self._table.eog and self._allowed(ids[:count])[ids[count]]
            ):
                count += 1
            return count - len(answer)
        return 0

    def likely(self, answer: Sequence[int], limit: int) -> tuple[int, ...]:
        """At most `limit` ids: the text that must follow, in longest pieces. The last may yet grow, and is left out."""
        text = list(answer)
        if not self._table.eog.isdisjoint(text):
            return ()
        with self._lock, suppress(NoTokenLeft):
            if self._move_to(text) == len(text) and not self._ask(self._matcher.is_stopped):
                certain = self._ask(self._matcher.compute_ff_bytes)
                return tuple(self._table.longest_pieces(certain)[:-1][:limit])
        return ()

    def _allowed(self, answer: list[int]) -> Mask:
        shared = _shared(self._path, answer)
        if shared < len(answer):
            self._path = answer
            self._masks = {length: mask for length, mask in self._masks.items() if length <= shared}
        if len(answer) not in self._masks:
            while len(self._masks) >= KEPT_MASKS:
                del self._masks[min(self._masks)]
            self._masks[len(answer)] = self._mask_behind(answer)
        return self._masks[len(answer)]

    def _mask_behind(self, answer: list[int]) -> Mask:
        text = self._before_end(answer)
        if self._move_to(text) < len(text):
            return self._nothing
        may_end = self._ask(self._matcher.is_accepting)
        if len(text) < len(answer):
            return (
                self._ends if may_end and self._table.eog.issuperset(answer[len(text) :]) else self._nothing
            )
        # A matcher at the end of its grammar is not asked again: it has nothing more to say.
        if may_end and self._ask(self._matcher.is_stopped):
            return self._ends
        bits = np.frombuffer(self._compute(), dtype=np.uint8)
        mask = np.unpackbits(bits, count=len(self._table), bitorder="little").view(np.bool_) & ~self._ends
        if not may_end and not mask.any():
            raise self._cannot_go_on(NOTHING_LEFT)
        return _read_only(mask | self._ends if may_end else mask)

    def _before_end(self, ids: list[int]) -> list[int]:
        """The ids before the first end of generation, which the matcher never sees."""
        eog = self._table.eog
        if eog.isdisjoint(ids):
            return ids
        return list(takewhile(lambda token: token not in eog, ids))

    def _move_to(self, text: list[int]) -> int:
        """Have the matcher read `text` as far as it is allowed; returns how far that is."""
        shared = _shared(self._read, text)
        if shared < len(self._read):
            back = len(self._read) - shared
            self._ask(lambda: self._matcher.rollback(back))
            del self._read[shared:]
            self._forget_stale_mask()
        further = list(takewhile(range(len(self._table)).__contains__, text[shared:]))
        if not further or self._ask(self._matcher.is_stopped):
            return len(self._read)
        count = self._ask(lambda: self._matcher.try_consume_tokens(further))
        self._read += further[:count]
        return len(self._read)

    def _forget_stale_mask(self) -> None:
        """The library keeps its last mask and, as of 1.9.1, takes it for that of another path of the same length.

        Its key is the state of the lexer and the number of rows. A mask at the place rolled back to replaces it:
        every place behind has another key, or the same row.
        """
        if self._mask_at > len(self._read) and not self._ask(self._matcher.is_stopped):
            self._compute()

    def _compute(self) -> bytes:
        bits = self._ask(self._matcher.compute_bitmask)
        self._mask_at = len(self._read)
        return bits

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        """What the matcher says. After an error that means nothing: it starts anew, and `NoTokenLeft` is raised."""
        answer = question()
        if self._matcher.is_error():
            reason = first_sentence(self._matcher.get_error())
            error = self._cannot_go_on(NOTHING_LEFT if reason.startswith("NoExtension") else reason)
            self._matcher, self._read, self._mask_at = self._start.deep_copy(), [], 0
            raise error
        return answer

    def _cannot_go_on(self, reason: str) -> NoTokenLeft:
        return NoTokenLeft(
            f"The {self._field} cannot be followed behind token {len(self._read)} of the answer: {reason}.",
            "Make it simpler, or the answer shorter.",
            name=self._field,
        )


def first_sentence(text: str) -> str:
    """What the library says is wrong, without the place in its own notation or the state that it prints below."""
    lines = [" ".join(line.split()) for line in text.strip().splitlines()] or ["no reason given"]
    # An error in a regular expression is announced in the first line and told in a later one.
    details = [line.removeprefix("error: ") for line in lines[1:] if line.startswith("error: ")]
    line = " ".join([lines[0], *details[:1]]) if lines[0].endswith(":") else lines[0]
    line = _PLACE.sub("", line).rstrip(".:")
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 3] + "..."


def _shared(left: list[int], right: list[int]) -> int:
    """Length of the common prefix; fast where one continues the other."""
    shorter = min(len(left), len(right))
    return shorter if left[:shorter] == right[:shorter] else common_prefix(left, right)


def _read_only(mask: Mask) -> Mask:
    mask.setflags(write=False)
    return mask
