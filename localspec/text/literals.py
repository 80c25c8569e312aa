"""Finds the texts of control tokens in a user's text, however many of them the vocabulary has."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache


class Literals:
    """A set of texts to look for. At one place the longest counts, so that one which contains another is whole.

    Not one pattern with thousands of branches: each place where a literal might begin would try them all.
    """

    def __init__(self, literals: frozenset[str]) -> None:
        self._literals = literals - {""}
        self._width = min(map(len, self._literals), default=0)
        lengths: dict[str, set[int]] = {}
        for literal in self._literals:
            lengths.setdefault(literal[: self._width], set()).add(len(literal))
        self._lengths = {beginning: sorted(found, reverse=True) for beginning, found in lengths.items()}
        self._starts = self._start_pattern()

    def _start_pattern(self) -> re.Pattern[str] | None:
        """A place worth looking at: the first two characters of some literal, as far as all have two."""
        if not self._literals:
            return None
        first, *second = (_any_of({text[at] for text in self._literals}) for at in range(min(self._width, 2)))
        return re.compile(first + "".join(f"(?={letters})" for letters in second))

    def replace(self, text: str, replacement: Callable[[str], str]) -> str:
        """`text` with `replacement(literal)` in place of every literal, from left to right."""
        if self._starts is None:
            return text
        parts, done = [], 0
        for match in self._starts.finditer(text):
            start = match.start()
            literal = self._at(text, start) if start >= done else ""
            if literal:
                parts += [text[done:start], replacement(literal)]
                done = start + len(literal)
        return "".join([*parts, text[done:]])

    def _at(self, text: str, start: int) -> str:
        """The longest literal that begins there, or ""."""
        for length in self._lengths.get(text[start : start + self._width], ()):
            candidate = text[start : start + length]
            if candidate in self._literals:
                return candidate
        return ""


def _any_of(letters: set[str]) -> str:
    return f"[{''.join(map(re.escape, sorted(letters)))}]"


@lru_cache(maxsize=8)
def literals_of(vocabulary: frozenset[str]) -> Literals:
    """The literals of a vocabulary, made once: a set knows its own hash."""
    return Literals(vocabulary)
