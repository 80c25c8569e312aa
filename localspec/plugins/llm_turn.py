"""One turn of the `llm` tool: what a prompt asks of the engine, and what the tool is told of the answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import llm
from llm.parts import StreamEvent

import localspec
from localspec.plugins.llm_messages import plain_messages
from localspec.plugins.llm_options import AnswerSettings
from localspec.text.reasoning import KNOWN_TAGS, ReasoningSplitter, reasoning_tags
from localspec.text.tool_calls import OPENERS, CallDelta, Piece, ToolCallParser

SHOWN_TOKENS = (*OPENERS, "[ARGS]", "[CALL_ID]", *(tag for tags in KNOWN_TAGS for tag in tags))
"""Control tokens in some vocabularies whose text is read here."""
_THINKS = "enable_thinking"


class Turn:
    """A prompt on a loaded model, and the reader of its answer. ids and options: for `LLM.stream`.

    Making one renders and tokenizes the whole conversation: keep it off an event loop.
    Raises `llm.ModelError`, and what `LLM.render` raises.
    """

    def __init__(self, model: localspec.LLM, prompt: llm.Prompt) -> None:
        settings = prompt.options
        assert isinstance(settings, AnswerSettings)
        tools = [_function(tool) for tool in prompt.tools]
        self.options: dict[str, Any] = {**settings.answering(), "shown_tokens": SHOWN_TOKENS}
        if prompt.schema is not None:
            self.options["json_schema"] = prompt.schema
        shaped = "json_schema" in self.options or "grammar" in self.options
        if tools and shaped:
            raise llm.ModelError(
                "Tools are given, and a schema or grammar that leaves no room for their calls. Leave one out."
            )
        variables = settings.template_variables()
        if shaped and _THINKS in model.template.variables:
            variables[_THINKS] = False  # thoughts would not match
        tags = reasoning_tags(model.template, variables)
        closing = f"\n{tags.closing}\n\n" if shaped and tags and tags.opened else ""
        self.ids = model.render(
            plain_messages(prompt.messages), tools=tools, template_variables=variables, beginning=closing
        )
        self._splitter = ReasoningSplitter(None if shaped else tags)
        self._parser = _parser(tools)
        self._calls: dict[int, _Call] = {}
        self._warnings = list(model.warnings)
        self._completion: localspec.Completion | None = None

    def events(self, chunk: localspec.Chunk) -> Iterator[StreamEvent]:
        """What became certain with a chunk of the answer: thoughts, text and calls."""
        yield from self._events(*self._splitter.push(chunk.text))
        if chunk.completion is not None:
            self._completion = chunk.completion
            yield from self._events(*self._splitter.finish())
            yield from map(self._event, self._parser.finish() if self._parser else ())

    def conclude(self, response: llm.Response | llm.AsyncResponse) -> None:
        """Tell the response what the answer cost and which tools it calls.

        Raises `llm.ModelError` for an answer that was ended by others, and for a call that is not whole.
        """
        completion = self._completion
        if completion is None or completion.finish_reason == "cancelled":
            raise llm.ModelError("The answer was cancelled.")
        notices = [*self._warnings, *filter(None, [completion.notice])]
        response.response_json = {
            "finish_reason": completion.finish_reason,
            "drafting": completion.drafting,
            **({"notices": notices} if notices else {}),
        }
        response.set_usage(
            input=completion.stats.prompt_tokens, output=len(completion.ids), details=_details(completion)
        )
        for call in self._calls.values():
            response.add_tool_call(call.whole(cut_off=completion.finish_reason == "length"))

    def _events(self, thoughts: str, text: str) -> Iterator[StreamEvent]:
        if thoughts:
            yield StreamEvent(type="reasoning", chunk=thoughts)
        if text:
            yield from map(self._event, self._parser.push(text) if self._parser else [text])

    def _event(self, piece: Piece) -> StreamEvent:
        if not isinstance(piece, CallDelta):
            return StreamEvent(type="text", chunk=piece)
        call = self._calls.setdefault(piece.index, _Call(piece.id, piece.name))
        if piece.name:
            return StreamEvent(type="tool_call_name", chunk=piece.name, tool_call_id=call.id)
        call.arguments += piece.arguments
        return StreamEvent(type="tool_call_args", chunk=piece.arguments, tool_call_id=call.id)


class _Call:
    """A call while it is read."""

    def __init__(self, identifier: str, name: str) -> None:
        self.id, self.name, self.arguments = identifier, name, ""

    def whole(self, *, cut_off: bool) -> llm.ToolCall:
        """The call. Raises `llm.ModelError` where its arguments are no JSON object."""
        try:
            arguments = json.loads(self.arguments or "{}")
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            why = " The answer was cut off: allow more max_tokens, or a larger n_ctx." if cut_off else ""
            raise llm.ModelError(
                f"The model called {self.name} with what is no JSON object: {self.arguments!r:.80}.{why}"
            )
        return llm.ToolCall(name=self.name, arguments=arguments, tool_call_id=self.id)


def _function(tool: llm.Tool | llm.ServerSideTool) -> dict[str, Any]:
    """As chat templates expect it."""
    if not isinstance(tool, llm.Tool):
        raise llm.ModelError(f"The tool {tool.name} is one that a provider runs, and here is none.")
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _parser(tools: Sequence[dict[str, Any]]) -> ToolCallParser | None:
    parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    return ToolCallParser(parameters, parameters=parameters) if tools else None


def _details(completion: localspec.Completion) -> dict[str, Any] | None:
    """OpenAI's names; what is 0 is left out, as `llm` does."""
    accepted = sum(completion.drafted)
    prompt = {"cached_tokens": completion.stats.cached_tokens}
    answer = {
        "accepted_prediction_tokens": accepted,
        "rejected_prediction_tokens": completion.stats.drafted - accepted,
    }
    details = {
        name: kept
        for name, numbers in (("prompt_tokens_details", prompt), ("completion_tokens_details", answer))
        if (kept := {key: number for key, number in numbers.items() if number})
    }
    return details or None
