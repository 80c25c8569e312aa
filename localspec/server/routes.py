"""The endpoints that answer."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from localspec.server.answers import respond
from localspec.server.body import read_body
from localspec.server.chat import ChatFormat
from localspec.server.completions import CompletionFormat
from localspec.server.describe import endpoint, takes
from localspec.server.faults import ApiError
from localspec.server.schemas import ChatRequest, CompletionRequest
from localspec.server.service import Service
from localspec.server.settings import Settings


def check_model(name: str | None, settings: Settings) -> None:
    """Raise `ApiError` (404) for any model but the one loaded; None stands for that one."""
    if name is not None and not settings.any_model and name not in (settings.name, *settings.names):
        raise ApiError(
            404,
            f"There is no model {name[:100]!r}. Leave `model` out, ask for {settings.name!r}, or start the server with "
            f"{settings.any_model_option}: it then answers to every name.",
            param="model",
            code="model_not_found",
        )


def answering_routes(service: Service) -> APIRouter:
    """Routes for chat and text completions."""
    router, settings = APIRouter(), service.settings

    @endpoint(router, "POST", "/chat/completions", openai=True, **takes(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        body = await read_body(request, ChatRequest, service)
        check_model(body.model, settings)
        return await respond(service, request, lambda llm: ChatFormat(body, llm, settings), body)

    @endpoint(router, "POST", "/completions", openai=True, **takes(CompletionRequest))
    async def completions(request: Request) -> Response:
        """Continue a text."""
        body = await read_body(request, CompletionRequest, service)
        check_model(body.model, settings)
        return await respond(service, request, lambda llm: CompletionFormat(body, llm, settings), body)

    return router
