"""The tools of a request: what the model is told of them, and how it is made to call one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.grammar.constraint import check_constraint
from localspec.grammar.schema_faults import enforceable
from localspec.server.call_schema import either_schema, forced_schema
from localspec.server.faults import Warnings, bad_request, warning
from localspec.text.tool_calls import ToolCallParser

MOST_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MODES = ("none", "auto", "required")
_ALLOWED = "allowed_tools"
_PASSED_OVER = "tool_passed_over"
_NOT_ENFORCED = "schema_not_enforced"
_NO_OBJECTS = frozenset({"", "array", "string", "number", "integer", "boolean", "null"})
"""Types of JSON that arguments cannot have."""
_EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class CallSyntax:
    """How a model writes calls.

    beginning: text in front of the first. key: the member with the arguments. listed: whether calls are in a list.
    """

    beginning: str = ""
    key: str = "arguments"
    listed: bool = False


@dataclass(frozen=True)
class Function:
    """A function of a request.

    fields: OpenAI's `name`, `description`, `parameters`. place: where it stands in the request. strict: its schema must
    be enforced whole where a call is.
    """

    fields: Mapping[str, Any]
    place: str
    strict: bool

    def enforceable(self) -> tuple[dict[str, Any], Warnings]:
        """The fields, with what of the parameters can be enforced; and a warning for each part that cannot.

        Raises `ApiError` instead if it is strict.
        """
        kept, faults = enforceable({"type": "object", **self.fields["parameters"]})
        warnings = []
        for fault in faults:
            where = f"{self.place}.function.parameters{'.' if fault.path else ''}{fault.path}"
            what = f"{where} cannot be enforced: {fault.reason}."
            if self.strict:
                raise bad_request(f"{what} Correct it, or leave strict out.", where)
            what += f" Calls of {self.fields['name']} need not follow it."
            warnings.append(warning(what, where, _NOT_ENFORCED))
        return {**self.fields, "parameters": kept}, tuple(warnings)


@dataclass(frozen=True)
class ToolUse:
    """Functions that the model is told of, and what tool_choice makes of them.

    functions: () if none may be called. forced: the answer must call one of `callable`. parallel: several calls count.
    warnings: of tools that were passed over.
    """

    functions: tuple[Function, ...] = ()
    callable: tuple[str, ...] = ()
    forced: bool = False
    parallel: bool = True
    warnings: Warnings = ()

    @property
    def tools(self) -> list[dict[str, Any]]:
        """As templates expect them."""
        return [{"type": "function", "function": dict(function.fields)} for function in self.functions]

    def parser(self) -> ToolCallParser | None:
        """A parser for one answer; None if no tool may be called."""
        if not self.functions:
            return None
        parameters = {function.fields["name"]: function.fields["parameters"] for function in self.functions}
        return ToolCallParser(self.callable, parallel=self.parallel, parameters=parameters)

    def schema(self, syntax: CallSyntax, answer: Any = None) -> tuple[Any, Warnings]:
        """The schema that the answer must match, or None; with warnings about what of it cannot be enforced.

        answer: the schema of an answer that is not a call. Raises `ApiError` for a strict function that cannot be
        enforced whole, `InvalidRequest` for such an `answer` beside functions.
        """
        callable_ = [function for function in self.functions if function.fields["name"] in self.callable]
        if not callable_ or not (self.forced or answer is not None):
            return answer, ()
        functions, warnings = zip(*(function.enforceable() for function in callable_), strict=True)
        if self.forced:
            schema = forced_schema(functions, syntax.key, listed=syntax.listed, several=self.parallel)
        else:
            check_constraint(json_schema=answer)
            schema = either_schema(functions, syntax.key, answer)
        return schema, sum(warnings, ())


def call_syntax(source: str) -> CallSyntax:
    """The syntax of calls that the text of a chat template shows."""
    if "[TOOL_CALLS]" in source and "[ARGS]" not in source:
        return CallSyntax("[TOOL_CALLS]", listed=True)
    if "<tool_call>" in source and "<function=" not in source:
        return CallSyntax("<tool_call>\n")
    if "<|python_tag|>" in source or '"parameters"' in source:
        return CallSyntax(key="parameters")
    return CallSyntax()


def tool_use(
    tools: Sequence[Mapping[str, Any]] | None,
    tool_choice: str | Mapping[str, Any] | None,
    parallel: bool | None,
) -> ToolUse:
    """Check the three fields of a request. Raises `ApiError` naming the one at fault."""
    warnings: list[dict[str, Any]] = []
    functions = _checked_tools(tools or (), warnings)
    choice = _choice(tool_choice, tuple(functions), warnings)
    if choice.mode == "none" or not choice.names:
        return ToolUse(warnings=tuple(warnings))
    told = choice.names if choice.allowed else functions
    return ToolUse(
        tuple(functions[name] for name in told),
        choice.names,
        choice.mode == "required",
        parallel is not False and not choice.one,
        tuple(warnings),
    )


def _checked_tools(tools: Sequence[Mapping[str, Any]], warnings: list[dict[str, Any]]) -> dict[str, Function]:
    """The functions among the tools, by name; adds a warning for each tool of another type."""
    if len(tools) > MOST_TOOLS:
        raise bad_request(f"There are {len(tools)} tools. Give at most {MOST_TOOLS}.", "tools")
    functions: dict[str, Function] = {}
    for index, tool in enumerate(tools):
        param = f"tools[{index}]"
        if _is_foreign(tool):
            warnings.append(_passed_over(tool, param))
            continue
        function = _checked_tool(tool, param)
        name = function.fields["name"]
        if name in functions:
            raise bad_request(f"Two tools are called {name!r}. Rename one.", f"{param}.function.name")
        functions[name] = function
    return functions


def _is_foreign(tool: Mapping[str, Any]) -> bool:
    """Whether it has a type that cannot be called here, such as `web_search`."""
    return isinstance(tool.get("type"), str) and tool["type"] not in ("", "function")


def _passed_over(tool: Mapping[str, Any], param: str) -> dict[str, Any]:
    message = f"{param} is of the type {tool['type']!r:.60}, which cannot be called here: it is passed over."
    return warning(message, param, _PASSED_OVER)


def _checked_tool(tool: Mapping[str, Any], param: str) -> Function:
    kind, function = tool.get("type"), tool.get("function")
    if kind != "function":
        raise bad_request(f"{param}.type is {kind!r:.60}. It must be 'function'.", f"{param}.type")
    if not isinstance(function, Mapping):
        raise bad_request(f"{param}.function is {function!r:.60}. It must be an object.", f"{param}.function")
    checked: dict[str, Any] = {"name": _checked_name(function.get("name"), f"{param}.function.name")}
    description, parameters = function.get("description"), function.get("parameters")
    if description is not None:
        if not isinstance(description, str):
            where = f"{param}.function.description"
            raise bad_request(f"{where} is {description!r:.60}. It must be a text.", where)
        checked["description"] = description
    if parameters is not None and not isinstance(parameters, Mapping):
        where = f"{param}.function.parameters"
        raise bad_request(f"{where} is {parameters!r:.60}. It must be a JSON schema.", where)
    kind = None if parameters is None else parameters.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    # A word that is no type, such as OBJECT, is a fault of the schema: passed over with a warning like any other.
    if kind is not None and all(not isinstance(one, str) or one in _NO_OBJECTS for one in kinds):
        where = f"{param}.function.parameters.type"
        raise bad_request(f"{where} is {kind!r:.60}. It must be 'object': arguments have names.", where)
    checked["parameters"] = _EMPTY if parameters is None else dict(parameters)
    return Function(checked, param, function.get("strict") is True)


def _checked_name(name: object, param: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise bad_request(f"{param} is {name!r:.80}. Use up to 64 letters, digits, _ and -.", param)
    return name


@dataclass(frozen=True)
class _Choice:
    """names: of the functions that may be called. one: of them one, once. allowed: the model is told of them alone."""

    mode: str
    names: tuple[str, ...]
    one: bool = False
    allowed: bool = False


def _choice(
    choice: str | Mapping[str, Any] | None, names: tuple[str, ...], warnings: list[dict[str, Any]]
) -> _Choice:
    """What tool_choice says of the functions called `names`. Raises `ApiError`."""
    if isinstance(choice, Mapping):
        if choice.get("type") == _ALLOWED:
            return _allowed(choice, names, warnings)
        return _Choice("required", (_chosen(choice, names, "tool_choice"),), one=True)
    mode = "auto" if choice is None else choice
    if mode not in _MODES:
        raise bad_request(
            f"tool_choice is {mode!r:.60}. Use {', '.join(_MODES)} or a function.", "tool_choice"
        )
    return _Choice(_possible(mode, names), names)


def _allowed(choice: Mapping[str, Any], names: tuple[str, ...], warnings: list[dict[str, Any]]) -> _Choice:
    """OpenAI's `allowed_tools`, in the form of chat completions or of responses."""
    inner = choice.get(_ALLOWED)
    given = inner if isinstance(inner, Mapping) else choice
    place = f"tool_choice.{_ALLOWED}" if given is inner else "tool_choice"
    mode, tools = given.get("mode"), given.get("tools")
    if mode not in ("auto", "required"):
        raise bad_request(f"{place}.mode is {mode!r:.60}. Use auto or required.", "tool_choice")
    if not isinstance(tools, list) or not tools or not all(isinstance(tool, Mapping) for tool in tools):
        raise bad_request(f"{place}.tools is {tools!r:.60}. Give a list of tools.", "tool_choice")
    allowed: list[str] = []
    for index, tool in enumerate(tools):
        where = f"{place}.tools[{index}]"
        if _is_foreign(tool):
            warnings.append(_passed_over(tool, where))
        else:
            allowed.append(_chosen(tool, names, where))
    kept = tuple(name for name in names if name in allowed)
    return _Choice(_possible(mode, kept), kept, allowed=True)


def _possible(mode: str, names: tuple[str, ...]) -> str:
    if mode == "required" and not names:
        raise bad_request(
            "tool_choice is 'required' and there is no function that can be called. Give one in tools.",
            "tool_choice",
        )
    return mode


def _chosen(choice: Mapping[str, Any], names: tuple[str, ...], where: str) -> str:
    """The function that an object names, in the form of chat completions or of responses."""
    kind, function = choice.get("type"), choice.get("function", choice)
    name = function.get("name") if isinstance(function, Mapping) else None
    if isinstance(kind, str) and kind != "function":
        raise bad_request(
            f"{where} asks for the type {kind!r:.60}, which cannot be called here. Name a function.",
            "tool_choice",
        )
    if kind != "function" or not isinstance(name, str):
        raise bad_request(
            f'{where} is an unknown object. Use {{"type": "function", "function": {{"name": ...}}}}.',
            "tool_choice",
        )
    if name not in names:
        raise bad_request(f"{where} names the function {name!r:.80}, which is not in tools.", "tool_choice")
    return name
