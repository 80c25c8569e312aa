"""Checks of a grammar's rules before it is used, and which of them are without recursion."""

from __future__ import annotations

from collections import Counter, defaultdict

from localspec.errors import InvalidRequest
from localspec.grammar.nodes import ROOT, Alt, Chars, Lexeme, Node, Ref, Repeat, Rules, Seq, references


def check_rules(rules: Rules) -> None:
    """Raise `InvalidRequest` for rules that are missing and for those that no text can ever satisfy."""
    if ROOT not in rules:
        raise InvalidRequest("The grammar has no rule root.", "An answer begins there.", name="grammar")
    for name, body in rules.items():
        for used in references(body):
            if used not in rules:
                raise InvalidRequest(
                    f"The grammar uses a rule {used} in {name}, and does not define it.", name="grammar"
                )
    if hopeless := sorted(set(rules) - _finishable(rules)):
        raise InvalidRequest(
            f"The grammar's rule {hopeless[0]} never comes to an end.",
            "It needs an alternative without itself.",
            name="grammar",
        )


def flat_rules(rules: Rules) -> list[str]:
    """Names of the rules without recursion, each behind those it uses."""
    users: dict[str, set[str]] = defaultdict(set)
    waiting = Counter[str]()
    for name, body in rules.items():
        used = set(references(body))
        waiting[name] = len(used)
        for other in used:
            users[other].add(name)
    ready = [name for name in rules if not waiting[name]]
    for name in ready:  # grows while it is read
        for user in users[name]:
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    return ready


def _finishable(rules: Rules) -> set[str]:
    """Names of the rules that some finite text satisfies."""
    users: dict[str, set[str]] = defaultdict(set)
    for name, body in rules.items():
        for used in references(body):
            users[used].add(name)
    known: set[str] = set()
    to_try = list(rules)
    for name in to_try:
        if name not in known and _can_finish(rules[name], known):
            known.add(name)
            to_try += users[name]
    return known


def _can_finish(node: Node, known: set[str]) -> bool:
    match node:
        case Ref(name):
            return name in known
        case Seq(items):
            return all(_can_finish(item, known) for item in items)
        case Alt(options):
            return any(_can_finish(option, known) for option in options)
        case Repeat(item, low, _):
            return low == 0 or _can_finish(item, known)
        case Chars(ranges):
            return bool(ranges)
        case Lexeme(body):
            return _can_finish(body, known)
