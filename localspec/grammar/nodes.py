"""What a grammar is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from localspec.grammar.chars import Ranges


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Ref:
    """What the rule of this name describes."""

    name: str


@dataclass(frozen=True, slots=True)
class Seq:
    """The items one after the other; without items, the empty text."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """Any one of the options."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`item` from `low` to `high` times; high None: without end."""

    item: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A part without recursion that the library's lexer reads in one go."""

    body: Node


Node = Chars | Ref | Seq | Alt | Repeat | Lexeme
Rules = Mapping[str, Node]
ROOT = "root"


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly inside."""
    match node:
        case Seq(items):
            return items
        case Alt(options):
            return options
        case Repeat(item=inner) | Lexeme(body=inner):
            return (inner,)
    return ()


def references(node: Node) -> Iterator[str]:
    """Names of the rules it mentions."""
    if isinstance(node, Ref):
        yield node.name
    for child in children(node):
        yield from references(child)


def sequence(items: tuple[Node, ...]) -> Node:
    """The items as one node; a single item stands for itself."""
    return items[0] if len(items) == 1 else Seq(items)
