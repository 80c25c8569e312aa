"""A second reader of grammars, slow and plain, and a hand-made vocabulary: what the real ones are held against."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping

from localspec.grammar.constraint import constraint_on
from localspec.grammar.matching import GrammarConstraint
from localspec.grammar.nodes import ROOT, Alt, Chars, Node, Ref, Repeat, Seq
from localspec.grammar.notation import notations_of_grammar, notations_of_schema
from localspec.grammar.parser import parse_gbnf
from localspec.grammar.token_table import TokenTable

PIECES = [
    b"a",
    b"b",
    b"c",
    b"ab",
    b"ba",
    b"abc",
    b"aa",
    b"",
    b"[PAD8]",
    b"<end>",
    b"<stop>",
    b"\xc3",
    b"\xa9",
]
END, STOP = 9, 10
EOG = frozenset({END, STOP})
CONTROL, PADDING = 7, 8
"""A control token has no text; padding has one that is never meant, and llama.cpp gives none for it."""
TABLE = TokenTable([b"" if token == PADDING else piece for token, piece in enumerate(PIECES)], EOG)


def on_grammar(text: str, table: TokenTable = TABLE) -> GrammarConstraint:
    return constraint_on(table, notations_of_grammar(text), "grammar")


def on_schema(schema: object, table: TokenTable = TABLE) -> GrammarConstraint:
    return constraint_on(table, notations_of_schema(schema), "json_schema")


def byte_table(*further: bytes) -> TokenTable:
    """Every byte, then these tokens, then one end."""
    pieces = [bytes([byte]) for byte in range(256)] + list(further)
    return TokenTable([*pieces, b"<end>"], frozenset({len(pieces)}))


def text_of(ids: list[int], table: TokenTable = TABLE) -> bytes:
    return b"".join(table.pieces[token] for token in ids)


def language(grammar: str, alphabet: str, longest: int) -> set[str]:
    """Every text of up to `longest` characters that the grammar describes."""
    rules = parse_gbnf(grammar)
    texts = (
        "".join(chars) for size in range(longest + 1) for chars in itertools.product(alphabet, repeat=size)
    )
    return {text for text in texts if matches(rules, text)}


def matches(rules: Mapping[str, Node], text: str) -> bool:
    """By growing, until nothing changes, the set of places where each rule may end from each place."""
    found: dict[tuple[str, int], set[int]] = defaultdict(set)

    def ends(node: Node, start: int) -> set[int]:
        match node:
            case Chars(ranges):
                code = ord(text[start]) if start < len(text) else -1
                return {start + 1} if any(low <= code <= high for low, high in ranges) else set()
            case Ref(name):
                return set(found[name, start])
            case Seq(items):
                places = {start}
                for item in items:
                    places = {end for place in places for end in ends(item, place)}
                return places
            case Alt(options):
                return {end for option in options for end in ends(option, start)}
            case Repeat(item, low, high):
                places, reached = {start}, {start} if low == 0 else set()
                for count in range(1, (high if high is not None else low + len(text) + 1) + 1):
                    places = {end for place in places for end in ends(item, place)}
                    reached |= places if count >= low else set()
                return reached
        raise AssertionError(node)

    changed = True
    while changed:
        changed = False
        for name, start in itertools.product(rules, range(len(text) + 1)):
            new = ends(rules[name], start) - found[name, start]
            found[name, start] |= new
            changed |= bool(new)
    return len(text) in found[ROOT, 0]
