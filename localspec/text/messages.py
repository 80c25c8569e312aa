"""What a caller may hand in as messages or text, checked before any of it is used."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.checks import shown
from localspec.errors import InvalidRequest

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
"""Who may have said a message, as OpenAI has them. Most templates know no developer: it is taken for the system."""
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Kinds of content that can be given to a model -> the field with the text."""
ASSISTANT = "assistant"
"""What a model wrote must not end the conversation: of its own text, a NUL is read as a replacement character."""
DEEPEST_ARGUMENTS = 64
"""Levels of objects and lists. Arguments that are nested more deeply are taken as text."""
TEXT_ARGUMENT = "arguments"
"""The member that holds arguments which are no object, for a template that takes objects only."""
_UNREADABLE = re.compile("[\0\ud800-\udfff]")


def checked_messages(messages: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
    """A copy with the text fields only: `role`, `content` and any other field that is a text; and `tool_calls`.

    A content may be OpenAI's list of text parts, which becomes one text.
    Fields that are None are as good as absent; the content of a message with tool calls is then empty. Arguments of
    tool calls, which OpenAI writes as JSON text, become the objects that chat templates expect; those that are no
    object, as models write them too, stay text. Raises InvalidRequest, naming the message's index (from 0), for
    anything else that is not a text, and for text that no model can be given.
    """
    if isinstance(messages, str):
        raise InvalidRequest(
            "messages is a text.",
            'Give a list such as [{"role": "user", "content": "..."}]; `generate` and `stream` take a text.',
            name="messages",
        )
    if isinstance(messages, bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidRequest(
            f"messages is a {type(messages).__name__}.", "Give a list of messages.", name="messages"
        )
    if not messages:
        raise InvalidRequest("messages is empty.", "Give at least one message.", name="messages")
    return [_checked_message(index, message) for index, message in enumerate(messages)]


def _checked_message(index: int, message: Mapping[str, object]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(
            f"Message {index} is a {type(message).__name__}.",
            'Give a dict such as {"role": "user", "content": "..."}.',
            name="messages",
        )
    calls = message.get("tool_calls")
    if calls and message.get("content") is None:
        message = {**message, "content": ""}
    if isinstance(message.get("content"), list | tuple):
        message = {**message, "content": content_text(message["content"], f"messages[{index}].content")}
    for field in ("role", "content"):
        if not isinstance(message.get(field), str):
            raise InvalidRequest(
                f"Message {index} has no text as its {field}: {message.get(field)!r:.60}.",
                f"Give {field} as a text.",
                name="messages",
            )
    if message["role"] not in ROLES:
        raise InvalidRequest(
            f"Message {index} has the role {shown(message['role'])}.",
            f"Give one of {', '.join(ROLES)}.",
            name="messages",
        )
    if message["role"] == "developer":
        message = {**message, "role": "system"}
    if message["role"] == ASSISTANT:
        message = {
            field: value.replace("\0", "\ufffd") if isinstance(value, str) and field != "role" else value
            for field, value in message.items()
        }
    checked: dict[str, Any] = {
        str(field): checked_text(value, f"The {field} of message {index}", name="messages")
        for field, value in message.items()
        if value is not None and field != "tool_calls"
    }
    return {**checked, "tool_calls": _checked_calls(index, calls)} if calls else checked


def content_text(content: object, path: str) -> str:
    """What a message's content says: a text, or OpenAI's text parts joined; "" for None.

    path: where it stands, such as `messages[0].content`. Raises InvalidRequest naming the part that is no text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidRequest(f"{path} is {shown(content)}.", "Give a text or a list of parts.", name=path)
    return "".join(_part_text(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part_text(part: object, path: str) -> str:
    if not isinstance(part, Mapping):
        raise InvalidRequest(
            f"{path} is {shown(part)}.", 'Give a part such as {"type": "text", "text": "..."}.', name=path
        )
    kind = part.get("type")
    field = TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise InvalidRequest(
            f"{path}.type is {shown(kind)}.", "This model reads text only.", name=f"{path}.type"
        )
    text = part.get(field)
    if not isinstance(text, str):
        what = "missing" if text is None else shown(text)
        raise InvalidRequest(f"{path}.{field} is {what}.", "Give its text.", name=f"{path}.{field}")
    return text


def _checked_calls(index: int, calls: object) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise _bad_calls(index, f"of type {type(calls).__name__}", "Give a list.")
    return [_checked_call(index, call) for call in calls]


def _checked_call(index: int, call: object) -> dict[str, Any]:
    function = (call.get("function") or _custom(call.get("custom"))) if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(name, str):
        raise _bad_calls(
            index, "without function.name", 'Give {"id": ..., "function": {"name": ..., "arguments": ...}}.'
        )
    checked: dict[str, Any] = {
        "type": "function",
        "function": {
            "name": checked_text(name, f"A tool call of message {index}", name="messages"),
            "arguments": _arguments(index, function.get("arguments")),
        },
    }
    identifier = call.get("id")
    return checked if identifier is None else {"id": _call_id(index, identifier), **checked}


def _custom(custom: object) -> object:
    """A call of one of OpenAI's custom tools, whose input is a text, as one of a function."""
    return {**custom, "arguments": custom.get("input")} if isinstance(custom, Mapping) else None


def _arguments(index: int, given: object) -> dict[str, Any] | str:
    """Arguments of an old call: the object, {} where there is nothing, or the text of what is no object."""
    try:
        text = (
            given
            if isinstance(given, str)
            else json.dumps({} if given is None else given, ensure_ascii=False)
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise _bad_calls(index, f"whose arguments are no JSON ({error})", "Correct them.") from None
    try:
        value = json.loads(text) if text.strip() else {}
        if isinstance(value, dict):
            return {str(key): item for key, item in _readable(value, DEEPEST_ARGUMENTS).items()}
    except (ValueError, RecursionError):  # cut off, or never JSON: a model wrote it
        pass
    return str(_readable(text))


def _readable(value: Any, levels: int = 0) -> Any:
    """`value`, as JSON has it, without characters that no prompt can hold. Raises RecursionError below `levels`."""
    if isinstance(value, str):
        return _UNREADABLE.sub("\ufffd", value)
    if isinstance(value, dict | list) and not levels:
        raise RecursionError
    if isinstance(value, dict):
        return {_readable(key): _readable(item, levels - 1) for key, item in value.items()}
    return [_readable(item, levels - 1) for item in value] if isinstance(value, list) else value


def with_arguments(messages: Sequence[Mapping[str, Any]], *, as_text: bool) -> list[dict[str, Any]]:
    """Checked messages whose tool calls all have their arguments as JSON text, or all as objects."""
    return [
        {**message, "tool_calls": [_in_form(call, as_text) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else dict(message)
        for message in messages
    ]


def _in_form(call: Mapping[str, Any], as_text: bool) -> dict[str, Any]:
    given = call["function"]["arguments"]
    if as_text and not isinstance(given, str):
        given = json.dumps(given, ensure_ascii=False)
    elif not as_text and isinstance(given, str):
        given = {TEXT_ARGUMENT: given}
    return {**call, "function": {**call["function"], "arguments": given}}


def _call_id(index: int, identifier: object) -> str:
    return checked_text(identifier, f"The id of a tool call of message {index}", name="messages")


def _bad_calls(index: int, what: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(f"Message {index} has tool_calls {what}.", remedy, name="messages")


def checked_tools(tools: object) -> list[Mapping[str, Any]]:
    """Functions that the model may call, as a list; [] for None. Raises InvalidRequest unless it is a list of dicts."""
    if tools is None:
        return []
    if isinstance(tools, str | bytes) or not isinstance(tools, Sequence):
        raise InvalidRequest(f"tools is {shown(tools)}.", "Give a list of functions.", name="tools")
    for index, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise InvalidRequest(
                f"Tool {index} is {shown(tool)}.",
                'Give a dict such as {"type": "function", "function": {"name": ..., "parameters": ...}}.',
                name="tools",
            )
    return list(tools)


def checked_variables(variables: object) -> Mapping[str, Any]:
    """Variables for the chat template; {} for None. Raises InvalidRequest for anything but a dict by names."""
    if variables is None:
        return {}
    if not isinstance(variables, Mapping) or not all(isinstance(name, str) for name in variables):
        raise InvalidRequest(
            f"template_variables is {shown(variables)}.",
            'Give a dict such as {"enable_thinking": False}.',
            name="template_variables",
        )
    return variables


def checked_text(text: object, what: str, *, name: str) -> str:
    """`text` if it can be given to a model; `what` begins the sentence of the InvalidRequest otherwise."""
    if not isinstance(text, str):
        raise InvalidRequest(f"{what} is a {type(text).__name__}, not a text.", "Give a text.", name=name)
    if "\0" in text:
        raise InvalidRequest(
            f"{what} holds a NUL character at position {text.index(chr(0))}.", "Remove it.", name=name
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{what} holds half a surrogate pair (U+{ord(text[error.start]):04X}) at position {error.start}.",
            "Decode the text as UTF-8, or remove the character.",
            name=name,
        ) from None
    return text
