"""Rules written in the notation of the grammar library, a kind of Lark."""

from __future__ import annotations

from collections.abc import Mapping

from localspec.grammar.chars import Ranges
from localspec.grammar.lexemes import by_characters, by_lexemes
from localspec.grammar.nodes import ROOT, Alt, Chars, Lexeme, Node, Ref, Repeat, Rules, Seq
from localspec.grammar.parser import parse_gbnf
from localspec.grammar.rules import check_rules


def lark_of_gbnf(text: str) -> tuple[str, ...]:
    """A GBNF grammar in the library's notation, in one or two ways that mean the same: the fast one first.

    The library may find one of them too complex and not the other.
    Raises `InvalidRequest` for what is no grammar, or one that no text satisfies.
    """
    rules = parse_gbnf(text)
    check_rules(rules)
    forms = (written(by_lexemes(rules), rules), written(by_characters(rules), rules))
    return forms[: len(set(forms))]


def written(grouped: Rules, rules: Rules) -> str:
    """`grouped` in the library's notation; lexemes may mention `rules`."""
    names = {name: "start" if name == ROOT else f"r{index}" for index, name in enumerate(grouped)}
    return "".join(f"{names[name]}: {_rule(body, names, rules)}\n" for name, body in grouped.items())


def _rule(node: Node, names: Mapping[str, str], rules: Rules) -> str:
    match node:
        case Ref(name):
            return names[name]
        case Seq(items):
            return " ".join(_rule(item, names, rules) for item in items) or '""'
        case Alt(options):
            return "(" + " | ".join(_rule(option, names, rules) for option in options) + ")"
        case Repeat(item, low, high):
            return f"({_rule(item, names, rules)}){_times(low, high)}"
        case Lexeme(body):
            return f"/{_regex(body, rules)}/"
        case Chars():
            return f"/{_regex(node, rules)}/"


def _regex(node: Node, rules: Rules) -> str:
    match node:
        case Ref(name):
            return _regex(rules[name], rules)
        case Seq(items):
            return "(?:" + "".join(_regex(item, rules) for item in items) + ")"
        case Alt(options):
            return "(?:" + "|".join(_regex(option, rules) for option in options) + ")"
        case Repeat(item, low, high):
            return f"(?:{_regex(item, rules)}){_times(low, high)}"
        case Lexeme(body):
            return _regex(body, rules)
        case Chars(ranges):
            return _class(ranges)


def _class(ranges: Ranges) -> str:
    return (
        "["
        + "".join(_char(low) if low == high else f"{_char(low)}-{_char(high)}" for low, high in ranges)
        + "]"
    )


def _char(code: int) -> str:
    """Letters and digits as they are; nothing else, so that no character means something to a reader of regexes."""
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\u{{{code:X}}}"


def _times(low: int, high: int | None) -> str:
    if (low, high) in ((0, None), (1, None), (0, 1)):
        return {(0, None): "*", (1, None): "+", (0, 1): "?"}[low, high]
    return f"{{{low},{'' if high is None else high}}}"
