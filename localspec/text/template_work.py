"""What operators, methods, filters and tests of a chat template would make, and how long they would search."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any

from localspec.text.template_allowance import (
    MOST_BITS,
    STEP,
    TOO_LARGE,
    TooMuch,
    kept,
    measured,
    need,
    paid_items,
    spend,
)

_COMPARED = 1 << 30
"""Characters that one search may compare: about a second, in which nothing else runs."""
_ENCODINGS = ("utf-8", "utf8", "ascii", "latin-1", "utf-16", "utf-32")
_MOST_PARTS = 100_000
_SPLITS = ("split", "rsplit", "splitlines")
_FROM_BEHIND = ("rfind", "rindex", "rsplit", "rpartition")
_STRIPS = ("strip", "lstrip", "rstrip", "trim")
_WHOLE = ("join", "sum", "list", "sort", "groupby", "min", "max", "reverse", "urlencode")
_LAZY = ("select", "reject", "selectattr", "rejectattr", "map", "batch", "slice", "unique")


def _searched(text: Any, sought: Any) -> None:
    """Pays for a search whose time is the product of both lengths at worst."""
    if isinstance(text, (str, bytes)) and isinstance(sought, (str, bytes)):
        compared = len(sought) * max(len(text) - len(sought) + 1, 0)
        if compared > _COMPARED:
            raise TooMuch("it searches for too long")
        spend(compared >> 3)


def _stripped(text: Any, strip: Any) -> None:
    """Pays for cutting off all characters that are in `strip`: each is looked for there."""
    if isinstance(text, (str, bytes)) and isinstance(strip, (str, bytes)) and len(strip) > 64:
        if len(text) * len(strip) > _COMPARED:
            raise TooMuch("it searches for too long")
        spend(len(text) * len(strip) >> 3)


def _tags(text: Any) -> None:
    """Pays for removing tags: each copies the rest of the text."""
    spend(str(text).count("<") * len(str(text)) >> 3)


def searchable(value: Any) -> Any:
    """`value`, in which `in` looks for something, paid for."""
    spend(STEP)
    if isinstance(value, range):
        spend(len(value))
    elif isinstance(value, (list, tuple)):
        spend(measured(value) >> 1)
    elif hasattr(value, "__next__"):
        return paid_items(value)
    return value


def whole_number(value: Any) -> int:
    """The value if it is one, else 0."""
    return int(value) if isinstance(value, int) else 0


def _repeated(text: Any, count: Any) -> int:
    return measured(text) * max(whole_number(count), 1)


def _filled(form: Any, values: Any) -> int:
    """A text with values put in by `%` or `format`: each place may take the largest."""
    if re.search(r"\{[^{}:]*:[^{}]*\{|%[^a-zA-Z%]*\*|\d{12}", str(form)):
        raise TooMuch("it computes the width of a field")
    widths = [int(digits) for digits in re.findall(r"\d+", str(form))]
    places = str(form).count("%") + str(form).count("{")
    return measured(form) + places * (measured(values) + max(widths, default=0))


def _of_integers(operator: str, left: int, right: int) -> int:
    """Bits of the result, as bytes times the value's bound over the bound of bits."""
    bits = left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
    if bits > MOST_BITS:
        raise TooMuch(TOO_LARGE)
    return 0


def made_by_operator(operator: str, left: Any, right: Any) -> int:
    """Bytes of the result, at most. Raises TooMuch."""
    if isinstance(left, int) and isinstance(right, int):
        return _of_integers(operator, left, right)
    if operator == "*":
        return _repeated(left, right) if isinstance(right, int) else _repeated(right, left)
    if operator == "%" and isinstance(left, (str, bytes)):
        return _filled(left, right)
    return measured(left) + measured(right) if operator == "+" else 0


def _of_replacing(text: Any, old: Any, new: Any = "", *_: Any) -> int:
    places = str(text).count(str(old)) if old != "" else len(str(text)) + 1
    return measured(text) + places * measured(new)


def made_by_method(method: Any, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Bytes of the result of a text's or a number's method, at most, with its searches paid for. Raises TooMuch."""
    name = getattr(method, "__name__", "")
    given = (*args, *kwargs.values())
    if name in _FROM_BEHIND and given:
        _searched(owner, given[0] if args else kwargs.get("sep"))
    if name in _STRIPS and given:
        _stripped(owner, given[0])
    if name == "striptags":
        _tags(owner)
    if name in ("encode", "decode"):
        encoding = str(args[0] if args else kwargs.get("encoding", "utf-8"))
        if encoding.lower().replace("_", "-") not in _ENCODINGS:
            raise TooMuch(f"it asks for the encoding {encoding[:40]!r}")
    if name in ("center", "ljust", "rjust", "zfill", "to_bytes"):
        return 4 * max((whole_number(value) for value in (*args, *kwargs.values())), default=0)
    if name == "expandtabs":
        return _repeated(owner, [*args, *kwargs.values(), 8][0])
    if name == "replace" and len(args) > 1:
        return _of_replacing(owner, *args) if isinstance(owner, str) else measured(owner) * measured(args)
    if name == "join" and args:
        return measured(args) + measured(owner) * len(args[0])
    if name in ("format", "format_map"):
        return _filled(owner, [args, kwargs])
    if name == "translate":
        return measured(owner) * measured(args)
    if name in _SPLITS:
        places = len(owner) if name == "splitlines" or not args or args[0] is None else owner.count(args[0])
        spend(32 * places)
    return 0


def _of_filter(name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    given = (*args, *kwargs.values())
    if name == "trim" and given:
        _stripped(value, given[0])
    if name == "striptags":
        _tags(value)
    if name == "center":
        return 4 * max(map(whole_number, given), default=0)
    if name in ("batch", "slice", "round"):
        if max(map(whole_number, given), default=0) > (300 if name == "round" else _MOST_PARTS):
            raise TooMuch(f"it asks for more parts than {_MOST_PARTS}")
        return measured(given)
    if name == "indent":
        return measured(value) + (str(value).count("\n") + 1) * max(
            measured(given), *map(whole_number, given), 0
        )
    if name == "replace":
        return _of_replacing(value, *given)
    if name == "format":
        return _filled(value, given)
    if name == "join":
        return measured(value) + len(value) * measured(given)
    if name == "sum":
        return measured(value) + measured(given)
    if name in ("string", "pprint", "tojson", "list", "urlencode", "escape", "e", "forceescape", "dictsort"):
        return measured(value)
    return 0


def guarded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is paid for."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        spend(STEP)
        if len(args) > first:
            value = args[first]
            if name in _WHOLE and hasattr(value, "__next__"):
                value = list(paid_items(value))
                measured(value)
            elif name in _LAZY and value and hasattr(value, "__iter__"):
                value = paid_items(value)
            args = (*args[:first], value, *args[first + 1 :])
            need(_of_filter(name, value, args[first + 1 :], kwargs))
            if name == "sum" and any(hasattr(item, "__len__") for item in (*value, *args[first + 1 :])):
                spend(len(value) * measured(value))  # each step copies what there is so far
        return kept(function(*args, **kwargs))

    return guarded


def guarded_test(name: str, function: Any) -> Callable[..., Any]:
    """What stands after `is`, paid for."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        spend(STEP)
        if name == "in" and len(args) > first + 1:
            args = (*args[: first + 1], searchable(args[first + 1]), *args[first + 2 :])
        for value in args[first:]:
            if isinstance(value, int):
                measured(value)
        return function(*args, **kwargs)

    return guarded
