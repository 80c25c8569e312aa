"""Endpoints under each of their paths, and the server's OpenAPI description.

Bodies are read by the server itself, so their schemas are added here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from localspec.server.response_schemas import ResponseRequest
from localspec.server.schemas import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

F = TypeVar("F", bound=Callable[..., Any])
_REFERENCE = "#/components/schemas/{model}"
_STATUSES = {
    400: "A field is not usable; `param` names it.",
    401: "The API key is missing or wrong.",
    403: "The page is not allowed (cors).",
    404: "There is no such model.",
    413: "The body is too large.",
    429: "Too many requests wait; Retry-After says when to try again.",
    500: "An answer failed.",
    503: "The model is being loaded, or the server is stopping.",
    504: "The deadline has passed.",
}
BODIES: list[type[BaseModel]] = [
    ChatRequest, CompletionRequest, ResponseRequest, TokenizeRequest, DetokenizeRequest,
]  # fmt: skip


def endpoint(
    router: APIRouter, method: str, path: str, *, openai: bool = False, **options: Any
) -> Callable[[F], F]:
    """A decorator that adds a route. openai: under /v1, and without it too, as many clients are set up.

    Where there is GET, there is HEAD: ASGI servers leave the body out. options: those of a FastAPI route.
    """
    methods = ["GET", "HEAD"] if method == "GET" else [method]

    def add(function: F) -> F:
        for place in (f"/v1{path}", path) if openai else (path,):
            router.add_api_route(place, function, methods=methods, include_in_schema=False)
        # Found behind those, so it answers nothing: one method, as FastAPI can describe it.
        described = f"/v1{path}" if openai else path
        router.add_api_route(described, function, methods=[method], **options)
        return function

    return add


def takes(body: type[BaseModel]) -> dict[str, Any]:
    """Keyword arguments for a FastAPI route that reads `body`."""
    schema = {"$ref": _REFERENCE.format(model=body.__name__)}
    content = {"required": True, "content": {"application/json": {"schema": schema}}}
    responses = {status: {"description": text} for status, text in _STATUSES.items()}
    return {"openapi_extra": {"requestBody": content}, "responses": responses}


def describe(app: FastAPI) -> None:
    """Make `/openapi.json` describe the request bodies too."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            description = get_openapi(title=app.title, version=app.version, routes=app.routes)
            _, schemas = models_json_schema(
                [(body, "validation") for body in BODIES], ref_template=_REFERENCE
            )
            components = description.setdefault("components", {}).setdefault("schemas", {})
            components.update(schemas["$defs"])
            app.openapi_schema = description
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
