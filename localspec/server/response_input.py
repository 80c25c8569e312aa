"""From a body of /v1/responses to a chat request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from localspec.server.faults import bad_request
from localspec.server.options import check_length, text_of
from localspec.server.response_schemas import ResponseRequest
from localspec.server.schemas import ChatRequest, JsonSchema, Message, Part, ResponseFormat, Sampling
from localspec.text.messages import checked_text

Messages = list[dict[str, Any]]
ROLES = ("system", "developer", "user", "assistant")


def chat_request(body: ResponseRequest, earlier: Sequence[Mapping[str, Any]]) -> tuple[ChatRequest, Messages]:
    """The body as a chat request, and the conversation that the next response can continue.

    earlier: messages of the previous response. Raises `ApiError` naming the field that is not usable.
    """
    refuse_unsupported(body)
    checked_text(body.instructions or "", "The text", name="instructions")
    conversation = [*map(dict, earlier), *input_messages(body.input)]
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    sampling = {name: getattr(body, name) for name in Sampling.model_fields}
    chat = ChatRequest.model_construct(
        **sampling
        | {
            "messages": [Message.model_validate(item) for item in one_system([*system, *conversation])],
            "max_completion_tokens": body.max_output_tokens,
            "logprobs": wants_logprobs(body),
            "top_logprobs": body.top_logprobs,
            "response_format": _response_format(body) or body.response_format,
            "tools": None if body.tools is None else [_chat_tool(*item) for item in enumerate(body.tools)],
            "tool_choice": _chat_choice(body.tool_choice),
            "parallel_tool_calls": body.parallel_tool_calls,
            "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        }
    )
    return chat, conversation


def wants_logprobs(body: ResponseRequest) -> bool:
    """Whether the text's log-probabilities are asked for, by either of the two fields."""
    return bool(body.top_logprobs) or "message.output_text.logprobs" in (body.include or ())


def refuse_unsupported(body: ResponseRequest) -> None:
    """Raise `ApiError` naming a field that asks for what this server does not do."""
    if body.background:
        raise bad_request("background is true. Read the answer from this request.", "background")
    for name in ("conversation", "prompt"):
        if getattr(body, name) is not None:
            raise bad_request(f"{name} is given. This server keeps none: use input.", name)
    if body.truncation not in (None, "disabled", "auto"):
        raise bad_request(
            f"truncation is {body.truncation!r:.60}. It must be 'auto' or 'disabled'.", "truncation"
        )
    check_length("max_output_tokens", body.max_output_tokens)
    if body.n not in (None, 1):
        raise bad_request(f"n is {body.n}. A response has one answer.", "n")


def input_messages(given: str | Sequence[Mapping[str, Any]]) -> Messages:
    """The items of `input` as chat messages. Raises `ApiError` naming an item that is not usable."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not given:
        raise bad_request("input is empty. Give at least one item.", "input")
    messages: Messages = []
    thoughts = ""
    for index, item in enumerate(given):
        if item.get("type") == "reasoning":
            if item.get("content") is not None:  # other servers give a summary alone
                thoughts += _text(item["content"], f"input[{index}].content")
            continue
        _add(messages, _message(item, f"input[{index}]"))
        if thoughts and messages[-1]["role"] == "assistant":
            messages[-1]["reasoning_content"] = thoughts
        thoughts = ""
    return messages


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
    if kind == "function_call":
        function = {name: _string(item, name, param) for name in ("name", "arguments")}
        call = {"id": _string(item, "call_id", param), "type": "function", "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if kind == "function_call_output":
        output = _text(item.get("output"), f"{param}.output")
        return {"role": "tool", "tool_call_id": _string(item, "call_id", param), "content": output}
    if kind != "message":
        raise bad_request(
            f"{param}.type is {kind!r:.60}. This server does not know such items.", f"{param}.type"
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
    if form is None or form.type == "text":
        return None
    if form.type == "json_schema" and form.schema_ is None:
        raise bad_request(
            "text.format.schema is missing.", "text.format.schema", "missing_required_parameter"
        )
    schema = JsonSchema.model_construct(schema_=form.schema_)
    return ResponseFormat.model_construct(type=form.type, json_schema=schema, schema_=None)


def _chat_tool(index: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    kind, param = tool.get("type"), f"tools[{index}].type"
    if kind != "function":
        raise bad_request(f"{param} is {kind!r:.60}. Only functions can be called.", param)
    return {
        "type": "function",
        "function": {name: tool.get(name) for name in ("name", "description", "parameters")},
    }


def _chat_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") != "function" or not isinstance(choice.get("name"), str):
        raise bad_request(
            'tool_choice is an unknown object. Use {"type": "function", "name": ...}.', "tool_choice"
        )
    return {"type": "function", "function": {"name": choice["name"]}}
