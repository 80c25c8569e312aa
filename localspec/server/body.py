"""From the bytes of a request to a checked body."""

from __future__ import annotations

import asyncio
import json
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from localspec.checks import shown
from localspec.server.faults import ApiError, bad_request, client_gone
from localspec.server.service import Service

T = TypeVar("T", bound=BaseModel)
SMALL = 64 * 1024
"""Bytes. A body up to this size is parsed faster than a thread starts."""


async def read_body(request: Request, kind: type[T], service: Service) -> T:
    """The body as `kind`. Raises `ApiError`: 413 for too many bytes, 400 naming the field otherwise.

    A client that leaves half-way is a 499, and one that still sends when the server stops is a 503.
    """
    try:
        async with service.until_stopped():
            data = await _read(request, service.settings.max_body)
    except ClientDisconnect:
        raise client_gone() from None
    if len(data) <= SMALL:
        return parse(data, kind)
    return await asyncio.to_thread(parse, data, kind)


async def _read(request: Request, max_bytes: int) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(data)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413, f"The request is larger than {max_bytes} bytes. Shorten it.", code="request_too_large"
    )


def parse(data: bytes, kind: type[T]) -> T:
    """Bytes as `kind`. Raises `ApiError` naming the first field that is not usable."""
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise _refusal(data, error) from None


def _refusal(data: bytes, error: ValidationError) -> ApiError:
    faults = error.errors(include_url=False, include_context=False, include_input=True)
    first = faults[0]
    if first["type"] == "json_invalid":
        return bad_request(f"The body is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}.")
    if first["type"] == "model_type" and not first["loc"]:
        return bad_request("The body must be a JSON object.")
    value = json.loads(data)
    param = _path(value, first["loc"])
    if first["type"] == "missing":
        param = f"{param}.{first['loc'][-1]}" if param else str(first["loc"][-1])
        return bad_request(f"{param} is missing.", param, "missing_required_parameter")
    reasons = [fault["msg"] for fault in faults if _path(value, fault["loc"]) == param]
    wanted = " or ".join(dict.fromkeys(reason.removeprefix("Input should be ") for reason in reasons))
    return bad_request(f"{param} is {shown(first['input'])}. It must be {wanted}.", param, "invalid_type")


def _path(value: Any, location: tuple[int | str, ...]) -> str:
    """Where in the body, as `messages[0].content`; the names of alternatives in `location` are left out."""
    path = ""
    for step in location:
        if isinstance(step, int) and isinstance(value, list) and step < len(value):
            value, path = value[step], f"{path}[{step}]"
        elif isinstance(step, str) and isinstance(value, dict) and step in value:
            value, path = value[step], f"{path}.{step}" if path else step
    return path
