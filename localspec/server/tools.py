"""The tools of a request: what the model is told of them, and how it is made to call one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.server.call_schema import either_schema, forced_schema
from localspec.server.faults import bad_request
from localspec.text.tool_calls import ToolCallParser

MOST_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MODES = ("none", "auto", "required")
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
class ToolUse:
    """Tools as templates expect them, and what tool_choice makes of them.

    tools: () if none may be called. forced: the answer must call one of `callable`. parallel: several calls count.
    """

    tools: tuple[dict[str, Any], ...] = ()
    callable: tuple[str, ...] = ()
    forced: bool = False
    parallel: bool = True

    def parser(self) -> ToolCallParser | None:
        """A parser for one answer; None if no tool may be called."""
        if not self.tools:
            return None
        functions = [tool["function"] for tool in self.tools]
        parameters = {function["name"]: function.get("parameters") for function in functions}
        return ToolCallParser(self.callable, parallel=self.parallel, parameters=parameters)

    def schema(self, syntax: CallSyntax, answer: Any = None) -> Any:
        """The schema that the answer must match, or None. answer: the schema of an answer that is not a call."""
        functions = [tool["function"] for tool in self.tools if tool["function"]["name"] in self.callable]
        if self.forced:
            return forced_schema(functions, syntax.key, listed=syntax.listed, several=self.parallel)
        return either_schema(functions, syntax.key, answer) if functions and answer is not None else answer


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
    checked = _checked_tools(tools or ())
    names = tuple(tool["function"]["name"] for tool in checked)
    mode, chosen = _choice(tool_choice, names)
    if mode == "none" or not checked:
        return ToolUse()
    forced = mode == "required"
    several = parallel is not False and not (forced and chosen)
    return ToolUse(tuple(checked), chosen or names, forced, several)


def _checked_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if len(tools) > MOST_TOOLS:
        raise bad_request(f"There are {len(tools)} tools. Give at most {MOST_TOOLS}.", "tools")
    checked = [_checked_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    names = [tool["function"]["name"] for tool in checked]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise bad_request(f"Two tools are called {name!r}. Rename one.", f"tools[{index}].function.name")
    return checked


def _checked_tool(tool: Mapping[str, Any], param: str) -> dict[str, Any]:
    kind, function = tool.get("type"), tool.get("function")
    if kind != "function":
        raise bad_request(f"{param}.type is {kind!r:.60}. Only functions can be called.", f"{param}.type")
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
    checked["parameters"] = _EMPTY if parameters is None else dict(parameters)
    return {"type": "function", "function": checked}


def _checked_name(name: object, param: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise bad_request(f"{param} is {name!r:.80}. Use up to 64 letters, digits, _ and -.", param)
    return name


def _choice(choice: str | Mapping[str, Any] | None, names: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The mode, and the function that is asked for by name, if any."""
    if choice is None:
        return "auto", ()
    if isinstance(choice, str):
        if choice not in _MODES:
            raise bad_request(
                f"tool_choice is {choice!r:.60}. Use {', '.join(_MODES)} or a function.", "tool_choice"
            )
        if choice == "required" and not names:
            raise bad_request("tool_choice is 'required' and there are no tools. Give tools.", "tool_choice")
        return choice, ()
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise bad_request(
            'tool_choice is an unknown object. Use {"type": "function", "function": {"name": ...}}.',
            "tool_choice",
        )
    if name not in names:
        raise bad_request(
            f"tool_choice names the function {name!r:.80}, which is not in tools.", "tool_choice"
        )
    return "required", (name,)
