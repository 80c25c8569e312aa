"""What a chat request asks of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.llm import LLM
from localspec.server.answer_reader import AnswerReader
from localspec.server.faults import Warnings, bad_request
from localspec.server.options import FORMS, answer_options, text_of
from localspec.server.reader import Reader
from localspec.server.schemas import ChatRequest, Message
from localspec.server.settings import Settings
from localspec.server.tools import CallSyntax, ToolUse, call_syntax, tool_use
from localspec.text.reasoning import KNOWN_TAGS, ReasoningTags, reasoning_tags
from localspec.text.tool_calls import OPENERS

SHOWN_TOKENS = (*OPENERS, "[ARGS]", "[CALL_ID]", *(tag for tags in KNOWN_TAGS for tag in tags))
"""Control tokens in some vocabularies whose text the readers must see."""
THINKS = "enable_thinking"
MAY_BE_SILENT = ("assistant", "function")
"""Roles whose messages need no content."""


@dataclass(frozen=True)
class Plan:
    """ids: of the prompt. options: keyword arguments of `LLM.stream`. reader: makes one for each choice.

    warnings: what of the request is passed over.
    """

    ids: list[int]
    options: dict[str, Any]
    reader: Callable[[], Reader]
    warnings: Warnings = ()


def chat_plan(body: ChatRequest, llm: LLM, settings: Settings) -> Plan:
    """Render, tokenize and check. Slow for a long prompt: keep it off the event loop.

    Raises `ApiError`, and what `LLM.render` raises.
    """
    use = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls)
    syntax = call_syntax(llm.template.source or "")
    options = {**answer_options(body, settings), "shown_tokens": SHOWN_TOKENS}
    options, warnings = _with_calls(options, body, use, syntax)
    constrained = "json_schema" in options or "grammar" in options
    variables = _variables(body, llm, constrained)
    ending = _ending(body)
    tags = _tags(body, llm, variables, ending)
    beginning = _beginning(tags, use, syntax, constrained)
    ids = llm.render(
        plain_messages(body.messages),
        tools=use.tools,
        template_variables=variables,
        beginning=beginning,
        ending=ending,
    )
    shown = None if constrained else tags
    return Plan(ids, options, lambda: AnswerReader(shown, use.parser()), (*use.warnings, *warnings))


def _with_calls(
    options: dict[str, Any], body: ChatRequest, use: ToolUse, syntax: CallSyntax
) -> tuple[dict[str, Any], Warnings]:
    """Options with the schema that makes an answer a call. Raises `ApiError` where a grammar says otherwise."""
    if use.forced:
        if body.grammar:
            raise bad_request("grammar is given and tool_choice forces a call. Give one of them.", "grammar")
        options = {name: value for name, value in options.items() if name not in FORMS}
    schema, warnings = use.schema(syntax, options.get("json_schema"))
    return (options if schema is None else {**options, "json_schema": schema}), warnings


def _variables(body: ChatRequest, llm: LLM, constrained: bool) -> dict[str, Any]:
    """Variables for the chat template. An answer that must match a grammar or schema cannot begin with thoughts."""
    variables = dict(body.chat_template_kwargs or {})
    known = llm.template.variables
    if body.reasoning_effort is not None and "reasoning_effort" in known:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    if THINKS in known and (constrained or body.reasoning_effort == "none"):
        variables.setdefault(THINKS, False)
    return variables


def _ending(body: ChatRequest) -> str:
    """How the prompt ends, as `LLM.render` takes it. Raises `ApiError` for a new answer that continues an old one."""
    if body.continue_final_message and body.add_generation_prompt:
        raise bad_request(
            "continue_final_message and add_generation_prompt are both true: an answer is continued or begun. "
            "Set one of them to false.",
            "continue_final_message",
        )
    if body.continue_final_message:
        return "message"
    return "nothing" if body.add_generation_prompt is False else "answer"


def _tags(body: ChatRequest, llm: LLM, variables: dict[str, Any], ending: str) -> ReasoningTags | None:
    """How the model marks its thoughts, and whether the prompt has opened them."""
    tags = reasoning_tags(llm.template, variables)
    if tags is None or ending == "answer":
        return tags
    said = text_of(body.messages[-1].content, "messages") if ending == "message" and body.messages else ""
    return replace(tags, opened=said.rfind(tags.opening) > said.rfind(tags.closing))


def _beginning(tags: ReasoningTags | None, use: ToolUse, syntax: CallSyntax, constrained: bool) -> str:
    """The part of a constrained answer that the prompt holds already: the end of the thoughts, the start of a call."""
    closing = f"\n{tags.closing}\n\n" if tags and tags.opened and constrained else ""
    return closing + (syntax.beginning if use.forced else "")


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as `LLM.chat` takes them. Raises `ApiError` naming a part that is no text."""
    return [_plain_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _plain_message(message: Message, param: str) -> dict[str, Any]:
    if message.content is None and message.role not in MAY_BE_SILENT:
        raise bad_request(f"{param}.content is missing.", f"{param}.content", "missing_required_parameter")
    plain: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": text_of(message.content, f"{param}.content"),
    }
    for name in ("name", "tool_calls", "tool_call_id", "reasoning_content"):
        if getattr(message, name):
            plain[name] = getattr(message, name)
    return plain
