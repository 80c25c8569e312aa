"""A part of a grammar without recursion, as positions: which character stands where, and what may stand behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import product
from operator import or_

from localspec.grammar.chars import Ranges, lead_bytes, overlap
from localspec.grammar.nodes import Alt, Chars, Lexeme, Node, Ref, Repeat, Seq

COUNTED = 4
"""Longer repetitions count as endless. That allows more texts than there are, so checks err on the safe side."""


@dataclass
class Automaton:
    """Glushkov's automaton: state i has just read a character of `chars[i]`.

    after: for each position, those that may come next. first: where a text may begin. last: where it may end.
    empty: whether the empty text is one of its texts.
    """

    chars: list[Ranges] = field(default_factory=list)
    after: list[set[int]] = field(default_factory=list)
    first: frozenset[int] = frozenset()
    last: frozenset[int] = frozenset()
    empty: bool = False

    @cached_property
    def starts(self) -> int:
        """First bytes of its texts, as bits."""
        return reduce(or_, (self._leads[position] for position in self.first), 0)

    @cached_property
    def _leads(self) -> list[int]:
        return [lead_bytes(chars) for chars in self.chars]

    @cached_property
    def _next_leads(self) -> list[int]:
        return [reduce(or_, (self._leads[position] for position in after), 0) for after in self.after]

    def overrun(self, longer: Automaton, following: int, budget: int) -> tuple[bool, int]:
        """Whether a text of this one, with a byte of `following` behind it, may look like the start of one of `longer`.

        following: bytes as bits. Also returns how many of the `budget` steps are left; 0: it was not found out.
        """
        seen: set[tuple[int, int]] = set()
        pairs: list[tuple[int, int]] = []

        def reach(mine: Iterable[int], its: Iterable[int]) -> None:
            for pair in product(mine, its):
                if pair not in seen:
                    seen.add(pair)
                    if overlap(self.chars[pair[0]], longer.chars[pair[1]]):
                        pairs.append(pair)

        reach(self.first, longer.first)
        for mine, its in pairs:  # grows while it is read
            if mine in self.last and longer._next_leads[its] & following:
                return True, budget
            reach(self.after[mine], longer.after[its])
            if len(seen) > budget:
                return True, 0
        return False, budget - len(seen)


def automaton_of(node: Node, rules: Mapping[str, Node]) -> Automaton:
    """The automaton of a node that mentions only rules without recursion."""
    automaton = Automaton()
    automaton.empty, first, last = _add(automaton, node, rules)
    automaton.first, automaton.last = frozenset(first), frozenset(last)
    return automaton


_Part = tuple[bool, set[int], set[int]]
"""Whether the empty text belongs to it, its first and its last positions."""


def _add(automaton: Automaton, node: Node, rules: Mapping[str, Node]) -> _Part:
    match node:
        case Chars(ranges):
            automaton.chars.append(ranges)
            automaton.after.append(set())
            position = len(automaton.chars) - 1
            return False, {position}, {position}
        case Ref(name):
            return _add(automaton, rules[name], rules)
        case Lexeme(body):
            return _add(automaton, body, rules)
        case Seq(items):
            return _chained(automaton, [(item, False) for item in items], rules)
        case Repeat(item, low, high) if high is None or high > COUNTED:
            empty, first, last = _add(automaton, item, rules)
            for position in last:
                automaton.after[position] |= first
            return empty or low == 0, first, last
        case Repeat(item, low, high):
            return _chained(automaton, [(item, index >= low) for index in range(high or 0)], rules)
        case Alt(options):
            parts = [_add(automaton, option, rules) for option in options]
            firsts, lasts = (
                set[int]().union(*sets) for sets in ([p[1] for p in parts], [p[2] for p in parts])
            )
            return any(part[0] for part in parts), firsts, lasts
    raise AssertionError(node)


def _chained(automaton: Automaton, items: list[tuple[Node, bool]], rules: Mapping[str, Node]) -> _Part:
    """Add items one after the other; True beside an item: it may be missing."""
    empty, first, last = True, set[int](), set[int]()
    for item, optional in items:
        item_empty, item_first, item_last = _add(automaton, item, rules)
        item_empty |= optional
        for position in last:
            automaton.after[position] |= item_first
        first |= item_first if empty else set()
        last = item_last | (last if item_empty else set())
        empty &= item_empty
    return empty, first, last
