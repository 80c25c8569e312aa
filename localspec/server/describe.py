"""The server's OpenAPI description: bodies are read by the server itself, so their schemas are added here."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from localspec.server.response_schemas import ResponseRequest
from localspec.server.schemas import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

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
