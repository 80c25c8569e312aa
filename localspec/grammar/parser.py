"""GBNF text to rules, as llama.cpp reads it."""

from __future__ import annotations

import re

from localspec.errors import InvalidRequest
from localspec.grammar.chars import LAST, complement, ranges_of
from localspec.grammar.nodes import Alt, Chars, Node, Ref, Repeat, Seq, sequence

LONGEST_GRAMMAR = 100_000
"""Characters."""
DEEPEST_GROUP = 60
LARGEST_REPETITION = 2000

_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_BRACES = re.compile(r"\{\s*([0-9]+)\s*(,?)\s*([0-9]*)\s*\}")
_ESCAPED = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


def parse_gbnf(text: str) -> dict[str, Node]:
    """The rules by name. Raises `InvalidRequest` with the line at fault."""
    if len(text) > LONGEST_GRAMMAR:
        raise InvalidRequest(
            f"The grammar has {len(text)} characters.", f"At most {LONGEST_GRAMMAR} are read.", name="grammar"
        )
    return _Parser(text).rules()


class _Parser:
    """A position in the text, and the methods that read on from it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def rules(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        self._skip(_SPACE_AND_LINES)
        while self._at < len(self._text):
            name = self._name()
            if name in rules:
                raise self._fault(f"the rule {name} is defined a second time")
            self._skip(_SPACE)
            self._expect("::=")
            self._skip(_SPACE_AND_LINES)
            rules[name] = self._alternatives()
            if self._peek() not in ("", "\r", "\n"):
                raise self._fault(f"{self._peek()!r} cannot stand here")
            self._skip(_SPACE_AND_LINES)
        return rules

    def _alternatives(self) -> Node:
        options = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            self._skip(_SPACE_AND_LINES)
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Alt(tuple(options))

    def _sequence(self) -> Node:
        items: list[Node] = []
        while (node := self._item(items)) is not None:
            items.append(node)
            # A rule ends with its line, a group in parentheses does not.
            self._skip(_SPACE_AND_LINES if self._depth else _SPACE)
        return sequence(tuple(items))

    def _item(self, before: list[Node]) -> Node | None:
        """The next item, None at the end of the sequence. A repetition takes the item before it along."""
        char = self._peek()
        if char == '"':
            return self._literal()
        if char == "[":
            return self._char_class()
        if char == ".":
            self._at += 1
            return Chars(complement(()))
        if char == "(":
            return self._group()
        if char in ("*", "+", "?", "{"):
            if not before:
                raise self._fault(f"{char!r} has nothing before it to repeat")
            return self._repeat(before.pop())
        if char in ("<", "!"):
            raise self._fault(f"{char!r} names a token, and only characters can be named")
        return Ref(self._name()) if _NAME.match(self._text, self._at) else None

    def _group(self) -> Node:
        self._expect("(")
        self._depth += 1
        if self._depth > DEEPEST_GROUP:
            raise self._fault(f"more than {DEEPEST_GROUP} groups stand in each other")
        self._skip(_SPACE_AND_LINES)
        node = self._alternatives()
        self._expect(")")
        self._depth -= 1
        return node

    def _repeat(self, node: Node) -> Node:
        char = self._peek()
        if char != "{":
            self._at += 1
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
            return Repeat(node, low, high)
        found = _BRACES.match(self._text, self._at)
        if found is None:
            raise self._fault("a repetition is written {m}, {m,} or {m,n}")
        low = self._count(found[1])
        high = self._count(found[3]) if found[3] else None if found[2] else low
        if high is not None and high < low:
            raise self._fault(f"{found[0]} ends before it begins")
        self._at = found.end()
        return Repeat(node, low, high) if high != 0 else Seq(())

    def _count(self, digits: str) -> int:
        if len(digits) > 9 or int(digits) > LARGEST_REPETITION:
            raise self._fault(f"{digits[:20]} repetitions are more than {LARGEST_REPETITION}")
        return int(digits)

    def _literal(self) -> Node:
        self._expect('"')
        chars: list[Node] = []
        while self._peek() != '"':
            code = self._char()
            chars.append(Chars(ranges_of([(code, code)])))
        self._expect('"')
        return sequence(tuple(chars))

    def _char_class(self) -> Node:
        self._expect("[")
        negated = self._peek() == "^"
        self._at += negated
        pairs = []
        while self._peek() != "]":
            low = high = self._char()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._char()
            if high < low:
                raise self._fault("a range of characters ends before it begins")
            pairs.append((low, high))
        self._expect("]")
        ranges = ranges_of(pairs)
        ranges = complement(ranges) if negated else ranges
        if not ranges:
            raise self._fault("a character class holds no character")
        return Chars(ranges)

    def _char(self) -> int:
        """One code point, escaped or not."""
        char = self._peek()
        if not char:
            raise self._fault("a text or character class is not closed")
        self._at += 1
        code = self._escape() if char == "\\" else ord(char)
        if code > LAST or 0xD800 <= code <= 0xDFFF:
            raise self._fault(f"{code:X} is the code of no character")
        return code

    def _escape(self) -> int:
        kind = self._peek()
        self._at += 1
        if kind in _ESCAPED:
            return ord(_ESCAPED[kind])
        digits = self._text[self._at : self._at + _HEX_DIGITS.get(kind, 0)]
        if len(digits) != _HEX_DIGITS.get(kind) or not re.fullmatch("[0-9A-Fa-f]+", digits):
            raise self._fault(f"\\{kind}{digits} is no escape")
        self._at += len(digits)
        return int(digits, 16)

    def _name(self) -> str:
        found = _NAME.match(self._text, self._at)
        if found is None:
            raise self._fault("the name of a rule is missing")
        self._at = found.end()
        return found[0]

    def _expect(self, text: str) -> None:
        if not self._text.startswith(text, self._at):
            raise self._fault(f"{text!r} is missing")
        self._at += len(text)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, pattern: re.Pattern[str]) -> None:
        if found := pattern.match(self._text, self._at):
            self._at = found.end()

    def _fault(self, what: str) -> InvalidRequest:
        line = self._text.count("\n", 0, self._at) + 1
        return InvalidRequest(
            f"The grammar cannot be read: in line {line} {what}.", "Write it in GBNF.", name="grammar"
        )
