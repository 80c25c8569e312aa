"""POST /v1/responses: text and function calls."""

from __future__ import annotations

import secrets
import time
from typing import Any

from fastapi import APIRouter, Request, Response

from localspec.answers.request import Chunk, Completion
from localspec.answers.stream import Start
from localspec.llm import LLM
from localspec.server.answers import respond
from localspec.server.body import read_body
from localspec.server.describe import endpoint, takes
from localspec.server.faults import ApiError, as_api_error, bad_request
from localspec.server.logprobs import Pieces, TextTokens, token_logprob
from localspec.server.options import field_names
from localspec.server.plan import SHOWN_TOKENS, chat_plan
from localspec.server.reader import Delta, Reader, merged
from localspec.server.replies import Json
from localspec.server.response_input import chat_request, wants_logprobs
from localspec.server.response_items import OutputItems
from localspec.server.response_schemas import ResponseRequest
from localspec.server.response_store import Kept, ResponseStore
from localspec.server.routes import check_model
from localspec.server.schemas import ChatRequest
from localspec.server.service import Service
from localspec.server.settings import Settings
from localspec.server.truncation import dropped_warnings, fitting_plan
from localspec.server.usage import timings, usage

Payload = dict[str, Any]
_FIELDS = {
    "messages": "input",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
}
"""Fields of a chat request -> those of /v1/responses."""
_FUNCTION = (".function.", ".")
"""The same for what is said of a tool."""


class AnswerItemsFormat:
    """A response and its numbered events: an `AnswerFormat`."""

    done = ""

    def __init__(self, body: ResponseRequest, llm: LLM, settings: Settings, store: ResponseStore) -> None:
        self._store = None if body.store is False else store
        chat, self._messages, warnings = chat_request(body, _earlier(body, store), store.item)
        self._reader: Reader
        self._output = OutputItems()
        self._number = 0
        self._deltas: list[dict[str, Any]] = []
        self._payload = _head(body, settings)
        try:
            if body.truncation == "auto":
                plan, dropped = fitting_plan(chat, llm, settings)
                self._payload["dropped_messages"] = dropped
                warnings = (*warnings, *dropped_warnings(dropped))
            else:
                plan = chat_plan(chat, llm, settings)
            stream = llm.stream(plan.ids, **plan.options)  # refuses what is not right
        except Exception as error:
            raise _renamed(error, chat) from error
        if warnings := (*warnings, *plan.warnings):
            self._payload["warnings"] = [
                {name: text.replace(*_FUNCTION) for name, text in warning.items()} for warning in warnings
            ]
        self._reader = plan.reader()
        self._pieces = Pieces(llm, SHOWN_TOKENS)
        self._tokens = TextTokens(self._pieces.shown) if wants_logprobs(body) else None
        self._pending: list[tuple[str, list[Payload]]] = []
        self.starts: list[Start] = [lambda: stream]

    def opening(self, _index: int) -> list[Payload]:
        """The events `created` and `in_progress`."""
        return self._numbered([self._state("created"), self._state("in_progress")])

    def events(self, _index: int, chunk: Chunk) -> list[Payload]:
        """Events as the items grow; the last one holds the whole response."""
        deltas = self._read(chunk)
        if chunk.completion is None:
            return self._numbered(self._items(deltas))
        events = self._items(deltas + self._with_logprobs(self._reader.finish()))
        status = "completed" if chunk.completion.finish_reason == "stop" else "incomplete"
        if not self._output.items:
            events += self._output.empty()
        events += self._output.finish(status)
        self._end(chunk.completion, status)
        return self._numbered([*events, self._state(status)])

    def closing(self) -> list[Payload]:
        """Nothing: the last event was the response itself."""
        return []

    def failure(self, error: ApiError) -> Payload:
        """The event `failed`: the response so far, with the error."""
        self._payload |= {"status": "failed", "output": self._output.items}
        self._payload["error"] = {"code": error.code or "server_error", "message": error.message}
        return self._numbered([self._state("failed")])[0]

    def whole(self, chunks: dict[int, list[Chunk]]) -> Payload:
        """The finished response."""
        for chunk in chunks[0]:
            self.events(0, chunk)
        return self._payload

    def _read(self, chunk: Chunk) -> list[Delta]:
        """What the reader makes of a chunk; token by token where each is to be told, for the text alone has them."""
        if self._tokens is None:
            return self._reader.push(chunk.text, len(chunk.tokens))
        deltas = []
        for text, tokens in self._tokens.split(chunk):
            told = [token_logprob(token.logprob, self._pieces) for token in tokens if token.logprob]
            self._pending.append((text, told))
            deltas += self._with_logprobs(self._reader.push(text, len(tokens)))
        return deltas

    def _with_logprobs(self, deltas: list[Delta]) -> list[Delta]:
        """Deltas, those of the text with their tokens; those of thoughts, calls and what encloses them are dropped."""
        for delta in deltas:
            if delta.get("content"):
                delta["logprobs"] = self._claim(delta["content"])
            else:
                self._pending = []
        return deltas

    def _claim(self, text: str) -> list[Payload]:
        """The tokens of `text` among those read since; what may be held back behind it keeps its own."""
        start = max("".join(piece for piece, _ in self._pending).rfind(text), 0)
        claimed: list[Payload] = []
        at, rest = 0, []
        for piece, tokens in self._pending:
            if at >= start + len(text):
                rest.append((piece, tokens))
            elif at >= start or at + len(piece) > start:
                claimed += tokens
            at += len(piece)
        self._pending = rest
        return claimed

    def _items(self, deltas: list[dict[str, Any]]) -> list[Payload]:
        self._deltas += deltas
        return [event for delta in deltas for event in self._output.push(delta)]

    def _end(self, completion: Completion, status: str) -> None:
        spent = usage([[completion]], self._reader.reasoning_tokens)
        details = spent["completion_tokens_details"]
        self._payload |= {
            "status": status,
            "incomplete_details": None if status == "completed" else {"reason": "max_output_tokens"},
            "output": self._output.items,
            "usage": {
                "input_tokens": spent["prompt_tokens"],
                "input_tokens_details": {**spent["prompt_tokens_details"], "cache_write_tokens": 0},
                "output_tokens": spent["completion_tokens"],
                "output_tokens_details": details,
                "total_tokens": spent["total_tokens"],
            },
            "timings": timings([completion.stats]),
        }
        if self._store is not None:
            self._store.add(self._payload["id"], Kept(self._payload, [*self._messages, merged(self._deltas)]))

    def _state(self, kind: str) -> Payload:
        return {
            "type": f"response.{kind}",
            "response": {**self._payload, "output": list(self._payload["output"])},
        }

    def _numbered(self, events: list[Payload]) -> list[Payload]:
        for event in events:
            event["sequence_number"] = self._number
            self._number += 1
        return events


def _earlier(body: ResponseRequest, store: ResponseStore) -> list[Any]:
    if body.previous_response_id is None:
        return []
    kept = store.get(body.previous_response_id)
    if kept is None:
        raise bad_request(
            f"There is no response {body.previous_response_id[:80]!r}, or it was forgotten. Give the whole "
            "conversation as input.",
            "previous_response_id",
            "previous_response_not_found",
        )
    return list(kept.messages)


def _head(body: ResponseRequest, settings: Settings) -> Payload:
    """The response before it has an output."""
    params = settings.params
    given = body.text.format if body.text else None
    form = {"type": "text"} if given is None else given.model_dump(by_alias=True, exclude_none=True)
    return {
        "background": False,
        "id": f"resp_{secrets.token_hex(24)}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": settings.name,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
        "store": body.store is not False,
        "temperature": params.temperature if body.temperature is None else body.temperature,
        "text": {"format": form},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_p": params.top_p if body.top_p is None else body.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "truncation": body.truncation or "disabled",
        "usage": None,
        "user": body.user,
    }


def _renamed(error: Exception, chat: ChatRequest) -> ApiError:
    """The same refusal in the words of this endpoint."""
    refused = as_api_error(error, field_names(chat))
    param = refused.param
    if param is not None:
        param = _FIELDS.get(param, param).replace(*_FUNCTION)
    message = refused.message.replace(*_FUNCTION)
    return ApiError(
        refused.status, message, kind=refused.kind, param=param, code=refused.code, headers=refused.headers,
        facts=refused.facts,
    )  # fmt: skip


def response_routes(service: Service) -> APIRouter:
    """Routes that make responses, show them again and delete them."""
    router, settings, store = APIRouter(), service.settings, ResponseStore()

    @endpoint(router, "POST", "/responses", openai=True, **takes(ResponseRequest))
    async def responses(request: Request) -> Response:
        """Answer a conversation."""
        body = await read_body(request, ResponseRequest, service)
        check_model(body.model, settings)
        return await respond(
            service, request, lambda llm: AnswerItemsFormat(body, llm, settings, store), body
        )

    @endpoint(router, "GET", "/responses/{response_id}", openai=True)
    async def retrieve(response_id: str) -> Response:
        """A response that is still kept."""
        kept = store.get(response_id)
        if kept is None:
            raise _unknown(response_id)
        return Json(kept.payload)

    @endpoint(router, "DELETE", "/responses/{response_id}", openai=True)
    async def delete(response_id: str) -> Response:
        """Forget a response."""
        if not store.remove(response_id):
            raise _unknown(response_id)
        return Json({"id": response_id, "object": "response", "deleted": True})

    return router


def _unknown(response_id: str) -> ApiError:
    return ApiError(404, f"There is no response {response_id[:80]!r}, or it was forgotten.", code="not_found")
