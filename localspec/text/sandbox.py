"""The sandbox that chat templates run in: Jinja's, with bounds on memory, output, steps and time.

A template comes from a stranger and runs in this process. Jinja's sandbox keeps it from files and from the objects of
Python, but not from `"x" * 10**10`. Here all work draws on one allowance: what an operator, a filter, a call, a
literal or an output makes, and each turn of a loop.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from jinja2 import BaseLoader, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from localspec.text.template_allowance import (
    STEP,
    TooMuch,
    current,
    cut,
    kept,
    measured,
    need,
    paid_items,
    spend,
)
from localspec.text.template_work import (
    guarded_filter,
    guarded_test,
    made_by_method,
    made_by_operator,
    searchable,
    whole_number,
)

_SOURCE, _NODES = 1 << 18, 20_000
"""Characters of a template, and parts of what it says: compiling takes up to 5 kB of memory for each part."""
_BLOCK = "{% set %}"
"""The filter of all that is written between `{% set %}` and `{% endset %}`: no template can name it."""


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
    need(4 * whole_number(indent))
    parts = []
    for part in encoder.iterencode(value):
        spend(sys.getsizeof(part))
        parts.append(part)
    return "".join(parts)


def _strftime_now(form: str) -> str:
    need(len(form) << 12)
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
        node.body.insert(0, nodes.ExprStmt(_call("spend", nodes.Const(STEP + _text(node)))))
        if node.test is not None:
            node.test = nodes.And(_call("spend", nodes.Const(STEP)), node.test)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("spend", nodes.Const(STEP + _text(node)))))
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("spend", nodes.Const(STEP + _text(node)))))
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
    spend = staticmethod(spend)
    kept = staticmethod(kept)
    searchable = staticmethod(searchable)
    cut = staticmethod(cut)

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
        self.filters = {name: guarded_filter(name, function) for name, function in filters.items()}
        self.filters[_BLOCK] = kept
        self.tests = {name: guarded_test(name, function) for name, function in self.tests.items()}
        del self.globals["lipsum"]
        self.globals["strftime_now"] = _strftime_now

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        if sum(1 for _ in source.find_all(nodes.Node)) > _NODES:
            raise TooMuch(f"it has more than {_NODES} parts")
        return super()._generate(_Paying().visit(source).set_environment(self), *args, **kwargs)

    @staticmethod
    def joined(*parts: Any) -> str:
        """`~`, which no setting of Jinja intercepts."""
        need(sum(map(measured, parts)))
        return "".join(map(str, parts))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator's result, paid for."""
        spend(STEP)
        need(made_by_operator(operator, left, right))
        return kept(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """A call's result, paid for."""
        if any(__obj is own for own in (__self.spend, __self.kept, __self.searchable, __self.cut)):
            return __obj(*args)
        spend(STEP)
        if __obj is dict and args and not isinstance(args[0], Mapping):
            # Where keys collide, its time is the square of their number.
            args = (paid_items(args[0]), *args[1:])
        method = getattr(__obj, "__wrapped__", __obj)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, (str, bytes, int)):
            if getattr(method, "__name__", "") == "join" and args and not hasattr(args[0], "__len__"):
                args = (list(args[0]),)
            need(made_by_method(method, owner, args, kwargs))
        return kept(super().call(__context, __obj, *args, **kwargs))


@pass_context
def _finalized(context: Context, value: Any) -> Any:
    """What is written out, paid for. With a context, so that it is not done once for all by the compiler."""
    current.get().write(measured(value))
    return value


def checked_source(source: str) -> str:
    """`source`, if it is not too long to compile. Raises TooMuch."""
    if len(source) > _SOURCE:
        raise TooMuch(f"it has {len(source)} characters, more than {_SOURCE}")
    return source
