"""Which parts of a grammar the library's lexer may read in one go, without changing the language.

That lexer takes the longest match: while one of the lexemes wanted can go on with the next byte, none ends there. A
grammar in GBNF knows no such rule. Both agree where the byte behind a finished lexeme never continues another one,
and this is checked for every two of them; a part that fails is taken apart, down to single characters, which always
agree: they do not go on. Whole parts matter for speed: the lexer looks up what it has read before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from localspec.grammar.automaton import COUNTED, Automaton, automaton_of
from localspec.grammar.following import following_bytes
from localspec.grammar.nodes import (
    ROOT,
    Alt,
    Chars,
    Lexeme,
    Node,
    Ref,
    Repeat,
    Rules,
    Seq,
    children,
    sequence,
)
from localspec.grammar.rules import flat_rules

MOST_POSITIONS = 600
"""Characters of a lexeme that is compared with others, with the repetitions that its automaton counts written out."""
MOST_CHARACTERS = 200_000
"""Characters of a lexeme written as a regular expression."""
DEEPEST = 100
MOST_RULES = 300
MOST_STEPS = 400_000
"""Pairs of positions compared for one grammar, a second or so; what needs more is read by characters."""


@dataclass(frozen=True)
class Size:
    """The size of a part without recursion, written out: positions, characters as a regular expression, depth."""

    positions: int
    characters: int
    depth: int

    @property
    def writable(self) -> bool:
        """Whether the library reads it as a regular expression."""
        return self.positions > 0 and self.characters <= MOST_CHARACTERS and self.depth <= DEEPEST

    @property
    def usable(self) -> bool:
        """Whether it may also be compared with others."""
        return self.writable and self.positions <= MOST_POSITIONS


def by_lexemes(rules: Rules) -> dict[str, Node]:
    """The rules in use, with parts without recursion made into lexemes as far as that is exact."""
    return _Grouping(rules).grouped() if len(rules) <= MOST_RULES else by_characters(rules)


def by_characters(rules: Rules) -> dict[str, Node]:
    """The rules in use as they are: every character on its own."""
    return _in_use(rules, dict(rules))


class _Grouping:
    """Lexemes, from large to small until none is in the way of another."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._sizes: dict[str, Size] = {}
        for name in flat_rules(rules):
            self._sizes[name] = self._size(rules[name])
        self._apart: set[Node] = set()
        self._automata: dict[Node, Automaton] = {}
        self._steps = MOST_STEPS

    def grouped(self) -> dict[str, Node]:
        root: Node = Ref(ROOT)
        if ROOT in self._sizes and self._size(root).writable:
            return {ROOT: Lexeme(root)}  # nothing stands behind it, nothing beside it
        while self._steps > 0:
            rules = _in_use(self._rules, {name: self._group(body) for name, body in self._rules.items()})
            guilty = self._in_the_way(rules)
            if not guilty:
                return rules if self._steps > 0 else by_characters(self._rules)
            self._apart |= guilty
        return by_characters(self._rules)

    def _group(self, node: Node) -> Node:
        """The node with its largest parts without recursion as lexemes."""
        if isinstance(node, Chars):
            return node
        if node not in self._apart and self._may_be_lexeme(node):
            return Lexeme(node)
        match node:
            case Seq(items):
                return self._group_sequence(node, items)
            case Alt(options):
                return self._group_alternatives(node, options)
            case Repeat(item, low, high):
                return Repeat(self._group(item), low, high)
        return node

    def _group_alternatives(self, node: Node, options: tuple[Node, ...]) -> Node:
        """Those without recursion become one lexeme, unless they were one and had to be taken apart."""
        flat = [option for option in options if self._may_be_lexeme(option)]
        together = Alt(tuple(flat))
        if len(flat) < 2 or together == node or together in self._apart or not self._may_be_lexeme(together):
            return Alt(tuple(self._group(option) for option in options))
        others = [self._group(option) for option in options if option not in flat]
        return Alt((Lexeme(together), *others))

    def _group_sequence(self, node: Node, items: tuple[Node, ...]) -> Node:
        """Neighbours without recursion become one lexeme, unless they were one and had to be taken apart."""
        grouped: list[Node] = []
        for run in self._runs(items):
            together = sequence(run)
            whole = len(run) > 1 and together != node and together not in self._apart
            grouped += [Lexeme(together)] if whole else [self._group(item) for item in run]
        return sequence(tuple(grouped))

    def _runs(self, items: tuple[Node, ...]) -> Iterator[tuple[Node, ...]]:
        """Neighbours without recursion that are small enough together, and the others one by one."""
        run: list[Node] = []
        positions = 0
        for item in items:
            size = self._size_or_none(item)
            fits = size is not None and size.usable and positions + size.positions <= MOST_POSITIONS
            if run and not fits:
                yield tuple(run)
                run, positions = [], 0
            if size is not None and size.usable:
                run.append(item)
                positions += size.positions
            else:
                yield (item,)
        if run:
            yield tuple(run)

    def _in_the_way(self, rules: Rules) -> set[Node]:
        """Bodies of lexemes that may end where another one goes on, and of those others."""
        following = following_bytes(rules, self._automaton)
        longer = [(node, self._automaton(node)) for node in following if isinstance(node, Lexeme)]
        self._steps -= len(following) * len(longer)
        guilty: set[Node] = set()
        for node, behind in following.items():
            mine = self._automaton(node)
            for other, its in longer if self._steps > 0 else ():
                if mine.starts & its.starts:
                    hit, self._steps = mine.overrun(its, behind, self._steps)
                    if hit:
                        guilty |= {part.body for part in (node, other) if isinstance(part, Lexeme)}
        return guilty

    def _automaton(self, node: Node) -> Automaton:
        if node not in self._automata:
            self._automata[node] = automaton_of(node, self._rules)
        return self._automata[node]

    def _may_be_lexeme(self, node: Node) -> bool:
        size = self._size_or_none(node)
        return size is not None and size.usable

    def _size_or_none(self, node: Node) -> Size | None:
        try:
            return self._size(node)
        except KeyError:  # it mentions a rule with recursion
            return None

    def _size(self, node: Node) -> Size:
        if isinstance(node, Ref):
            return self._sizes[node.name]
        if isinstance(node, Chars):
            return Size(1, 2 + 16 * len(node.ranges), 1)
        sizes = [self._size(child) for child in children(node)]
        copies = node.high if isinstance(node, Repeat) and node.high and node.high <= COUNTED else 1
        return Size(
            copies * sum(size.positions for size in sizes),
            12 + sum(size.characters for size in sizes),
            1 + max((size.depth for size in sizes), default=0),
        )


def _in_use(rules: Rules, bodies: Rules) -> dict[str, Node]:
    """The bodies that the root leads to."""
    used = {ROOT: bodies[ROOT]}
    waiting = [bodies[ROOT]]
    for node in waiting:  # grows while it is read
        if isinstance(node, Ref) and node.name not in used:
            used[node.name] = bodies[node.name]
            waiting.append(bodies[node.name])
        elif not isinstance(node, Lexeme):
            waiting += children(node)
    return used
