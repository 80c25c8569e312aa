"""From a body of /v1/responses to a chat request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from localspec.server.faults import Warnings, bad_request, warning
from localspec.server.options import text_of
from localspec.server.response_schemas import ResponseRequest
from localspec.server.schemas import ChatRequest, JsonSchema, Message, Part, ResponseFormat, Sampling
from localspec.text.messages import checked_text

Messages = list[dict[str, Any]]
Find = Callable[[str], Mapping[str, Any] | None]
ROLES = ("system", "developer", "user", "assistant")
_ARGUMENTS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Calls, and the member with what the model wrote."""
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
PASSED_OVER = (
    "additional_tools", "apply_patch_call", "apply_patch_call_output", "code_interpreter_call", "computer_call",
    "computer_call_output", "file_search_call", "image_generation_call", "local_shell_call",
    "local_shell_call_output", "mcp_approval_request", "mcp_approval_response", "mcp_call", "mcp_list_tools", "program",
    "program_output", "shell_call", "shell_call_output", "tool_search_call", "tool_search_output", "web_search_call",
)  # fmt: skip
"""Items about tools that OpenAI runs itself: no template has a place for them."""


def chat_request(
    body: ResponseRequest, earlier: Sequence[Mapping[str, Any]], find: Find
) -> tuple[ChatRequest, Messages, Warnings]:
    """The body as a chat request, the conversation that the next response can continue, and what is passed over.

    earlier: messages of the previous response. find: the item of an id. Raises `ApiError` naming the field that is not
    usable.
    """
    refuse_unsupported(body)
    checked_text(body.instructions or "", "The text", name="instructions")
    messages, warnings = input_messages(body.input, find)
    conversation = [*map(dict, earlier), *messages]
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    sampling = {name: getattr(body, name) for name in Sampling.model_fields}
    chat = ChatRequest.model_construct(
        **sampling
        | {
            "messages": [Message.model_validate(item) for item in one_system([*system, *conversation])],
            "max_completion_tokens": body.max_output_tokens,
            "response_format": _response_format(body) or body.response_format,
            "tools": None if body.tools is None else [_chat_tool(tool) for tool in body.tools],
            "tool_choice": body.tool_choice,
            "parallel_tool_calls": body.parallel_tool_calls,
            "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        }
    )
    return chat, conversation, warnings


def refuse_unsupported(body: ResponseRequest) -> None:
    """Raise `ApiError` naming a field that asks for what this server does not do."""
    if body.background:
        raise bad_request("background is true. Read the answer from this request.", "background")
    for name in ("conversation", "prompt"):
        if getattr(body, name) is not None:
            raise bad_request(f"{name} is given. This server keeps none: use input.", name)
    if body.truncation not in (None, "disabled"):
        raise bad_request(
            f"truncation is {body.truncation!r:.60}. Only 'disabled' is possible.", "truncation"
        )
    if body.top_logprobs or "message.output_text.logprobs" in (body.include or ()):
        param = "top_logprobs" if body.top_logprobs else "include"
        raise bad_request(f"{param} asks for logprobs. Use /v1/chat/completions for them.", param)
    if body.n not in (None, 1):
        raise bad_request(f"n is {body.n}. A response has one answer.", "n")


def input_messages(given: str | Sequence[Mapping[str, Any]], find: Find) -> tuple[Messages, Warnings]:
    """The items of `input` as chat messages, and a warning for each of which the model is shown nothing.

    Raises `ApiError` naming an item that is not usable.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}], ()
    if not given:
        raise bad_request("input is empty. Give at least one item.", "input")
    messages: Messages = []
    warnings: list[dict[str, Any]] = []
    thoughts = ""
    for index, item in enumerate(given):
        param = f"input[{index}]"
        item = _referred(item, param, find)
        kind = item.get("type")
        if kind in PASSED_OVER:
            message = f"{param} is of the type {kind}, of which the model is shown nothing."
            warnings.append(warning(message, param, "item_passed_over"))
            continue
        if kind == "reasoning":
            if item.get("content") is not None:  # other servers give a summary alone
                thoughts += _text(item["content"], f"{param}.content")
            continue
        _add(messages, _message(item, param))
        if thoughts and messages[-1]["role"] == "assistant":
            messages[-1]["reasoning_content"] = thoughts
        thoughts = ""
    return messages, tuple(warnings)


def _referred(item: Mapping[str, Any], param: str, find: Find) -> Mapping[str, Any]:
    """The item that a reference stands for; any other as it is."""
    kind, name = item.get("type"), item.get("id")
    if kind != "item_reference" and not (kind is None and "role" not in item and isinstance(name, str)):
        return item
    found = find(_string(item, "id", param))
    if found is None:
        raise bad_request(
            f"There is no item {name!r:.80}, or it was forgotten. Give the item itself.", f"{param}.id"
        )
    return found


def one_system(messages: Messages) -> Messages:
    """System messages at the beginning as one: most templates take no second."""
    texts = []
    for message in messages:
        if message["role"] != "system":
            break
        texts.append(message["content"])
    first = [{"role": "system", "content": "\n\n".join(texts)}] if texts else []
    return first + messages[len(texts) :]


def _message(item: Mapping[str, Any], param: str) -> dict[str, Any]:
    kind = "message" if item.get("type") is None else item["type"]
    if isinstance(kind, str) and kind in _ARGUMENTS:
        function = {"name": _string(item, "name", param), "arguments": item.get(_ARGUMENTS[kind])}
        call = {"id": _string(item, "call_id", param), "type": "function", "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if kind in _OUTPUTS:
        output = _text(item.get("output"), f"{param}.output")
        return {"role": "tool", "tool_call_id": _string(item, "call_id", param), "content": output}
    if kind != "message":
        raise bad_request(
            f"{param}.type is {kind!r:.60}. This server cannot make a prompt of such items.", f"{param}.type"
        )
    role = item.get("role")
    if role not in ROLES:
        raise bad_request(f"{param}.role is {role!r:.60}. Use one of {', '.join(ROLES)}.", f"{param}.role")
    content = _text(item.get("content"), f"{param}.content")
    return {"role": "system" if role == "developer" else role, "content": content}


def _add(messages: Messages, message: dict[str, Any]) -> None:
    """Append `message`; tool calls join an assistant message that stands just before them."""
    if "tool_calls" in message and messages and messages[-1]["role"] == "assistant":
        last = messages[-1]
        messages[-1] = {**last, "tool_calls": [*last.get("tool_calls", ()), *message["tool_calls"]]}
    else:
        messages.append(message)


def _text(content: object, param: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request(f"{param} is {content!r:.60}. It must be a text or a list of parts.", param)
    parts = []
    for index, part in enumerate(content):
        if isinstance(part, dict) and part.get("type") == "reasoning_text":
            part = {**part, "type": "text"}
        try:
            parts.append(Part.model_validate(part))
        except ValidationError:
            where = f"{param}[{index}]"
            raise bad_request(f"{where} is {part!r:.60}. It must have a type and a text.", where) from None
    return text_of(parts, param)


def _string(item: Mapping[str, Any], name: str, param: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise bad_request(f"{param}.{name} is {value!r:.60}. It must be a text.", f"{param}.{name}")
    return value


def _response_format(body: ResponseRequest) -> ResponseFormat | None:
    form = body.text.format if body.text else None
    if form is None:
        return None
    if form.type == "json_schema" and form.schema_ is None:
        raise bad_request(
            "text.format.schema is missing.", "text.format.schema", "missing_required_parameter"
        )
    schema = JsonSchema.model_construct(schema_=form.schema_)
    return ResponseFormat.model_construct(type=form.type, json_schema=schema, schema_=None)


def _chat_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A function in the form of chat completions; a tool of another type as it is."""
    if tool.get("type") != "function":
        return tool
    fields = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool.get(name) for name in fields}}
