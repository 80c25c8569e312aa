"""The sandbox that chat templates run in: Jinja's, with bounds on memory, output, steps and time.

A template comes from a stranger and runs in this process. Jinja's sandbox keeps it from files and from the objects of
Python, but not from `"x" * 10**10`. Here all work draws on one allowance: what an operator, a filter, a call, a
literal or an output makes, and each turn of a loop. What one operation would make is estimated before it is done,
because nothing can stop it afterwards.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import BaseLoader, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

_WORK = 32 << 20
"""Bytes that a template may make in all, a step counted as `_STEP`; more for long conversations, see `allowance`."""
_VALUE = 4 << 20
"""Bytes of one value."""
_MOST_WORK = 1 << 32
"""What is added at most for templates that go through a conversation for each message of it."""
_STEP = 64
_LONG = 4096
_WORKS = "it does too much"
_SECONDS, _GIVEN_A_SECOND, _MOST_MORE = 10.0, 1 << 14, 120.0
"""Of computing, for what its steps do not tell; one more for so many bytes that it gets, and at most so many more."""
_SOURCE, _NODES = 1 << 18, 20_000
"""Characters of a template, and parts of what it says: compiling takes up to 5 kB of memory for each part."""
_BITS = 2000
"""Of whole numbers: the time of dividing them grows with the square, and Python writes out no long ones."""
_BLOCK = "{% set %}"
"""The filter of all that is written between `{% set %}` and `{% endset %}`: no template can name it."""
_COMPARED = 1 << 30
"""Characters that one search may compare: about a second, in which nothing else runs."""
_ENCODINGS = ("utf-8", "utf8", "ascii", "latin-1", "utf-16", "utf-32")
_TOO_LARGE = "it computes with a number that is too large"
_MOST_PARTS = 100_000
_CONTAINERS: tuple[type[Iterable[Any]], ...] = (
    list, tuple, set, frozenset, type({}.keys()), type({}.values()), type({}.items()),
)  # fmt: skip
_SPLITS = ("split", "rsplit", "splitlines")
_FROM_BEHIND = ("rfind", "rindex", "rsplit", "rpartition")
_STRIPS = ("strip", "lstrip", "rstrip", "trim")
_WHOLE = ("join", "sum", "list", "sort", "groupby", "min", "max", "reverse", "urlencode")
_LAZY = ("select", "reject", "selectattr", "rejectattr", "map", "batch", "slice", "unique")


class TooMuch(Exception):
    """A template asks for more than it may."""


class _Held(str):
    """A long text that a template made: its room is free again when the template forgets it.

    So a template may write a long conversation by adding to one text, which copies that text over and over.
    """

    allowed: _Allowance
    size: int

    def __del__(self) -> None:
        self.allowed.held -= self.size


class _Allowance:
    """What is left to one rendering."""

    def __init__(self, given: int) -> None:
        self.given = given
        self.left = _WORK + 64 * given + min(given * given >> 9, _MOST_WORK)
        self.room = _WORK + 64 * given
        self.value = _VALUE + 4 * given
        self.held, self.most_held = 0, 16 * self.value
        self.seconds = _SECONDS + min(given / _GIVEN_A_SECOND, _MOST_MORE)
        self.ends = time.thread_time() + self.seconds

    def spend(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise TooMuch(_WORKS)
        if self.left & 0x3FFF < amount and time.thread_time() > self.ends:  # looked at once in a while
            raise TooMuch(f"it computes for more than {self.seconds:.0f} s")

    def write(self, amount: int) -> None:
        """For what stays until the end: the output."""
        self.room -= amount
        if self.room < 0:
            raise TooMuch(_WORKS)
        self.spend(amount)

    def hold(self, amount: int) -> None:
        """For a long text: room while it is there, and the time of copying it."""
        self.held += amount
        if self.held > self.most_held:
            raise TooMuch("it holds too much at a time")
        self.spend(_STEP + (amount >> 8))

    def check(self, amount: int) -> int:
        """`amount`, if one value may have so many bytes."""
        if amount > self.value:
            raise TooMuch("it makes a value that is too large")
        return amount


_current: ContextVar[_Allowance] = ContextVar("template_allowance")


@contextmanager
def allowance(given: object = None) -> Iterator[_Allowance]:
    """One compilation or rendering; `given` is what the template gets, which it may handle many times over."""
    allowed = _Allowance(_size(given, sys.maxsize))
    token = _current.set(allowed)
    try:
        yield allowed
    finally:
        _current.reset(token)


def _size(value: Any, most: int) -> int:
    """Bytes of `value` when it is written out, where it stands twice counted twice. Raises TooMuch above `most`."""
    total, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, (str, bytes, int)):
            total += sys.getsizeof(item)
        elif isinstance(item, Mapping):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, Namespace):
            waiting.append(object.__getattribute__(item, "_Namespace__attrs"))
        elif isinstance(item, _CONTAINERS):
            waiting.extend(item)
        total += 16
        if total > most:
            raise TooMuch("it makes a value that is too large")
    return total


def _measured(value: Any) -> int:
    """Bytes of `value` written out, paid for and within bounds."""
    allowed = _current.get()
    if isinstance(value, (str, bytes)):
        return allowed.check(sys.getsizeof(value))
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise TooMuch(_TOO_LARGE)
    size = _size(value, allowed.value)
    allowed.spend(size >> 4)
    return size


def _kept(value: Any) -> Any:
    """`value` that was made, paid for."""
    size = _measured(value)
    allowed = _current.get()
    if type(value) is _Held:
        allowed.spend(_STEP)
        return value
    if type(value) is str and size > _LONG:
        allowed.hold(size)
        held = _Held(value)
        held.allowed, held.size = allowed, size
        return held
    if isinstance(value, (str, bytes)):
        allowed.spend(size)
    elif isinstance(value, (list, tuple)):
        allowed.write(2 * len(value))
    return value


def _cut(value: Any) -> Any:
    """A slice, paid for: a text is a copy, a list holds what there was."""
    if isinstance(value, (str, bytes)):
        return _kept(value)
    _spend(8 * len(value) if isinstance(value, (list, tuple)) else _STEP)
    return value


def _need(amount: int) -> None:
    allowed = _current.get()
    allowed.check(amount)


def _spend(amount: int) -> bool:
    _current.get().spend(amount)
    return True


def _items(values: Iterable[Any]) -> Iterator[Any]:
    """`values`, each paid for as it is taken."""
    for value in values:
        _spend(_STEP)
        yield value


# -- what operators, methods and filters would make, and how long they would search


def _searched(text: Any, sought: Any) -> None:
    """Pays for a search whose time is the product of both lengths at worst."""
    if isinstance(text, (str, bytes)) and isinstance(sought, (str, bytes)):
        compared = len(sought) * max(len(text) - len(sought) + 1, 0)
        if compared > _COMPARED:
            raise TooMuch("it searches for too long")
        _spend(compared >> 3)


def _stripped(text: Any, strip: Any) -> None:
    """Pays for cutting off all characters that are in `strip`: each is looked for there."""
    if isinstance(text, (str, bytes)) and isinstance(strip, (str, bytes)) and len(strip) > 64:
        if len(text) * len(strip) > _COMPARED:
            raise TooMuch("it searches for too long")
        _spend(len(text) * len(strip) >> 3)


def _tags(text: Any) -> None:
    """Pays for removing tags: each copies the rest of the text."""
    _spend(str(text).count("<") * len(str(text)) >> 3)


def _searchable(value: Any) -> Any:
    """`value`, in which `in` looks for something, paid for."""
    _spend(_STEP)
    if isinstance(value, range):
        _spend(len(value))
    elif isinstance(value, (list, tuple)):
        _spend(_measured(value) >> 1)
    elif hasattr(value, "__next__"):
        return _items(value)
    return value


def _number(value: Any) -> int:
    return int(value) if isinstance(value, int) else 0


def _repeated(text: Any, count: Any) -> int:
    return _measured(text) * max(_number(count), 1)


def _filled(form: Any, values: Any) -> int:
    """A text with values put in by `%` or `format`: each place may take the largest."""
    if re.search(r"\{[^{}:]*:[^{}]*\{|%[^a-zA-Z%]*\*|\d{12}", str(form)):
        raise TooMuch("it computes the width of a field")
    widths = [int(digits) for digits in re.findall(r"\d+", str(form))]
    places = str(form).count("%") + str(form).count("{")
    return _measured(form) + places * (_measured(values) + max(widths, default=0))


def _of_integers(operator: str, left: int, right: int) -> int:
    """Bits of the result, as bytes times the value's bound over the bound of bits."""
    bits = left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
    if bits > _BITS:
        raise TooMuch(_TOO_LARGE)
    return 0


def _of_operator(operator: str, left: Any, right: Any) -> int:
    if isinstance(left, int) and isinstance(right, int):
        return _of_integers(operator, left, right)
    if operator == "*":
        return _repeated(left, right) if isinstance(right, int) else _repeated(right, left)
    if operator == "%" and isinstance(left, (str, bytes)):
        return _filled(left, right)
    return _measured(left) + _measured(right) if operator == "+" else 0


def _of_replacing(text: Any, old: Any, new: Any = "", *_: Any) -> int:
    places = str(text).count(str(old)) if old != "" else len(str(text)) + 1
    return _measured(text) + places * _measured(new)


def _of_method(method: Any, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
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
        return 4 * max((_number(value) for value in (*args, *kwargs.values())), default=0)
    if name == "expandtabs":
        return _repeated(owner, [*args, *kwargs.values(), 8][0])
    if name == "replace" and len(args) > 1:
        return _of_replacing(owner, *args) if isinstance(owner, str) else _measured(owner) * _measured(args)
    if name == "join" and args:
        return _measured(args) + _measured(owner) * len(args[0])
    if name in ("format", "format_map"):
        return _filled(owner, [args, kwargs])
    if name == "translate":
        return _measured(owner) * _measured(args)
    if name in _SPLITS:
        places = len(owner) if name == "splitlines" or not args or args[0] is None else owner.count(args[0])
        _spend(32 * places)
    return 0


def _of_filter(name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    given = (*args, *kwargs.values())
    if name == "trim" and given:
        _stripped(value, given[0])
    if name == "striptags":
        _tags(value)
    if name == "center":
        return 4 * max(map(_number, given), default=0)
    if name in ("batch", "slice", "round"):
        if max(map(_number, given), default=0) > (300 if name == "round" else _MOST_PARTS):
            raise TooMuch(f"it asks for more parts than {_MOST_PARTS}")
        return _measured(given)
    if name == "indent":
        return _measured(value) + (str(value).count("\n") + 1) * max(
            _measured(given), *map(_number, given), 0
        )
    if name == "replace":
        return _of_replacing(value, *given)
    if name == "format":
        return _filled(value, given)
    if name == "join":
        return _measured(value) + len(value) * _measured(given)
    if name == "sum":
        return _measured(value) + _measured(given)
    if name in ("string", "pprint", "tojson", "list", "urlencode", "escape", "e", "forceescape", "dictsort"):
        return _measured(value)
    return 0


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is paid for."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        _spend(_STEP)
        if len(args) > first:
            value = args[first]
            if name in _WHOLE and hasattr(value, "__next__"):
                value = list(_items(value))
                _measured(value)
            elif name in _LAZY and value and hasattr(value, "__iter__"):
                value = _items(value)
            args = (*args[:first], value, *args[first + 1 :])
            _need(_of_filter(name, value, args[first + 1 :], kwargs))
            if name == "sum" and any(hasattr(item, "__len__") for item in (*value, *args[first + 1 :])):
                _spend(len(value) * _measured(value))  # each step copies what there is so far
        return _kept(function(*args, **kwargs))

    return guarded


def _guarded_test(name: str, function: Any) -> Callable[..., Any]:
    """What stands after `is`, paid for."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        _spend(_STEP)
        if name == "in" and len(args) > first + 1:
            args = (*args[: first + 1], _searchable(args[first + 1]), *args[first + 2 :])
        for value in args[first:]:
            if isinstance(value, int):
                _measured(value)
        return function(*args, **kwargs)

    return guarded


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as chat templates expect it: not escaped for a web page, unlike Jinja's own filter."""
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    _need(4 * _number(indent))
    parts = []
    for part in encoder.iterencode(value):
        _spend(sys.getsizeof(part))
        parts.append(part)
    return "".join(parts)


def _strftime_now(form: str) -> str:
    _need(len(form) << 12)
    return datetime.now().strftime(form)


# -- the environment


class _Generation(Extension):
    """`{% generation %}`, by which training code marks what the model wrote: passed over."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Paying(NodeTransformer):
    """Puts into a template what makes its loops, macros, literals and `~` pay."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("spend", nodes.Const(_STEP + _text(node)))))
        if node.test is not None:
            node.test = nodes.And(_call("spend", nodes.Const(_STEP)), node.test)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("spend", nodes.Const(_STEP + _text(node)))))
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("spend", nodes.Const(_STEP + _text(node)))))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _call("joined", *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        for operand in node.ops:
            if operand.op in ("in", "notin"):
                operand.expr = _call("searchable", operand.expr)
        return node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.AssignBlock:
        self.generic_visit(node)
        if node.filter is None:
            node.filter = nodes.Filter(None, _BLOCK, [], [], None, None)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _call("cut", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        self.generic_visit(node)
        return _call("kept", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        self.generic_visit(node)
        return _call("kept", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        self.generic_visit(node)
        return _call("kept", node) if node.ctx == "load" else node


def _call(name: str, *args: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None)


def _text(node: nodes.Node) -> int:
    return sum(len(found.data) for found in node.find_all(nodes.TemplateData))


class Sandbox(ImmutableSandboxedEnvironment):
    """Where chat templates are compiled and rendered, each time within an `allowance`.

    Blocks, `tojson` and `strftime_now` are as in transformers, for which the templates are written. Filters that
    only a web page needs (`urlize`, `xmlattr`, `wordwrap`, `lipsum`) are not there.
    """

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)
    spend = staticmethod(_spend)
    kept = staticmethod(_kept)
    searchable = staticmethod(_searchable)
    cut = staticmethod(_cut)

    def __init__(self) -> None:
        super().__init__(
            loader=BaseLoader(),
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            finalize=_finalized,
        )
        filters = {**self.filters, "tojson": _tojson}
        for name in ("urlize", "xmlattr", "wordwrap"):
            del filters[name]
        self.filters = {name: _guarded(name, function) for name, function in filters.items()}
        self.filters[_BLOCK] = _kept
        self.tests = {name: _guarded_test(name, function) for name, function in self.tests.items()}
        del self.globals["lipsum"]
        self.globals["strftime_now"] = _strftime_now

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        if sum(1 for _ in source.find_all(nodes.Node)) > _NODES:
            raise TooMuch(f"it has more than {_NODES} parts")
        return super()._generate(_Paying().visit(source).set_environment(self), *args, **kwargs)

    @staticmethod
    def joined(*parts: Any) -> str:
        """`~`, which no setting of Jinja intercepts."""
        _need(sum(map(_measured, parts)))
        return "".join(map(str, parts))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator's result, paid for."""
        _spend(_STEP)
        _need(_of_operator(operator, left, right))
        return _kept(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """A call's result, paid for."""
        if any(__obj is own for own in (__self.spend, __self.kept, __self.searchable, __self.cut)):
            return __obj(*args)
        _spend(_STEP)
        if __obj is dict and args and not isinstance(args[0], Mapping):
            args = (_items(args[0]), *args[1:])  # where keys collide, its time is the square of their number
        method = getattr(__obj, "__wrapped__", __obj)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, (str, bytes, int)):
            if getattr(method, "__name__", "") == "join" and args and not hasattr(args[0], "__len__"):
                args = (list(args[0]),)
            _need(_of_method(method, owner, args, kwargs))
        return _kept(super().call(__context, __obj, *args, **kwargs))


@pass_context
def _finalized(context: Context, value: Any) -> Any:
    """What is written out, paid for. With a context, so that it is not done once for all by the compiler."""
    _current.get().write(_measured(value))
    return value


def checked_source(source: str) -> str:
    """`source`, if it is not too long to compile. Raises TooMuch."""
    if len(source) > _SOURCE:
        raise TooMuch(f"it has {len(source)} characters, more than {_SOURCE}")
    return source
