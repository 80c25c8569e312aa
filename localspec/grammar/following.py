"""What may stand behind each lexeme of a grammar."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_

from localspec.grammar.automaton import Automaton
from localspec.grammar.nodes import Alt, Chars, Lexeme, Node, Ref, Repeat, Rules, Seq


def following_bytes(rules: Rules, automaton: Callable[[Node], Automaton]) -> dict[Node, int]:
    """For each lexeme and each character on its own: the first bytes of what may come behind it, as bits.

    automaton: makes the automaton of a node.
    """
    begins = dict.fromkeys(rules, (False, 0))
    while (known := {name: _begin(body, begins, automaton) for name, body in rules.items()}) != begins:
        begins = known
    behind = dict.fromkeys(rules, 0)
    found: dict[Node, int] = {}

    def walk(node: Node, after: int) -> None:
        match node:
            case Lexeme() | Chars():
                found[node] = found.get(node, 0) | after
            case Ref(name):
                behind[name] |= after
            case Seq(items):
                for item in reversed(items):
                    walk(item, after)
                    empty, first = _begin(item, begins, automaton)
                    after = first | (after if empty else 0)
            case Repeat(item, _, high):
                again = 0 if high == 1 else _begin(item, begins, automaton)[1]
                walk(item, after | again)
            case Alt(options):
                for option in options:
                    walk(option, after)

    before = None
    while before != behind:
        before = dict(behind)
        for name, body in rules.items():
            walk(body, behind[name])
    return found


def _begin(
    node: Node, begins: dict[str, tuple[bool, int]], automaton: Callable[[Node], Automaton]
) -> tuple[bool, int]:
    """Whether it may be empty, and the first bytes of its texts, as far as `begins` knows them for the rules."""
    match node:
        case Ref(name):
            return begins[name]
        case Seq(items):
            bits = 0
            for item in items:
                empty, first = _begin(item, begins, automaton)
                bits |= first
                if not empty:
                    return False, bits
            return True, bits
        case Repeat(item, low, _):
            empty, first = _begin(item, begins, automaton)
            return empty or low == 0, first
        case Alt(options):
            parts = [_begin(option, begins, automaton) for option in options]
            return any(empty for empty, _ in parts), reduce(or_, (first for _, first in parts), 0)
    return automaton(node).empty, automaton(node).starts
